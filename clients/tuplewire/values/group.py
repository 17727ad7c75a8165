"""TaskGroup: a column of messages between two tasks, and the checks on ids and payloads.

Used by all parts that send, queue or deliver messages. Owns the columns, which do not change. Thread-safe.
Design: docs/design/sessions.md ("Frames are columns"); docs/design/moves.md for `path`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import add, attrgetter
from operator import index as to_int
from typing import Any, Self, SupportsIndex, TypeAlias

from tuplewire.errors import (
    MAX_TASK,
    MIN_TASK,
    ConfigError,
    InvalidTaskError,
    MalformedError,
    MessageError,
    MessageTooLargeError,
)
from tuplewire.text.formatting import counted
from tuplewire.values.columns import cut_column, split_column

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""The types of a payload. A payload is copied to bytes, so later changes to a bytearray have no effect."""


def check_task(task: SupportsIndex) -> int:
    """Return a task id as an int. Raise InvalidTaskError unless it is an integer from 0 to 2^31-1."""
    try:
        number = to_int(task)
    except TypeError:
        number = None
    if number is None or type(task) is bool:
        raise InvalidTaskError(f"a task id is an integer, not {task!r} ({type(task).__name__})")
    if not MIN_TASK <= number <= MAX_TASK:
        raise InvalidTaskError(f"task {number} is outside {MIN_TASK} to {MAX_TASK}")
    return number


def check_whole(number: Any, name: str, stop: int | None = None) -> int:
    """Return a whole number as an int, from 0 and below `stop` if given; or raise ConfigError for `name`."""
    if not hasattr(number, "__index__"):
        raise ConfigError(f"{name} is a whole number, not {number!r:.100}")
    if stop is not None and not 0 <= to_int(number) < stop:
        raise ConfigError(f"{name} is a whole number from 0 to {stop - 1}, not {number!r:.100}")
    return to_int(number)


def as_bytes(value: Any, name: str = "a payload") -> bytes:
    """Return a value as bytes. Raise MessageError, which names it `name`, if it is not bytes-like."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError as error:
        hint = "; encode it first" if isinstance(value, str) else ""
        raise MessageError(f"{name} is bytes, not {type(value).__name__}{hint}") from error


def payload_column(payloads: Iterable[Any]) -> list[bytes]:
    """Return payloads as a list of bytes. Raise MessageError if one is not bytes-like."""
    column = list(payloads)
    if set(map(type, column)) <= {bytes}:  # nearly always true, and checked without a loop in Python
        return column
    return [as_bytes(payload) for payload in column]


def task_column(tasks: SupportsIndex | Collection[SupportsIndex], count: int, name: str) -> array[int]:
    """Return `count` checked ids as an array of four bytes each. Errors call the column `name`."""
    if not isinstance(tasks, Collection):
        return array("i", [check_task(tasks)]) * count
    if len(tasks) != count:
        raise MalformedError(f"{len(tasks)} {name} and {count} payloads: the columns differ in length")
    values: list[Any] = list(tasks)
    if bool in set(map(type, values)):  # an array would accept it as 0 or 1
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
"""Added to `path` for each hop. The entry worker's number is in the bits below."""
_UNQUEUED_HOP = 1 << 56
"""Also added for each hop since the messages last waited in the queue of their task's owner."""
get_count, SIZE_BYTES, PATH = attrgetter("count"), attrgetter("size_bytes"), attrgetter("path")
"""Functions that return these attributes of a group, for map(): a batch needs no loop in Python."""
MAX_FRAME_GROUPS = 1000
"""Limit for the groups of a frame. The receiver needs about 10 us for each and is blocked in that time."""
MAX_UNQUEUED_HOPS = 16
"""Messages with more hops are refused: only contradictory assignments cause this. A move takes a few hops."""


def flow_id_of(task: int, path: int) -> int:
    """Return the id of the flow of messages to a task; negative for forwarded messages.

    Each flow has a separate order and separate counts. While a task moves, returned messages must not queue
    behind messages that wait for them.
    """
    flow_path = flow_path_of(path)
    return ~(flow_path << 31 | task) if flow_path else task


def flow_path_of(path: int) -> int:
    """Return a path without its unqueued hops: messages with the same result are in one flow, in order."""
    return path % _UNQUEUED_HOP


def split_flow(flow_id: int) -> tuple[int, int]:
    """Return the task and the flow_path of a flow: the inverse of flow_id_of()."""
    return (flow_id, 0) if flow_id >= 0 else (~flow_id & MAX_TASK, ~flow_id >> 31)


def entry_worker(path: int) -> int:
    """Return the number of the worker that accepted messages from a program; 0 is the sending worker."""
    return path % _HOP


def worker_number(worker_id: str, incarnation: int) -> int:
    """Return the number of a worker's process in the path of forwarded messages, 1 to 2^32-1."""
    return zlib.crc32(f"{worker_id} {incarnation}".encode()) or 1  # 0 stands for the sending worker


@dataclass(slots=True, eq=False)
class TaskGroup:
    """A column of messages from one source task to one destination task. Immutable; thread-safe.

    Attributes:
        source: The sending task; None if the sender is not a task.
        lengths: The length of each payload, in four little-endian bytes.
        data: The concatenated payloads.
        count: The number of messages.
        header_lengths: As `lengths`, for encoded keys and headers (header_data); empty if there are none.
        size_bytes: Bytes of payloads, keys and headers, as counted by limits and credit.
        redelivered: True if the messages may have been delivered before.
        path: Set between workers. Low 32 bits: the number of the entry worker, which accepted the
            messages from a program. Next 24: hops of these or earlier messages since then. Upper 8: hops
            since they last waited in the queue of their task's owner. 0: the sending worker is the entry
            worker, and they have not waited in its queue for the task.
        entry_sequence: Set between workers. The number of the first message among all messages to the task
            that the entry worker accepted, from 1. The numbers of later messages follow without gaps.
        flow_id: See flow_id_of().
        accepted_micros: The time at which the sender, or else the entry worker, accepted the first message; 0
            if unknown. In microseconds since 1970 by that host's clock, exact to a millisecond, and constant.
        retained_upstream: At a worker, True if an upstream process retains the messages until they are
            processed. They are then not lost if the worker fails.
    """

    task: int
    source: int | None
    lengths: bytes
    data: bytes
    _: KW_ONLY
    redelivered: bool = False
    path: int = 0
    entry_sequence: int = 0
    accepted_micros: int = 0
    retained_upstream: bool = False
    header_lengths: bytes = b""
    header_data: bytes = b""
    flow_id: int = field(init=False)
    size_bytes: int = field(init=False)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.lengths) >> 2
        self.flow_id = flow_id_of(self.task, self.path) if self.path else self.task
        self.size_bytes = len(self.data) + len(self.header_data) if self.header_data else len(self.data)

    @classmethod
    def of(
        cls, task: SupportsIndex, payloads: Iterable[BytesLike], source: SupportsIndex | None = None
    ) -> Self:
        """Build a group from payloads.

        Raises:
            InvalidTaskError: A task id is outside 0 to 2^31-1.
            MessageError: A payload is not bytes.
        """
        sender = None if source is None else check_task(source)
        number = check_task(task)
        column = payloads if isinstance(payloads, list) else list(payloads)
        try:
            sizes, data = array("I", map(len, column)), b"".join(column)
        except TypeError:
            return cls.from_checked(number, sender, payload_column(column))
        if sum(sizes) != len(data):  # a memoryview with elements larger than a byte
            return cls.from_checked(number, sender, payload_column(column))
        return cls(number, sender, sizes.tobytes(), data)

    @classmethod
    def from_checked(
        cls, task: int, source: int | None, payloads: list[bytes], headers: list[bytes] | None = None
    ) -> Self:
        """Build a group from checked ids and bytes. `headers` has each message's encoded key and headers."""
        lengths, data = array("I", map(len, payloads)).tobytes(), b"".join(payloads)
        if headers is None or not any(headers):
            return cls(task, source, lengths, data)
        header_lengths = array("I", map(len, headers)).tobytes()
        return cls(task, source, lengths, data, header_lengths=header_lengths, header_data=b"".join(headers))

    def validate(self) -> Self:
        """Check the columns of a group of unknown origin, and return the group.

        Raises MalformedError if the columns are inconsistent or empty, InvalidTaskError for an invalid id.
        """
        task = self.task
        for each in (task, self.source or 0):
            if not MIN_TASK <= each <= MAX_TASK:
                check_task(each)
        if len(self.lengths) % 4 or not self.lengths:
            raise MalformedError(
                f"a group to task {task} has {len(self.lengths)} bytes of lengths; each message takes four"
            )
        if (total := sum(array("I", self.lengths))) != len(self.data):
            raise MalformedError(
                f"a group to task {task} has lengths for {total} bytes and {len(self.data)} bytes of payload"
            )
        if self.header_lengths or self.header_data:
            self._check_headers()
        return self

    def _check_headers(self) -> None:
        if len(self.header_lengths) != len(self.lengths):
            raise MalformedError(
                f"a group to task {self.task} has {len(self.header_lengths)} bytes of header_lengths for "
                f"{self.count} messages; each takes four, or the column is absent"
            )
        if (total := sum(self.header_sizes())) != len(self.header_data):
            raise MalformedError(
                f"{len(self.header_data)} bytes of headers to task {self.task}, but lengths for {total}"
            )

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        size = f"{counted(len(self), 'message')}, {counted(len(self.data), 'byte')}"
        return f"<TaskGroup {self.source} -> {self.task}: {size}>"

    @property
    def next_entry_sequence(self) -> int:
        """The entry_sequence after the last message; 0 if the messages have no entry_sequence."""
        return self.entry_sequence and self.entry_sequence + self.count

    def payload_sizes(self) -> array[int]:
        """Return the length of each payload in bytes."""
        return array("I", self.lengths)

    def header_sizes(self) -> array[int]:
        """Return the length of each message's encoded key and headers; empty without keys and headers."""
        return array("I", self.header_lengths)

    def message_sizes(self) -> array[int]:
        """Return the size of each message as counted by limits and credit: payload, key and headers."""
        if not self.header_lengths:
            return self.payload_sizes()
        return array("I", map(add, self.payload_sizes(), self.header_sizes()))

    def payloads(self) -> list[bytes]:
        """Return each payload as a bytes object."""
        return [self.data] if self.count == 1 else split_column(self.lengths, self.data)

    def encoded_headers(self) -> list[bytes] | None:
        """Return each message's encoded key and headers (values/headers.py); None if there are none."""
        return split_column(self.header_lengths, self.header_data) if self.header_lengths else None

    def slice(self, start: int, stop: int) -> TaskGroup:
        """Return the messages from `start` up to `stop` (both within the group) as a group."""
        return self.cut((start, stop))[0]

    def cut(self, bounds: Sequence[int]) -> list[TaskGroup]:
        """Cut the group at increasing indexes; return the messages between consecutive bounds as groups."""
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

    # All copies use replace(), so a field that is added later is never lost in a copy.

    def with_headers(self, headers: Sequence[bytes]) -> TaskGroup:
        """Return the same messages with these encoded keys and headers, one for each message."""
        lengths = array("I", map(len, headers)).tobytes()
        return replace(self, header_lengths=lengths, header_data=b"".join(headers))

    def without_routing(self) -> TaskGroup:
        """Return the same messages without the fields that only workers set, for sending them again.

        `redelivered` and the time of acceptance stay.
        """
        if self.path or self.entry_sequence or self.retained_upstream:
            return replace(self, path=0, entry_sequence=0, retained_upstream=False)
        return self

    def as_redelivered(self) -> TaskGroup:
        """Return the same messages, marked as possibly delivered before."""
        return replace(self, redelivered=True)

    def numbered(self, entry_sequence: int, now_micros: int, *, retained_upstream: bool = False) -> TaskGroup:
        """Return the same messages with the entry sequence that their entry worker assigned.

        `now_micros`: the time of acceptance, unless it has one. `retained_upstream`: the sender retains them.
        """
        return replace(
            self,
            entry_sequence=entry_sequence,
            accepted_micros=self.accepted_micros or now_micros,
            retained_upstream=retained_upstream,
        )

    def with_default_time(self, micros: int) -> TaskGroup:
        """Return the same messages with this time of acceptance, unless the group has one."""
        return self if self.accepted_micros else replace(self, accepted_micros=micros)

    def as_forwarded(self, worker_number: int, min_flow_path: int = 0) -> TaskGroup:
        """Return a copy that is forwarded once more; `worker_number` is the entry worker if none is set.

        `min_flow_path`: flow_path_of() earlier messages of this entry worker. The new path is not lower, so
        the messages do not overtake the earlier ones.
        """
        path = (self.path or worker_number) + _HOP + _UNQUEUED_HOP
        return replace(self, path=path + max(0, min_flow_path - flow_path_of(path)))

    @property
    def unqueued_hops(self) -> int:
        """The number of hops since the messages last waited in the queue of their task's owner."""
        return self.path // _UNQUEUED_HOP

    def as_dequeued(self, entry_worker: int) -> TaskGroup:
        """Return the same messages as they leave a queue, without unqueued hops: a move is not a loop.

        `entry_worker` is the number of this worker if it accepted the messages from a program, otherwise 0.
        The messages then need no other credit, because they use the credit of this worker.
        """
        if self.path:
            return replace(self, path=flow_path_of(self.path)) if self.unqueued_hops else self
        return replace(self, path=entry_worker) if entry_worker else self

    @property
    def payload_only(self) -> bool:
        """True if only payloads, task and source are set, as for most messages that programs send."""
        return not (
            self.redelivered
            or self.path
            or self.entry_sequence
            or self.accepted_micros
            or self.retained_upstream
            or self.header_lengths
        )

    def can_follow(self, other: TaskGroup) -> bool:
        """Return True if these messages may follow the messages of `other` in one column."""
        return (
            self.flow_id == other.flow_id
            and self.source == other.source
            and self.redelivered == other.redelivered
            and self.retained_upstream == other.retained_upstream
            and (not self.header_lengths) == (not other.header_lengths)
        )


def same_millisecond(micros: int, other_micros: int) -> bool:
    """Return True if two times of acceptance may be merged because they are in the same millisecond.

    A time in milliseconds is then the same for every reader, regardless of where messages were merged.
    """
    return micros // 1000 == other_micros // 1000


def check_sizes(groups: Iterable[TaskGroup], limit_bytes: int) -> None:
    """Raise MessageTooLargeError if a message, with its key and headers, exceeds the limit."""
    for group in groups:
        if group.size_bytes > limit_bytes and (largest := max(group.message_sizes())) > limit_bytes:
            raise MessageTooLargeError(group.task, largest, limit_bytes)
