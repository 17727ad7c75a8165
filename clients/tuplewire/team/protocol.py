"""The protocol of a team: its messages, the forming of the team, and the matching of pieces to calls.

Used by members.py and team.py. Owns the ids of the members, and the pieces that have arrived and that no call
has taken yet: at most WINDOW of each stream. No I/O and no clock. Not thread-safe.
Design: docs/design/teams.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import IntEnum
from hashlib import blake2b
from struct import Struct, error
from typing import Any, NamedTuple

from tuplewire.errors import TeamError, TeamMismatchError

PIECE_BYTES = 512 * 1024
"""The maximum bytes of a value in one message."""
WINDOW = 16
"""The maximum number of pieces of a stream that were sent, and that the other rank has not confirmed."""
_CONFIRMED_AT_ONCE = WINDOW // 2
_REMEMBERED = 64
"""The number of own calls to compare with late messages of other calls."""
_HEADER = Struct("<QIHBBIIQ")

DTYPES = (
    *("", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""The supported dtypes, by their number in messages; 0: not an array."""

Call = IntEnum(
    "Call",
    "JOIN PREPARE READY START CONFIRM LEAVE ABORT "
    "SEND BARRIER BROADCAST GATHER SCATTER ALL_GATHER ALL_TO_ALL SUM MIN MAX MEAN",
)
"""The purpose of a message."""


class Message(NamedTuple):
    """A value with the call that it belongs to, or a piece of one.

    As bytes: a header of 32 bytes, the kind and shape of the value in its first piece, and the piece.
    """

    team: int = 0
    number: int = 0
    rank: int = 0
    call: int = 0
    dtype: int = 0
    step: int = 0
    piece: int = 0
    size: int = 0
    """The bytes of the value."""
    kind: int = 0
    shape: tuple[int, ...] = ()
    body: Any = b""

    def __str__(self) -> str:
        name = Call(self.call).name.lower()
        if self.call < Call.SUM:
            return f"{name} #{self.number}"
        name = "all_reduce" if self.call == Call.SUM else f"all_reduce({name})"
        shape = "x".join(map(str, self.shape)) or "a number"
        return f"{name} #{self.number} ({DTYPES[self.dtype]}, {shape})"

    def matches(self, other: Message) -> bool:
        """Return True if the calls are the same. Dtypes and shapes must be equal in reductions only."""
        same = self.call < Call.SUM or (self.dtype, self.shape) == (other.dtype, other.shape)
        return same and self.call == other.call

    def with_value(self, value: Message) -> Message:
        """Return a value as a part of this call."""
        facts = {name: getattr(value, name) for name in ("dtype", "kind", "shape", "body")}
        return self._replace(**facts, size=len(value.body))

    def pieces(self) -> int:
        """Return the number of pieces of the value."""
        return max(1, -(-self.size // PIECE_BYTES))

    def packed(self, piece: int = 0) -> bytes:
        """Return a piece of the value as bytes."""
        header, count = _HEADER.pack(*self[:6], piece, self.size), len(self.shape)
        facts = b"" if piece else Struct(f"<BH{count}Q").pack(self.kind, count, *self.shape)
        return b"".join((header, facts, self.body[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]))


def unpack(payload: bytes) -> Message | None:
    """Return the message in untrusted bytes, or None if they are not a message of a team."""
    try:
        message, at = Message(*_HEADER.unpack_from(payload)), _HEADER.size
        Call(message.call), DTYPES[message.dtype]
        if not message.piece:
            kind, count = Struct("<BH").unpack_from(payload, at)
            at += 3 + 8 * count
            message = message._replace(
                kind=kind, shape=Struct(f"<{count}Q").unpack_from(payload, at - 8 * count)
            )
        body, rest = memoryview(payload)[at:], message.size - message.piece * PIECE_BYTES
        fits = len(body) == min(rest, PIECE_BYTES) and message.piece < message.pieces()
        if len(body) > PIECE_BYTES or (message.call >= Call.SEND and not fits):
            return None
        return message._replace(body=body)
    except (error, ValueError, IndexError):
        return None


# --- forming -------------------------------------------------------------------------------------

Answers = list[tuple[int, Message]]
"""Messages, with the ranks to send them to."""


def team_of(ids: tuple[int, ...]) -> int:
    """Return the id of the team of these members; it differs after each restart of a member."""
    packed = Struct(f"<{len(ids)}Q").pack(*ids)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


class Forming:
    """The state of one member while a team forms: rank 0 collects the ids of all, and starts the team.

    In JOIN, a message's `team` is the random id of its sender. PREPARE has the ids of all members as its
    `shape`. A lost message is replaced when its member repeats JOIN; copies and old messages have no effect.
    """

    def __init__(self, rank: int, size: int, own_id: int) -> None:
        """Start alone. own_id: a random number of 64 bits, new for each Team."""
        self.started = size == 1
        """True once all members are ready. Later messages of forming still need answers."""
        self.ids: tuple[int, ...] = (own_id,) if self.started else ()
        """The ids in the last PREPARE, by rank; empty before it."""
        self.team = team_of(self.ids)
        self._rank, self._size, self._own_id = rank, size, own_id
        self._known, self._ready = {rank: own_id}, {0}

    def repeat(self) -> Answers:
        """Return the message to send at the start, and again every 0.5 s until the team has started."""
        return [(0, Message(self._own_id, 0, self._rank, Call.JOIN))] if self._rank else []

    def missing(self) -> list[int]:
        """Return the ranks that this member waits for."""
        seen = self._ready if self.ids else self._known
        return [0] if self._rank else [rank for rank in range(self._size) if rank not in seen]

    def is_member(self, message: Message) -> bool:
        """Return False for a JOIN of another process than the member of the started team."""
        return message.call != Call.JOIN or not self.started or self.ids[message.rank] == message.team

    def add(self, message: Message) -> Answers:
        """Process a message of a member; return the answers."""
        team, rank, ids = message.team, message.rank, message.shape
        if self._rank == 0:
            if message.call == Call.JOIN and rank:
                return self._on_join(rank, team)
            if message.call == Call.READY and self.ids and team == self.team and not self.started:
                self._ready.add(rank)
                self.started = len(self._ready) == self._size
                return [(other, self._note(Call.START)) for other in range(1, self._size) if self.started]
        elif message.call == Call.PREPARE and not self.started:
            if len(ids) == self._size and ids[self._rank] == self._own_id and team_of(ids) == team:
                self.ids, self.team = ids, team
                return [(0, self._note(Call.READY))]
        elif message.call == Call.START and self.ids and team == self.team:
            self.started = True
        return []

    def _on_join(self, rank: int, member_id: int) -> Answers:
        if self.started:  # its START was lost, or arrived before a late copy of an older PREPARE
            return [(rank, self._note(Call.PREPARE)), (rank, self._note(Call.START))]
        if self._known.get(rank) != member_id:
            self._known[rank] = member_id
            self._ready, complete = {0}, len(self._known) == self._size
            self.ids = tuple(self._known[each] for each in range(self._size)) if complete else ()
            self.team = team_of(self.ids)
        unready = set(range(self._size)) - self._ready if self.ids else ()
        return [(other, self._note(Call.PREPARE)) for other in unready]

    def _note(self, call: int) -> Message:
        return Message(self.team, 0, self._rank, call, shape=self.ids if call == Call.PREPARE else ())


# --- matching ------------------------------------------------------------------------------------

Position = tuple[int, int, int]
_START: Position = (0, 0, 0)
Stream = tuple[int, bool]
"""A rank, and True for the values of send(), which have their own numbers."""


class Matching:
    """The pieces from all ranks, and the window for pieces to them.

    The position of a piece is the number of its call, the step of the call, and the piece of the step's
    value. A call takes the pieces of a rank in order. A piece before the last taken one is a copy, and is
    dropped.
    """

    def __init__(self) -> None:
        self.last: dict[int, Message] = {}
        """The last call that each rank has sent a message of."""
        self.sent, self.confirmed = Counter[Stream](), Counter[Stream]()
        """The numbers of sent pieces, and of confirmed ones."""
        self.taken, self.reported = Counter[Stream](), Counter[Stream]()
        """The numbers of taken pieces, and of pieces in the last confirmations to their ranks."""
        self._calls: dict[int, Message] = {}
        self._step: tuple[int, int] = (0, 0)
        self._sources: Collection[int] = ()
        self._arrived: dict[Stream, dict[Position, Message]] = {}
        self._next: dict[Stream, Position] = {}
        self._values: dict[Stream, Message] = {}

    def begin(self, call: Message, step: int, sources: Collection[int]) -> None:
        """Begin a step of a call that expects values from these ranks. Raises TeamMismatchError."""
        self._calls[call.number] = call
        self._calls.pop(call.number - _REMEMBERED, None)
        self._step, self._sources = (call.number, step), sources
        for (_, direct), arrived in self._arrived.items():
            for message in () if direct else arrived.values():
                self._check(message)

    def add(self, message: Message) -> None:
        """Add a piece that has arrived. Raises TeamMismatchError, and TeamError beyond the window."""
        stream, position = (message.rank, message.call == Call.SEND), message[1:2] + message[5:7]
        if position < self._next.get(stream, _START):
            return
        if message.call != Call.SEND:
            self._check(message)
        arrived = self._arrived.setdefault(stream, {})
        arrived[position] = message
        if len(arrived) > WINDOW:
            raise TeamError(f"rank {message.rank} has sent more than {WINDOW} pieces before their calls")

    def _check(self, message: Message) -> None:
        """Compare the first piece of a value with the own call of the same number."""
        mine = self._calls.get(message.number)
        if message.piece:
            return
        self.last[message.rank] = message._replace(body=b"")
        # Every message of an earlier call was taken, unless that call had another root.
        stray = message.rank not in self._sources and (message.number, message.step) == self._step
        if mine is not None and (stray or message.number < self._step[0] or not mine.matches(message)):
            root = " with another root" if mine.matches(message) else ""
            raise TeamMismatchError(f"{mine}: rank {message.rank} has called {message}{root}")

    def take(self, stream: Stream, number: int, step: int) -> Message | None:
        """Take the pieces of a value that have arrived; return the value once it is complete."""
        arrived = self._arrived.get(stream, {})
        position = max(self._next.get(stream, _START), (number, step, 0))
        while (message := arrived.pop(position, None)) is not None:
            if not message.piece:
                self._values[stream] = message._replace(body=bytearray())
            self._values[stream].body.extend(message.body)
            self.taken[stream] += 1
            position = self._next[stream] = number, step, message.piece + 1
            if message.piece + 1 >= message.pieces():
                return self._values.pop(stream)
        return None

    def free(self, stream: Stream) -> int:
        """Return the number of pieces that may be sent to a rank now."""
        return WINDOW - self.sent[stream] + self.confirmed[stream]

    def confirmations(self) -> list[tuple[Stream, int]]:
        """Return the numbers of taken pieces to report now, so that their ranks can send more."""
        return [(each, n) for each, n in self.taken.items() if n - self.reported[each] >= _CONFIRMED_AT_ONCE]
