"""TaskGroup: the column in which messages travel, and the checks on ids and payloads."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import add
from operator import index as to_int
from typing import Any, Self, SupportsIndex, TypeAlias

from tuplewire.errors import (
    MAX_TASK,
    MIN_TASK,
    InvalidTaskError,
    MalformedError,
    MessageError,
    MessageTooLargeError,
)
from tuplewire.values.columns import cut_column, sizes_of, to_wire, values_of

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""The types of a payload. It is copied to bytes, so later changes to a bytearray do no harm."""


def check_task(task: SupportsIndex) -> int:
    """Return a task id as an int; InvalidTaskError for anything but an integer from 0 to 2^31-1."""
    number = as_task(task)
    if not MIN_TASK <= number <= MAX_TASK:
        raise InvalidTaskError(f"task {number} is outside {MIN_TASK} to {MAX_TASK}")
    return number


def as_task(task: SupportsIndex) -> int:
    """Return an id as an int (numpy's too); InvalidTaskError if it is no integer."""
    try:
        if type(task) is not bool:
            return to_int(task)
    except TypeError:
        pass
    raise InvalidTaskError(f"a task id is an integer, not {task!r} ({type(task).__name__})")


def as_bytes(value: Any, what: str = "a payload") -> bytes:
    """Return a payload, or what it is called, as bytes; MessageError if it is not bytes-like."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError as error:
        hint = "; encode it first" if isinstance(value, str) else ""
        raise MessageError(f"{what} is bytes, not {type(value).__name__}{hint}") from error


def payload_column(payloads: Iterable[Any]) -> list[bytes]:
    """Return payloads as a list of bytes; MessageError if one is not bytes-like."""
    column = list(payloads)
    if set(map(type, column)) <= {bytes}:  # nearly always, and found out without a loop in Python
        return column
    return [as_bytes(payload) for payload in column]


def task_column(tasks: SupportsIndex | Collection[SupportsIndex], count: int, name: str) -> array[int]:
    """Return so many ids, checked, in four bytes each."""
    if not isinstance(tasks, Collection):
        return array("i", [check_task(tasks)]) * count
    if len(tasks) != count:
        raise MalformedError(f"{len(tasks)} {name} and {count} payloads: the columns differ in length")
    values: list[Any] = list(tasks)
    if bool in set(map(type, values)):  # an array takes it for 0 or 1
        check_task(next(each for each in values if type(each) is bool))
    try:
        column = array("i", values)
    except (OverflowError, TypeError):
        for task in values:
            check_task(task)
        raise
    if count:
        check_task(min(column))
    return column


_HOP = 1 << 32
"""`forwarded` is the entry worker's number, less than this, plus this once for each hop since."""
_UNQUEUED_HOP = 1 << 56
"""It has this added, too, for each hop since the messages last waited in the queue of their task's worker."""
MAX_FRAME_GROUPS = 1000
"""The most groups of a frame. The receiver spends about 10 us on each, and serves no other session then."""
MAX_UNQUEUED_HOPS = 16
"""More of these have no other reason than assignments that contradict each other. A move takes a few."""


def flow_of(task: int, forwarded: int) -> int:
    """Return the flow of a task's messages, or (negative) of messages that were forwarded to it.

    Each flow has an order of its own, and is counted apart. While a task moves, messages that come back must
    not queue behind messages that wait for them.
    """
    route = route_of(forwarded)
    return ~(route << 31 | task) if route else task


def route_of(forwarded: int) -> int:
    """Return what of `forwarded` tells one order of messages from another."""
    return forwarded % _UNQUEUED_HOP


def task_and_forwarded(flow: int) -> tuple[int, int]:
    """Return the task and `forwarded` of a flow: the inverse of flow_of."""
    return (flow, 0) if flow >= 0 else (~flow & MAX_TASK, ~flow >> 31)


def entry_worker(forwarded: int) -> int:
    """Return the number of the worker that accepted messages from a program; 0: the one that sends them."""
    return forwarded % _HOP


@dataclass(slots=True, eq=False)
class TaskGroup:
    """A column of messages from one source task to one destination task; immutable.

    task: the destination. source: the sending task, None when the sender is not a task.
    lengths: the length of each payload, four little-endian bytes each. data: the payloads end to end.
    header_lengths, header_data: the same of the keys and headers, encoded (see values/headers.py); both are
    empty where no message has any. size_bytes: payloads, keys and headers, which limits and credit count.
    redelivered: True when they may have been delivered before, to a process that has died.
    forwarded: between workers. Low 32 bits: the number of the entry worker, which accepted the messages from
    a program. The next 24: how often they, or earlier ones, were forwarded since; the upper 8: how often they
    were since they last waited in the queue of their task's worker. 0: the sending worker is the entry
    worker, and they have not waited in its own queue for the task.
    entry_sequence: between workers. The number of the first message among those to the task that the entry
    worker accepted, from 1; the others follow by one. flow: see flow_of.
    accepted_micros: when the first of them was accepted by its sender, or by the entry worker where the
    sender did not say it: microseconds since 1970 by the clock of that host, exact to a millisecond; 0: not
    known. It stays the same on the way to the consumer, also through a move.
    kept: at a worker, whether somebody before it keeps them until they are processed: they survive its death.
    """

    task: int
    source: int | None
    lengths: bytes
    data: bytes
    _: KW_ONLY
    redelivered: bool = False
    forwarded: int = 0
    entry_sequence: int = 0
    accepted_micros: int = 0
    kept: bool = False
    header_lengths: bytes = b""
    header_data: bytes = b""
    flow: int = field(init=False)
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.flow = flow_of(self.task, self.forwarded) if self.forwarded else self.task
        self.size_bytes = len(self.data) + len(self.header_data) if self.header_data else len(self.data)

    @classmethod
    def of(
        cls, task: SupportsIndex, payloads: Iterable[BytesLike], source: SupportsIndex | None = None
    ) -> Self:
        """Build a group from payloads.

        Raises InvalidTaskError for an id outside 0 to 2^31-1, MessageError for a payload that is not bytes.
        """
        sender = None if source is None else check_task(source)
        number = check_task(task)
        column = payloads if isinstance(payloads, list) else list(payloads)
        try:
            sizes, data = array("I", map(len, column)), b"".join(column)
        except TypeError:
            return cls.joined(number, sender, payload_column(column))
        if sum(sizes) != len(data):  # memoryviews of something larger than bytes
            return cls.joined(number, sender, payload_column(column))
        return cls(number, sender, to_wire(sizes), data)

    @classmethod
    def joined(
        cls, task: int, source: int | None, payloads: list[bytes], headers: list[bytes] | None = None
    ) -> Self:
        """Build a group from checked ids and bytes. headers: each message's key and headers, encoded."""
        lengths, data = to_wire(array("I", map(len, payloads))), b"".join(payloads)
        if headers is None or not any(headers):
            return cls(task, source, lengths, data)
        header_lengths = to_wire(array("I", map(len, headers)))
        return cls(task, source, lengths, data, header_lengths=header_lengths, header_data=b"".join(headers))

    def checked(self) -> Self:
        """Return the group, if its columns of unknown origin are sound.

        Raises MalformedError when they do not hold together or are empty, InvalidTaskError for a bad id.
        """
        check_task(self.task)
        if self.source is not None:
            check_task(self.source)
        if len(self.lengths) % 4 or not self.lengths:
            raise MalformedError(
                f"a group to task {self.task} has {len(self.lengths)} bytes of lengths; "
                "each message takes four"
            )
        total = sum(self.sizes())
        if total != len(self.data):
            raise MalformedError(
                f"a group to task {self.task} says {total} bytes of payload and holds {len(self.data)}"
            )
        if self.header_lengths or self.header_data:
            self._check_headers()
        return self

    def _check_headers(self) -> None:
        if len(self.header_lengths) != len(self.lengths):
            raise MalformedError(
                f"a group to task {self.task} has {len(self.header_lengths)} bytes of header_lengths for "
                f"{len(self)} messages; each takes four, or the column is absent"
            )
        total = sum(self.header_sizes())
        if total != len(self.header_data):
            raise MalformedError(
                f"a group to task {self.task} says {total} bytes of headers and holds {len(self.header_data)}"
            )

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.lengths) >> 2

    def __repr__(self) -> str:
        return f"<TaskGroup {self.source} -> {self.task}: {len(self)} messages, {len(self.data)} bytes>"

    @property
    def end(self) -> int:
        """The entry_sequence of the message after these; 0 if they have none."""
        return self.entry_sequence and self.entry_sequence + len(self)

    def sizes(self) -> array[int]:
        """Return the length of each payload in bytes."""
        return sizes_of(self.lengths)

    def header_sizes(self) -> array[int]:
        """Return the length of each message's encoded key and headers; empty if none has any."""
        return sizes_of(self.header_lengths)

    def message_sizes(self) -> array[int]:
        """Return the bytes of each message that limits and credit count: payload, key and headers."""
        if not self.header_lengths:
            return self.sizes()
        return array("I", map(add, self.sizes(), self.header_sizes()))

    def payloads(self) -> list[bytes]:
        """Return the payloads, one bytes object each."""
        return values_of(self.lengths, self.data)

    def encoded_headers(self) -> list[bytes] | None:
        """Return each message's key and headers, encoded (see values/headers.py); None if none has any."""
        return values_of(self.header_lengths, self.header_data) if self.header_lengths else None

    def slice(self, start: int, stop: int) -> TaskGroup:
        """Return the messages from start up to stop (both within the group) as a group."""
        return self.cut((start, stop))[0]

    def split(self, max_bytes: int) -> list[TaskGroup]:
        """Cut into groups of at most so many bytes (see size_bytes), or of one larger message."""
        bounds = [0]
        begin = end = 0
        sizes = self.message_sizes()
        for index, size in enumerate(sizes):
            if end + size - begin > max_bytes and index > bounds[-1]:
                bounds.append(index)
                begin = end
            end += size
        return self.cut((*bounds, len(sizes)))

    def cut(self, bounds: Sequence[int]) -> list[TaskGroup]:
        """Return the messages from each of these indexes, which grow, up to the next one, as groups."""
        columns = cut_column(self.lengths, self.data, bounds)
        headers = cut_column(self.header_lengths, self.header_data, bounds)
        return [
            replace(
                self,
                lengths=lengths,
                data=data,
                header_lengths=header_lengths if header_data else b"",
                header_data=header_data,
                entry_sequence=self.entry_sequence and self.entry_sequence + start,
            )
            for start, (lengths, data), (header_lengths, header_data) in zip(
                bounds[:-1], columns, headers, strict=True
            )
        ]

    # Copies are made by replace() alone: it keeps every field that the copy does not change.

    def with_source(self, source: int) -> TaskGroup:
        """Return the same messages as sent by a task."""
        return replace(self, source=source)

    def as_new(self) -> TaskGroup:
        """Return the same messages, as a process sends them that is not a worker on their way.

        Fields that only workers set are cleared. The mark and the time of acceptance stay.
        """
        if not (self.forwarded or self.entry_sequence or self.kept):
            return self
        return replace(self, forwarded=0, entry_sequence=0, kept=False)

    def as_redelivered(self) -> TaskGroup:
        """Return the same messages, marked as possibly delivered before."""
        return replace(self, redelivered=True)

    def at(self, entry_sequence: int, now_micros: int, *, kept: bool = False) -> TaskGroup:
        """Return the same messages, with the sequence at which their entry worker accepted them.

        now_micros: the time of acceptance, if the group has none yet. kept: whether their program keeps them.
        """
        return replace(
            self,
            entry_sequence=entry_sequence,
            accepted_micros=self.accepted_micros or now_micros,
            kept=kept,
        )

    def accepted(self, micros: int) -> TaskGroup:
        """Return the same messages, accepted at this time if they have none yet."""
        return self if self.accepted_micros else replace(self, accepted_micros=micros)

    def passed_on(self, worker: int, after: int = 0) -> TaskGroup:
        """Return the same messages, as forwarded for a worker (its number); the entry worker stays named.

        after: the route (see route_of) of earlier messages of the same entry worker. They take no lower one,
        and so do not overtake these.
        """
        forwarded = (self.forwarded or worker) + _HOP + _UNQUEUED_HOP
        return replace(self, forwarded=forwarded + max(0, after - route_of(forwarded)))

    @property
    def unqueued_hops(self) -> int:
        """How often they were forwarded since they last waited in the queue of their task's worker."""
        return self.forwarded // _UNQUEUED_HOP

    def out_of_queue(self, entered: int) -> TaskGroup:
        """Return the same messages, as they leave a queue: a task that moves again is no circle.

        entered: the number of this worker if it has accepted them from a program, else 0. They then need no
        credit elsewhere, having that of this worker.
        """
        if self.forwarded:
            return replace(self, forwarded=route_of(self.forwarded)) if self.unqueued_hops else self
        return replace(self, forwarded=entered) if entered else self

    @property
    def plain(self) -> bool:
        """Whether its payloads, task and source are all there is to say of it, as of most of what is sent."""
        return not (
            self.redelivered
            or self.forwarded
            or self.entry_sequence
            or self.accepted_micros
            or self.kept
            or self.header_lengths
        )

    def joins(self, other: TaskGroup) -> bool:
        """Whether these messages may follow the other's in one column."""
        return (
            self.flow == other.flow
            and self.source == other.source
            and self.redelivered == other.redelivered
            and self.kept == other.kept
            and (not self.header_lengths) == (not other.header_lengths)
        )


def same_time(micros: int, other_micros: int) -> bool:
    """Whether two messages count as accepted at one time, and may share what is told of it.

    They are of one whole millisecond, wherever on their way they are put together: a time that is told to the
    millisecond is the same for everybody who asks for the message.
    """
    return micros // 1000 == other_micros // 1000


def check_sizes(groups: Iterable[TaskGroup], limit_bytes: int) -> None:
    """Raise MessageTooLargeError when one payload is over the limit."""
    for group in groups:
        if group.size_bytes > limit_bytes and (largest := max(group.message_sizes())) > limit_bytes:
            raise MessageTooLargeError(group.task, largest, limit_bytes)
