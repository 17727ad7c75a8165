"""The messages of a team: their form, and the matching of received pieces to calls.

Used by members.py and team.py. Owns the pieces that have arrived and that no call has taken yet: at most
WINDOW of each stream. No I/O and no clock. Not thread-safe. Design: docs/design/teams.md ("Matching").

The position of a piece is the number of its call, the step of the call, and the piece of the step's value. A
call takes the pieces of a rank in order. A piece before the last taken one is a copy, and is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import IntEnum
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
        return message._replace(body=memoryview(payload)[at:])
    except (error, ValueError, IndexError):
        return None


Position = tuple[int, int, int]
_START: Position = (0, 0, 0)
Stream = tuple[int, bool]
"""A rank, and True for the values of send(), which have their own numbers."""


class Matching:
    """The pieces from all ranks, and the window for pieces to them."""

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
