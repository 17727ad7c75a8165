"""The protocol of a team: its messages, the forming of the team, and the matching of pieces to calls.

Used by members.py. Owns the ids of the members, and the pieces that have arrived and that no call has taken
yet: at most WINDOW of each stream. No I/O and no clock. Not thread-safe. Design: docs/design/teams.md.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from tuplewire.errors import TeamAbortedError, TeamChangedError, TeamError, TeamMismatchError

PIECE_BYTES = 512 * 1024
"""The maximum bytes of a value in one message."""
WINDOW = 16
"""The maximum number of pieces of a stream that were sent, and that the other rank has not confirmed."""
_HEADER = struct.Struct("<QIHBqQQH")

Kind = IntEnum("Kind", "JOIN PREPARE START LEAVE ABORT CALL SEND")
"""The purpose of a message. CALL, SEND: a piece of a value, in a call of all ranks or of send()."""


class Message(NamedTuple):
    """A piece of a value, or a note to another member. As bytes: 41 bytes, the call, and the body."""

    team: int
    number: int
    """The number of the call."""
    rank: int
    """The rank of the sender."""
    kind: int
    position: int = 0
    """The number of earlier pieces of this stream; -1: it confirms pieces, and is none itself."""
    size: int = 0
    """The bytes of the whole value."""
    taken: int = 0
    """The number of pieces that its sender has taken from the stream in the other direction."""
    call: str = ""
    """The call with its number, dtype, shape and root, which must be equal on all ranks."""
    body: Any = b""

    def pack(self) -> bytes:
        """Return the message as bytes."""
        call = self.call.encode()
        return b"".join((_HEADER.pack(*self[:7], len(call)), call, self.body))

    def abort_error(self) -> TeamError:
        """Return the error that an ABORT causes. Its body is the type and the text of its sender's error.

        A rank that has left because of another one's ABORT repeats that error. Both may arrive in any order.
        """
        text = bytes(self.body).decode(errors="replace")
        name, _, reason = text.partition(": ")
        error = TeamChangedError if name == TeamChangedError.__name__ else TeamAbortedError
        is_repeated = name == error.__name__ and reason.startswith("rank ")
        return error(reason if is_repeated else f"rank {self.rank} has left the team: {text}")


def unpack(payload: bytes) -> Message | None:
    """Return the message in untrusted bytes, or None if they are not a message of a team."""
    try:
        team, number, rank, kind, position, size, taken, length = _HEADER.unpack_from(payload)
        start = _HEADER.size + length
        call, body = payload[_HEADER.size : start].decode(), memoryview(payload)[start:]
        return Message(team, number, rank, Kind(kind), position, size, taken, call, body)
    except (struct.error, ValueError):
        return None


# --- forming -------------------------------------------------------------------------------------


def team_id(members: bytes) -> int:
    """Return the id of the team of members with these ids; it differs after each restart of a member."""
    return int.from_bytes(blake2b(members, digest_size=8).digest())


class TeamFormation:
    """The state of one member while a team forms: rank 0 collects the ids of all, and starts the team.

    JOIN has the random id of its sender, and the team that it is ready for. PREPARE has the ids of all
    members. START reports that all are ready. A member sends JOIN every 0.5 s until the team has started,
    which replaces any lost message; copies and old messages have no effect.
    """

    def __init__(self, rank: int, size: int, own_id: bytes) -> None:
        """Start alone. own_id: eight random bytes, new for each Team."""
        self.started = size == 1
        """True once all members are ready, or one of them has sent a message of a call."""
        self.ids = [own_id if each == rank else b"" for each in range(size)]
        """The known ids, by rank: those of the last JOIN of each at rank 0, of the last PREPARE elsewhere."""
        self.team = team_id(own_id)
        """The id of the team; before PREPARE, an id that no other member knows."""
        self._rank, self._size, self._own_id, self._unready_ranks = rank, size, own_id, {*range(1, size)}

    def missing_ranks(self) -> list[int]:
        """Return the ranks that this member waits for: until all have joined, then until all are ready."""
        absent = [rank for rank, member_id in enumerate(self.ids) if not member_id]
        return [0] if self._rank else absent or sorted(self._unready_ranks)

    def is_stale(self, message: Message) -> bool:
        """Return True for a message of another team, except JOIN, PREPARE and START."""
        return message.kind > Kind.START and message.team != self.team

    def add(self, message: Message) -> list[tuple[int, Message]]:
        """Process a message of a member; return answers, with the ranks to send them to."""
        kind, body = message.kind, message.body
        if self._rank == 0:
            return self._on_join(message.rank, message.team, bytes(body)) if kind == Kind.JOIN else []
        if kind == Kind.PREPARE and not self.started:
            ids = [bytes(body[at : at + 8]) for at in range(0, len(body), 8)]
            if len(ids) == self._size and ids[self._rank] == self._own_id:
                self.ids, self.team = ids, team_id(body)
                return [(0, self.build_notice(Kind.JOIN, self._own_id))]
        elif kind >= Kind.START and message.team == self.team:
            self.started = True
        return []

    def _on_join(self, rank: int, team: int, member_id: bytes) -> list[tuple[int, Message]]:
        if self.ids[rank] != member_id:
            if self.started:
                return []  # an old message, or a process that takes the rank over
            self.ids[rank], self._unready_ranks = member_id, {*range(1, self._size)}
            self.team = team_id(b"".join(self.ids))
        elif team == self.team:
            self._unready_ranks.discard(rank)
            self.started = not self._unready_ranks
            return [(other, self.build_notice(Kind.START)) for other in range(1, self._size) if self.started]
        targets = {rank} | self._unready_ranks if all(self.ids) else ()
        return [(other, self.build_notice(Kind.PREPARE, b"".join(self.ids))) for other in sorted(targets)]

    def build_notice(self, kind: Kind, body: bytes = b"") -> Message:
        """Return a message outside of calls."""
        return Message(self.team, 0, self._rank, kind, body=body)


# --- matching ------------------------------------------------------------------------------------


@dataclass
class PieceStream:
    """The pieces to and from one rank, of calls or of send(). Numbers count pieces since the start."""

    sent: int = 0
    confirmed: int = 0
    """The number of sent pieces that the other rank has taken."""
    taken: int = 0
    reported: int = 0
    """The value of `taken` that was last sent to the other rank."""
    arrived: dict[int, Message] = field(default_factory=dict)
    """The pieces that no call has taken, by their position."""
    value: bytearray = field(default_factory=bytearray)
    """The taken pieces of an incomplete value, as one array: separate pieces would fragment the memory."""


class CallMatcher:
    """The streams of a member, and the comparison of its calls with the calls of the others.

    A call takes the pieces of a rank in order. A piece before the last taken one is a copy, and is dropped.
    """

    def __init__(self) -> None:
        self.streams: dict[tuple[int, int], PieceStream] = defaultdict(PieceStream)
        """The streams, by rank and kind (CALL or SEND)."""
        self._number, self._call = 0, ""

    def begin(self, number: int, call: str) -> None:
        """Begin a call of all ranks."""
        self._number, self._call = number, call

    def add(self, message: Message) -> None:
        """Add a piece that has arrived. Raises TeamMismatchError, and TeamError beyond the window."""
        stream = self.streams[message.rank, message.kind]
        stream.confirmed = max(stream.confirmed, message.taken)
        if message.position < stream.taken:
            return
        self._check(message, self._number)
        stream.arrived[message.position] = message
        if len(stream.arrived) > WINDOW:
            raise TeamError(f"rank {message.rank} has sent more than {WINDOW} pieces that no call has taken")

    def _check(self, message: Message, number: int) -> None:
        """Compare a piece with this rank's call, if the piece's call has at most this number."""
        if message.kind == Kind.CALL and message.number <= number and message.call != self._call:
            raise TeamMismatchError(f"{self._call}: rank {message.rank} has called {message.call}")

    def take(self, rank: int, kind: int) -> bytearray | None:
        """Take the next pieces of a rank; return the value once it is complete. Raises TeamMismatchError."""
        stream = self.streams[rank, kind]
        while (message := stream.arrived.pop(stream.taken, None)) is not None:
            self._check(message, message.number)
            stream.taken += 1
            stream.value += message.body
            if len(stream.value) >= message.size:
                value, stream.value = stream.value, bytearray()
                return value
        return None
