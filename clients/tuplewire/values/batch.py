"""TaskMessageBatch: many messages, stored as columns.

A batch stays in columns on its whole path: only keys and headers need an object or protobuf message each
per message. Used by clients, subscriptions, Spark and programs. Owns its columns, which do not change.
Thread-safe. Design: docs/design/sessions.md ("Frames are columns").
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeAlias, overload

from tuplewire.errors import MessageError
from tuplewire.text.formatting import counted, html_table
from tuplewire.values.group import BytesLike, TaskGroup, get_count, payload_column, task_column
from tuplewire.values.headers import decode_headers, encode_header_column
from tuplewire.values.message import DecodedHeaders, Headers, TaskMessage, encoded_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_HEADER_LENGTHS = attrgetter("header_lengths")
_NO_SOURCE = -1
_MAX_SHOWN = 10
"""The number of messages of a batch that a notebook shows."""
_Columns: TypeAlias = "tuple[array[int], array[int], list[bytes], list[bytes] | None]"
"""Tasks, sources, payloads, and encoded keys and headers; None if no message has any."""


class TaskMessageBatch(Sequence[TaskMessage]):
    """An immutable sequence of TaskMessages, stored as columns. Thread-safe.

    Iterating and indexing create TaskMessages; all other operations (`groups`, slices, `+`) use columns. A
    batch keeps its order. It is sent as groups: receivers get the messages in order for each (source, task).

    Slices (step 1) and sums of batches that were built from groups preserve `redelivered` of the groups. Two
    batches are equal if their tasks, sources, payloads, keys and headers are equal.
    """

    __slots__ = ("_columns", "_count", "_grouped", "_groups")

    _columns: _Columns | None
    _groups: tuple[TaskGroup, ...] | None
    _grouped: bool  # the order is that of the groups; else that of the columns

    def __init__(self, messages: Iterable[TaskMessage] = (), *, source: SupportsIndex | None = None) -> None:
        """Build a batch from TaskMessages of one source task (None if the sender is not a task).

        Raises:
            InvalidTaskError: The source is not a valid task id.
            MessageError: An object is not a TaskMessage.
        """
        messages = list(messages)
        try:
            tasks = [message.task for message in messages]
            payloads = [message.message for message in messages]
            headers = list(map(encoded_of, messages))
        except AttributeError as error:
            wrong = next(m for m in messages if not isinstance(m, TaskMessage))
            raise MessageError(
                f"a batch is made of TaskMessages, and this is a {type(wrong).__name__}; "
                "for plain values use TaskMessageBatch.from_columns(tasks, payloads)"
            ) from error
        self._hold(_columns_of(tasks, payloads, source, headers if any(headers) else None))

    @classmethod
    def from_columns(
        cls,
        tasks: SupportsIndex | Collection[SupportsIndex],
        payloads: Collection[BytesLike],
        *,
        sources: SupportsIndex | Collection[SupportsIndex] | None = None,
        keys: Collection[bytes | None] | None = None,
        headers: Collection[Headers | None] | None = None,
    ) -> Self:
        """Build a batch from columns of equal length. An integer stands for a column with that value.

        Args:
            sources: The sending tasks; None if the sender is not a task.
            keys, headers: For each message, a value as in TaskMessage(), or None.

        Raises:
            MalformedError: The lengths differ.
            InvalidTaskError: A task id is invalid.
            MessageError: A payload or key is not bytes, or headers are not pairs.
        """
        encoded = None
        if keys is not None or headers is not None:
            encoded = encode_header_column(keys, headers, len(payloads))
        elif not isinstance(tasks, Collection) and not isinstance(sources, Collection):
            return cls.from_groups([TaskGroup.of(tasks, payloads, sources)])
        return cls.__new__(cls)._hold(_columns_of(tasks, payloads, sources, encoded))

    @classmethod
    def from_groups(cls, groups: Iterable[TaskGroup]) -> Self:
        """Build a batch from groups, in their order, sharing their columns. Empty groups are omitted."""
        return cls.__new__(cls)._hold(None, tuple(filter(get_count, groups)))

    @classmethod
    def from_arrow(
        cls,
        tasks: SupportsIndex | pa.Array,
        payloads: pa.Array,
        *,
        source: SupportsIndex | None = None,
        keys: pa.Array | None = None,
        headers: pa.Array | None = None,
    ) -> Self:
        """Build a batch from Arrow arrays without creating a Python object per message.

        The messages are sorted by task. Messages to one task keep their order.

        Args:
            tasks: Integers without nulls, or one task id.
            payloads: Binary or strings without nulls.
            source: The sending task; None if the sender is not a task.
            keys: Binary or strings; null for a message without a key.
            headers: Lists of structs of name and value, as from Spark's Kafka source; null: no headers.

        Raises:
            MalformedError: A column has nulls, a wrong type or length, or 2 GiB; or a header has no name.
            InvalidTaskError: A task id is outside 0 to 2^31-1.
        """
        from tuplewire.values.arrow import encode_columns, groups_from_arrow

        encoded = encode_columns(keys, headers, len(payloads))
        return cls.from_groups(groups_from_arrow(tasks, payloads, source, encoded))

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """Return rows, in order, with `task` (int32), `source` (int32 or null) and `message` (binary).

        Args:
            headers: Append the nullable columns `key` (binary) and `headers` (lists of {key, value}).

        Raises:
            MalformedError: A column has 2 GiB or more, or a program has sent an invalid key or headers.
        """
        from tuplewire.values.arrow import build_record_batch, key_and_headers

        if self._grouped:
            groups = self.groups
            batch = build_record_batch(groups)
        else:
            tasks, sources, payloads, encoded = self._as_columns()
            groups = (TaskGroup.from_checked(0, None, payloads, encoded if headers else None),)
            batch = build_record_batch(groups, tasks, sources)
        if not headers:
            return batch
        key, pairs = key_and_headers(groups)
        return batch.append_column("key", key).append_column("headers", pairs)

    def to_pandas(self, *, headers: bool = False) -> pd.DataFrame:
        """Return the columns of to_arrow(), with its errors, as a DataFrame. `source` is a nullable Int32."""
        frame = self.to_arrow(headers=headers).to_pandas()
        frame["source"] = frame["source"].astype("Int32")
        return frame

    def _hold(self, columns: _Columns | None, groups: tuple[TaskGroup, ...] | None = None) -> Self:
        self._columns, self._groups = columns, groups
        self._count = len(columns[2]) if columns is not None else sum(map(get_count, groups or ()))
        self._grouped = columns is None
        return self

    def _as_columns(self) -> _Columns:
        if self._columns is None:
            tasks, sources = array("i"), array("i")
            payloads: list[bytes] = []
            groups = self.groups
            headers: list[bytes] | None = [] if any(map(_HEADER_LENGTHS, groups)) else None
            for group in groups:
                count = group.count
                if headers is not None:
                    headers.extend(group.encoded_headers() or [b""] * count)
                tasks.extend(array("i", [group.task]) * count)
                sources.extend(array("i", [_NO_SOURCE if group.source is None else group.source]) * count)
                payloads.extend(group.payloads())
            self._columns = (tasks, sources, payloads, headers)
        return self._columns

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The messages grouped by (source, task), in order within each group. No group is empty."""
        if self._groups is None:
            tasks, sources, payloads, headers = self._as_columns()
            has_one_source = sources == sources[:1] * len(sources)  # one source: nearly always, and faster
            group_keys: Sequence[Any] = tasks if has_one_source else list(zip(tasks, sources, strict=True))
            encoded = {} if headers is None else _group_by_key(group_keys, headers)
            groups = []
            for place, bucket in _group_by_key(group_keys, payloads).items():
                task, source = (place, sources[0]) if has_one_source else place
                groups.append(
                    TaskGroup.from_checked(task, None if source < 0 else source, bucket, encoded.get(place))
                )
            self._groups = tuple(groups)
        return self._groups

    @property
    def tasks(self) -> Sequence[int]:
        """The destination task of each message."""
        return self._as_columns()[0]

    @property
    def sources(self) -> Sequence[int]:
        """The source task of each message; -1 if the sender is not a task."""
        return self._as_columns()[1]

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payload of each message."""
        return self._as_columns()[2]

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The key of each message, or None. Raises MalformedError like TaskMessage.headers."""
        return [key for key, _ in self._decoded()]

    @property
    def headers(self) -> Sequence[DecodedHeaders]:
        """The headers of each message. Raises MalformedError like TaskMessage.headers."""
        return [headers for _, headers in self._decoded()]

    def _decoded(self) -> list[tuple[bytes | None, DecodedHeaders]]:
        headers = self._as_columns()[3]
        if headers is None:
            return [(None, ())] * len(self)
        return list(map(decode_headers, headers))

    @property
    def nbytes(self) -> int:
        """The size of all payloads, in bytes."""
        if self._groups is not None:
            return sum(len(group.data) for group in self._groups)
        return sum(map(len, self.payloads))

    def group_by_task(self) -> dict[int, TaskMessageBatch]:
        """Split the batch by destination task. The order within each (source, task) is kept."""
        by_task: dict[int, list[TaskGroup]] = {}
        for group in self.groups:
            by_task.setdefault(group.task, []).append(group)
        return {task: TaskMessageBatch.from_groups(groups) for task, groups in by_task.items()}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TaskMessage]:
        tasks, _, payloads, headers = self._as_columns()
        return map(TaskMessage.from_checked, tasks, payloads, repeat(b"") if headers is None else headers)

    @overload
    def __getitem__(self, index: int) -> TaskMessage: ...
    @overload
    def __getitem__(self, index: slice) -> TaskMessageBatch: ...
    def __getitem__(self, index: int | slice) -> TaskMessage | TaskMessageBatch:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if self._grouped and step == 1:
                return self._slice_groups(start, stop)
            tasks, sources, payloads, headers = self._as_columns()
            return self._of_columns(
                tasks[index], sources[index], payloads[index], None if headers is None else headers[index]
            )
        tasks, _, payloads, headers = self._as_columns()
        return TaskMessage.from_checked(
            tasks[index], payloads[index], b"" if headers is None else headers[index]
        )

    @staticmethod
    def _of_columns(
        tasks: array[int], sources: array[int], payloads: list[bytes], headers: list[bytes] | None
    ) -> TaskMessageBatch:
        columns = tasks, sources, payloads, headers if any(headers or ()) else None
        return TaskMessageBatch.__new__(TaskMessageBatch)._hold(columns)

    def _slice_groups(self, start: int, stop: int) -> TaskMessageBatch:
        parts = []
        end = 0
        for group in self.groups:
            begin, end = end, end + group.count
            inner = (max(start - begin, 0), min(stop - begin, group.count))
            if inner[0] < inner[1]:
                parts.append(group if inner == (0, group.count) else group.slice(*inner))
        return TaskMessageBatch.from_groups(parts)

    def __add__(self, other: object) -> TaskMessageBatch:
        if not isinstance(other, TaskMessageBatch):
            return NotImplemented
        if self._grouped and other._grouped:
            return TaskMessageBatch.from_groups(self.groups + other.groups)
        tasks, sources, payloads, headers = self._as_columns()
        more_tasks, more_sources, more_payloads, more_headers = other._as_columns()
        if headers is not None or more_headers is not None:
            headers = (headers or [b""] * len(self)) + (more_headers or [b""] * len(other))
        return self._of_columns(tasks + more_tasks, sources + more_sources, payloads + more_payloads, headers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskMessageBatch):
            return NotImplemented
        return self._as_columns() == other._as_columns()

    def __hash__(self) -> int:
        tasks, sources, payloads, headers = self._as_columns()
        return hash((tasks.tobytes(), sources.tobytes(), tuple(payloads), tuple(headers or ())))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._grouped:
            return (TaskMessageBatch.from_groups, (self.groups,))
        return (TaskMessageBatch._of_columns, self._as_columns())

    def __repr__(self) -> str:
        return f"<TaskMessageBatch: {counted(len(self), 'message')}, {counted(self.nbytes, 'byte')}>"

    def _repr_html_(self) -> str:
        tasks, sources, payloads, _ = self._as_columns()
        rows = [
            (task, "" if source == _NO_SOURCE else source, payload)
            for task, source, payload in islice(zip(tasks, sources, payloads, strict=True), _MAX_SHOWN)
        ]
        prefix = f"the first {len(rows)} of " if len(rows) < len(self) else ""
        title = f"{prefix}{counted(len(self), 'message')}, {counted(self.nbytes, 'byte')}"
        return html_table(title, ("task", "source", "message"), rows)


def _columns_of(
    tasks: SupportsIndex | Collection[SupportsIndex],
    payloads: Iterable[BytesLike],
    sources: SupportsIndex | Collection[SupportsIndex] | None,
    headers: list[bytes] | None,
) -> _Columns:
    column = payload_column(payloads)
    count = len(column)
    return (
        task_column(tasks, count, "tasks"),
        array("i", [_NO_SOURCE]) * count if sources is None else task_column(sources, count, "sources"),
        column,
        headers,
    )


def _group_by_key(places: Sequence[Any], values: list[bytes]) -> dict[Any, list[bytes]]:
    buckets: defaultdict[Any, list[bytes]] = defaultdict(list)
    for place, value in zip(places, values, strict=True):
        buckets[place].append(value)
    return buckets


def as_groups(
    messages: Any,
    payload: Any = None,
    source: int | None = None,
    key: bytes | None = None,
    headers: Headers | None = None,
) -> tuple[TaskGroup, ...]:
    """Return groups without routing: of a batch, TaskMessages, or one task (in `messages`) and payload.

    `source` is the sending task of messages without a source. `key` and `headers` are for a single payload.
    """
    if key is not None or headers:
        if payload is None:
            raise TypeError(
                "key and headers go with send(task, payload); in a batch, each TaskMessage has its own"
            )
        message = TaskMessage(messages, payload, key=key, headers=headers)
        return TaskMessageBatch([message], source=source).groups
    if payload is not None:
        return (TaskGroup.of(messages, (payload,), source),)
    if isinstance(messages, TaskMessageBatch):
        batch = messages
    # Not isinstance(messages, SupportsIndex): that check of a protocol takes longer than the whole send.
    elif hasattr(messages, "__index__"):
        raise TypeError("send(task, payload): the payload is missing")
    elif isinstance(messages, (str, bytes, bytearray, memoryview, Mapping, TaskMessage)):
        raise MessageError(f"send TaskMessages, or a task and a payload, not a {type(messages).__name__}")
    else:
        batch = TaskMessageBatch(messages, source=source)
    groups = tuple([group.without_routing() for group in batch.groups])
    if source is None:
        return groups
    return tuple(replace(each, source=source) if each.source is None else each for each in groups)
