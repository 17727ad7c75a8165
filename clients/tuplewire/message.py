"""TaskMessage and the columns that carry many of them.

Source: Storm's `TaskMessage`. A batch is columns from end to end: no layer makes an object, a protobuf
message or a metric call per message; a TaskMessage exists only while somebody looks at one.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index as to_int
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeAlias, overload

from tuplewire.errors import MAX_TASK, MIN_TASK, InvalidTaskError, MalformedError, MessageError

if TYPE_CHECKING:
    import pyarrow as pa

SHUTDOWN_TASK = -1
"""The task id of Storm's shutdown notice; it ends a receive loop and never crosses a session."""

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""What may be handed over as a payload; it is kept as bytes, so later changes to a bytearray do no harm."""

_MAX_SERIALIZED_TASK = 2**15 - 1
_NO_SOURCE = -1


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One message: the destination task id and the payload."""

    task: int
    message: bytes

    def serialize(self) -> bytes:
        """Return Storm's bytes: the task id in two bytes, big-endian, then the payload.

        Raises InvalidTaskError for an id over 32767, which two bytes do not hold.
        """
        task = _integer(self.task)
        if not SHUTDOWN_TASK <= task <= _MAX_SERIALIZED_TASK:
            raise InvalidTaskError(
                f"task {task} does not fit Storm's two-byte task id (-1 to {_MAX_SERIALIZED_TASK}); "
                f"send it through a transport, whose task ids go to {MAX_TASK}"
            )
        return struct.pack(">h", task) + _as_bytes(self.message)

    @classmethod
    def deserialize(cls, packet: BytesLike) -> Self:
        """Read what serialize() wrote; MalformedError when it is too short, InvalidTaskError below -1."""
        packet = _as_bytes(packet)
        if len(packet) < 2:
            raise MalformedError(
                f"a serialized TaskMessage has a task id of two bytes, this is {len(packet)} byte(s) long"
            )
        (task,) = struct.unpack_from(">h", packet)
        if task < SHUTDOWN_TASK:
            raise InvalidTaskError(f"task {task} is negative; ids run from 0, and -1 is the shutdown notice")
        return cls(task, packet[2:])


def check_task(task: SupportsIndex) -> int:
    """Return a task id as an int; InvalidTaskError for anything but an integer from 0 to 2^31-1."""
    number = _integer(task)
    if not MIN_TASK <= number <= MAX_TASK:
        raise InvalidTaskError(f"task {number} is outside {MIN_TASK} to {MAX_TASK}")
    return number


def _integer(task: SupportsIndex) -> int:
    try:
        return to_int(task)
    except TypeError as error:
        raise InvalidTaskError(f"a task id is an integer, not {task!r} ({type(task).__name__})") from error


def _as_bytes(payload: Any) -> bytes:
    if type(payload) is bytes:
        return payload
    try:
        return memoryview(payload).tobytes()
    except TypeError as error:
        hint = "; encode it first" if isinstance(payload, str) else ""
        raise MessageError(f"a payload is bytes, not {type(payload).__name__}{hint}") from error


def _payload_column(payloads: Iterable[Any]) -> list[bytes]:
    column = list(payloads)
    if set(map(type, column)) <= {bytes}:  # nearly always, and found out without a loop in Python
        return column
    return [_as_bytes(payload) for payload in column]


def _task_column(tasks: SupportsIndex | Collection[SupportsIndex], count: int, name: str) -> array[int]:
    """Return so many checked ids in four bytes each."""
    if not isinstance(tasks, Collection):
        return array("i", [check_task(tasks)]) * count
    if len(tasks) != count:
        raise MalformedError(f"{len(tasks)} {name} and {count} payloads: the columns differ in length")
    values: list[Any] = list(tasks)
    try:
        column = array("i", values)
    except (OverflowError, TypeError):
        for task in values:
            check_task(task)
        raise
    if count:
        check_task(min(column))
    return column


def _to_wire(lengths: array[int]) -> bytes:
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths.tobytes()


def _from_wire(lengths: bytes) -> array[int]:
    column = array("I", lengths)
    if sys.byteorder == "big":
        column.byteswap()
    return column


class TaskGroup:
    """A column of messages from one source task to one destination task; never changed once made.

    task: the destination. source: the sending task, None when the sender is not a task.
    lengths: the length of each payload, four little-endian bytes each. data: the payloads end to end.
    redelivered: True when they may have been delivered before, to a process that has died.
    """

    __slots__ = ("data", "lengths", "redelivered", "source", "task")

    def __init__(
        self, task: int, source: int | None, lengths: bytes, data: bytes, *, redelivered: bool = False
    ) -> None:
        self.task = task
        self.source = source
        self.lengths = lengths
        self.data = data
        self.redelivered = redelivered

    @classmethod
    def of(
        cls, task: SupportsIndex, payloads: Iterable[BytesLike], source: SupportsIndex | None = None
    ) -> Self:
        """Build a group from payloads.

        Raises InvalidTaskError for an id outside 0 to 2^31-1, MessageError for a payload that is not bytes.
        """
        sender = None if source is None else check_task(source)
        return cls._joined(check_task(task), sender, _payload_column(payloads))

    @classmethod
    def _joined(cls, task: int, source: int | None, payloads: list[bytes]) -> Self:
        return cls(task, source, _to_wire(array("I", map(len, payloads))), b"".join(payloads))

    @classmethod
    def checked(
        cls, task: int, source: int | None, lengths: bytes, data: bytes, *, redelivered: bool = False
    ) -> Self:
        """Build a group from columns of unknown origin.

        Raises MalformedError when they do not hold together or are empty, InvalidTaskError for a bad id.
        """
        check_task(task)
        if source is not None:
            check_task(source)
        if len(lengths) % 4 or not lengths:
            raise MalformedError(
                f"a group to task {task} has {len(lengths)} bytes of lengths; each message takes four"
            )
        total = sum(_from_wire(lengths))
        if total != len(data):
            raise MalformedError(
                f"a group to task {task} says {total} bytes of payload and holds {len(data)}"
            )
        return cls(task, source, lengths, data, redelivered=redelivered)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.lengths) >> 2

    def __repr__(self) -> str:
        return f"<TaskGroup {self.source} -> {self.task}: {len(self)} messages, {len(self.data)} bytes>"

    def sizes(self) -> array[int]:
        """Return the length of each payload in bytes."""
        return _from_wire(self.lengths)

    def payloads(self) -> list[bytes]:
        """Return the payloads, one bytes object each."""
        data, lengths = self.data, _from_wire(self.lengths)
        count = len(lengths)
        if count == 1:
            return [data]
        size = lengths[0] if count else 0
        # Memory comparison, not a loop: are all lengths the same?
        if size and size * count == len(data) and self.lengths[4:] == self.lengths[:-4]:
            return [payload for (payload,) in struct.iter_unpack(f"{size}s", data)]
        payloads = []
        start = 0
        for length in lengths:
            end = start + length
            payloads.append(data[start:end])
            start = end
        return payloads

    def slice(self, start: int, stop: int) -> TaskGroup:
        """Return the messages from start up to stop (both within the group) as a group."""
        sizes = _from_wire(self.lengths)
        begin = sum(sizes[:start])
        return self._piece(start, stop, begin, begin + sum(sizes[start:stop]))

    def split(self, max_bytes: int) -> list[TaskGroup]:
        """Cut into groups of at most so many payload bytes, or of one message where that is larger."""
        pieces = []
        start = begin = end = 0
        sizes = _from_wire(self.lengths)
        for index, size in enumerate(sizes):
            if end + size - begin > max_bytes and index > start:
                pieces.append(self._piece(start, index, begin, end))
                start, begin = index, end
            end += size
        pieces.append(self._piece(start, len(sizes), begin, end))
        return pieces

    def _piece(self, start: int, stop: int, begin: int, end: int) -> TaskGroup:
        return TaskGroup(
            self.task,
            self.source,
            self.lengths[4 * start : 4 * stop],
            self.data[begin:end],
            redelivered=self.redelivered,
        )

    def as_redelivered(self) -> TaskGroup:
        """Return the same messages, marked as possibly delivered before."""
        return TaskGroup(self.task, self.source, self.lengths, self.data, redelivered=True)


class TaskMessageBatch(Sequence[TaskMessage]):
    """An immutable sequence of TaskMessages, held as columns.

    Iterating and indexing make TaskMessages; everything else (`groups`, slices, `+`) works on columns.
    A batch keeps the order in which it was built. What travels is its groups, so that another process
    sees the messages in order within each (source, task), which is the order that Tuplewire promises.

    A group's mark `redelivered` belongs to whole columns: it stays in `groups`, in plain slices of a batch
    built from groups, and in sums of such batches. Equality is of tasks, sources and payloads.
    """

    __slots__ = ("_columns", "_count", "_grouped", "_groups")

    _columns: tuple[array[int], array[int], list[bytes]] | None
    _groups: tuple[TaskGroup, ...] | None
    _grouped: bool  # the order is that of the groups; else that of the columns

    def __init__(self, messages: Iterable[TaskMessage] = (), source: SupportsIndex | None = None) -> None:
        """Build from TaskMessages, all from one source task (None: the sender is not a task).

        Raises InvalidTaskError for a bad task id, MessageError for what is no TaskMessage or no payload.
        """
        messages = list(messages)
        try:
            tasks = [message.task for message in messages]
            payloads = [message.message for message in messages]
        except AttributeError as error:
            wrong = next(m for m in messages if not isinstance(m, TaskMessage))
            raise MessageError(
                f"a batch is made of TaskMessages, and this is a {type(wrong).__name__}; "
                "for plain values use TaskMessageBatch.from_columns(tasks, payloads)"
            ) from error
        self._fill(tasks, payloads, source)

    @classmethod
    def from_columns(
        cls,
        tasks: SupportsIndex | Collection[SupportsIndex],
        payloads: Collection[BytesLike],
        sources: SupportsIndex | Collection[SupportsIndex] | None = None,
    ) -> Self:
        """Build from columns of equal length; an integer stands for a column of that value.

        Raises MalformedError when the lengths differ, InvalidTaskError for a bad task id, MessageError for a
        payload that is not bytes.
        """
        if not isinstance(tasks, Collection) and not isinstance(sources, Collection):
            return cls.from_groups([TaskGroup.of(tasks, payloads, sources)])
        batch = cls.__new__(cls)
        batch._fill(tasks, payloads, sources)
        return batch

    @classmethod
    def from_groups(cls, groups: Iterable[TaskGroup]) -> Self:
        """Build from groups, in their order, sharing their columns; groups without messages are left out."""
        batch = cls.__new__(cls)
        batch._groups = tuple(filter(len, groups))
        batch._count = sum(map(len, batch._groups))
        batch._columns = None
        batch._grouped = True
        return batch

    @classmethod
    def from_arrow(
        cls, tasks: SupportsIndex | pa.Array, payloads: pa.Array, source: SupportsIndex | None = None
    ) -> Self:
        """Build from Arrow arrays: integers without nulls, and binary or strings without nulls.

        Makes no Python object per message. The messages are sorted by task, in order within each.
        """
        from tuplewire.arrow import groups_from_arrow

        return cls.from_groups(groups_from_arrow(tasks, payloads, source))

    def to_arrow(self) -> pa.RecordBatch:
        """Return columns `task` (int32), `source` (int32, nullable) and `message` (binary)."""
        from tuplewire.arrow import record_batch

        return record_batch(self.groups)

    def _fill(
        self,
        tasks: SupportsIndex | Collection[SupportsIndex],
        payloads: Iterable[BytesLike],
        sources: SupportsIndex | Collection[SupportsIndex] | None,
    ) -> None:
        column = _payload_column(payloads)
        count = len(column)
        self._columns = (
            _task_column(tasks, count, "tasks"),
            array("i", [_NO_SOURCE]) * count if sources is None else _task_column(sources, count, "sources"),
            column,
        )
        self._count = count
        self._groups = None
        self._grouped = False

    def _as_columns(self) -> tuple[array[int], array[int], list[bytes]]:
        if self._columns is None:
            tasks, sources = array("i"), array("i")
            payloads: list[bytes] = []
            for group in self.groups:
                count = len(group)
                tasks.extend(array("i", [group.task]) * count)
                sources.extend(array("i", [_NO_SOURCE if group.source is None else group.source]) * count)
                payloads.extend(group.payloads())
            self._columns = (tasks, sources, payloads)
        return self._columns

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The batch by (source, task), in order within each; every group has at least one message."""
        if self._groups is None:
            tasks, sources, payloads = self._as_columns()
            if sources == sources[:1] * len(sources):  # all the same, as nearly always: compares memory
                by_task: defaultdict[int, list[bytes]] = defaultdict(list)
                for task, payload in zip(tasks, payloads, strict=True):
                    by_task[task].append(payload)
                buckets = {(sources[0], task): bucket for task, bucket in by_task.items()}
            else:
                buckets = defaultdict(list)
                for key, payload in zip(zip(sources, tasks, strict=True), payloads, strict=True):
                    buckets[key].append(payload)
            self._groups = tuple(
                TaskGroup._joined(task, None if source < 0 else source, bucket)
                for (source, task), bucket in buckets.items()
            )
        return self._groups

    @property
    def tasks(self) -> Sequence[int]:
        """The destination task of each message."""
        return self._as_columns()[0]

    @property
    def sources(self) -> Sequence[int]:
        """The source task of each message; -1 where the sender is not a task."""
        return self._as_columns()[1]

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payload of each message."""
        return self._as_columns()[2]

    @property
    def nbytes(self) -> int:
        """The size of all payloads, in bytes."""
        if self._groups is not None:
            return sum(len(group.data) for group in self._groups)
        return sum(map(len, self.payloads))

    def group_by_task(self) -> dict[int, TaskMessageBatch]:
        """Split by destination task, in order within each (source, task)."""
        by_task: dict[int, list[TaskGroup]] = {}
        for group in self.groups:
            by_task.setdefault(group.task, []).append(group)
        return {task: TaskMessageBatch.from_groups(groups) for task, groups in by_task.items()}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TaskMessage]:
        tasks, _, payloads = self._as_columns()
        return map(TaskMessage, tasks, payloads)

    @overload
    def __getitem__(self, index: int) -> TaskMessage: ...
    @overload
    def __getitem__(self, index: slice) -> TaskMessageBatch: ...
    def __getitem__(self, index: int | slice) -> TaskMessage | TaskMessageBatch:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if self._grouped and step == 1:
                return self._slice_groups(start, stop)
            tasks, sources, payloads = self._as_columns()
            return self._of_columns(tasks[index], sources[index], payloads[index])
        tasks, _, payloads = self._as_columns()
        return TaskMessage(tasks[index], payloads[index])

    @staticmethod
    def _of_columns(tasks: array[int], sources: array[int], payloads: list[bytes]) -> TaskMessageBatch:
        batch = TaskMessageBatch.__new__(TaskMessageBatch)
        batch._columns, batch._count, batch._groups = (tasks, sources, payloads), len(payloads), None
        batch._grouped = False
        return batch

    def _slice_groups(self, start: int, stop: int) -> TaskMessageBatch:
        groups = self.groups
        ends = list(accumulate(map(len, groups)))
        parts = []
        for position in range(bisect_right(ends, start), len(groups)):
            group, end = groups[position], ends[position]
            begin = end - len(group)
            if begin >= stop:
                break
            inner = (max(start - begin, 0), min(stop - begin, len(group)))
            parts.append(group if inner == (0, len(group)) else group.slice(*inner))
        return TaskMessageBatch.from_groups(parts)

    def __add__(self, other: object) -> TaskMessageBatch:
        if not isinstance(other, TaskMessageBatch):
            return NotImplemented
        if self._grouped and other._grouped:
            return TaskMessageBatch.from_groups(self.groups + other.groups)
        tasks, sources, payloads = self._as_columns()
        more_tasks, more_sources, more_payloads = other._as_columns()
        return self._of_columns(tasks + more_tasks, sources + more_sources, payloads + more_payloads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskMessageBatch):
            return NotImplemented
        return self._as_columns() == other._as_columns()

    def __hash__(self) -> int:
        tasks, sources, payloads = self._as_columns()
        return hash((tasks.tobytes(), sources.tobytes(), tuple(payloads)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._grouped:
            return (TaskMessageBatch.from_groups, (self.groups,))
        return (TaskMessageBatch._of_columns, self._as_columns())

    def __repr__(self) -> str:
        return f"<TaskMessageBatch: {len(self)} messages, {self.nbytes} bytes>"


def as_batch(
    messages: TaskMessageBatch | Iterable[TaskMessage], source: int | None = None
) -> TaskMessageBatch:
    """Return a batch as it is, and build one from any other iterable of TaskMessages."""
    return messages if isinstance(messages, TaskMessageBatch) else TaskMessageBatch(messages, source)
