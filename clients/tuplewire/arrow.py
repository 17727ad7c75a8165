"""Arrow arrays to columns and back, without a Python object per message. Needs pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, MIN_TASK, InvalidTaskError, MalformedError
from tuplewire.message import TaskGroup, check_task

if TYPE_CHECKING:
    from collections.abc import Sequence


def groups_from_arrow(tasks: int | pa.Array, payloads: pa.Array, source: int | None) -> list[TaskGroup]:
    """Return a group for each task, in the order of the task ids, in order within each.

    Raises MalformedError for nulls, a wrong type or columns of different length, and InvalidTaskError
    for ids outside 0 to 2^31-1.
    """
    payloads = _payload_column(payloads)
    if source is not None:
        check_task(source)
    if not len(payloads):
        return []
    if isinstance(tasks, int):
        return [_group(check_task(tasks), source, payloads)]
    tasks = _flat(tasks)
    if len(tasks) != len(payloads):
        raise MalformedError(f"{len(tasks)} tasks and {len(payloads)} payloads: the columns differ in length")
    if not pa.types.is_integer(tasks.type) or tasks.null_count:
        raise MalformedError(f"the task column must be integers without nulls, not {tasks.type}")
    bounds = pc.min_max(tasks).as_py()
    if bounds["min"] < MIN_TASK or bounds["max"] > MAX_TASK:
        raise InvalidTaskError(
            f"task ids from {bounds['min']} to {bounds['max']} are not within {MIN_TASK} to {MAX_TASK}"
        )
    order = pc.array_sort_indices(tasks)  # stable
    runs = pc.run_end_encode(tasks.take(order))
    payloads = payloads.take(order)
    groups = []
    start = 0
    for task, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        groups.append(_group(task, source, payloads.slice(start, end - start)))
        start = end
    return groups


def record_batch(groups: Sequence[TaskGroup]) -> pa.RecordBatch:
    """Return the groups as columns `task`, `source` and `message`."""
    tasks = [pa.repeat(pa.scalar(group.task, pa.int32()), len(group)) for group in groups]
    sources = [pa.repeat(pa.scalar(group.source, pa.int32()), len(group)) for group in groups]
    messages = [_payload_array(group) for group in groups]
    schema = pa.schema([("task", pa.int32()), ("source", pa.int32()), ("message", pa.binary())])
    if not groups:
        return pa.RecordBatch.from_pylist([], schema)
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(column) for column in (tasks, sources, messages)], schema=schema
    )


def _flat(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _payload_column(payloads: pa.Array) -> pa.Array:
    payloads = _flat(payloads)
    if payloads.type not in {pa.binary(), pa.string()}:
        try:
            payloads = payloads.cast(pa.binary())
        except pa.ArrowNotImplementedError as error:
            raise MalformedError(
                f"the message column must be binary or string, not {payloads.type}"
            ) from error
    if payloads.null_count:
        raise MalformedError(
            f"the message column has {payloads.null_count} null(s); filter or fill them first"
        )
    return payloads


def _group(task: int, source: int | None, payloads: pa.Array) -> TaskGroup:
    _, offsets, data = payloads.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[payloads.offset], ends[payloads.offset + len(payloads)]
    sizes = pc.binary_length(payloads)
    lengths = sizes.buffers()[1][4 * sizes.offset : 4 * (sizes.offset + len(sizes))]
    return TaskGroup(task, source, lengths.to_pybytes(), data[first:last].to_pybytes() if data else b"")


def _payload_array(group: TaskGroup) -> pa.Array:
    sizes = pa.Array.from_buffers(pa.int32(), len(group), [None, pa.py_buffer(group.lengths)])
    ends = pc.cumulative_sum(sizes)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.Array.from_buffers(
        pa.binary(), len(group), [None, offsets.buffers()[1], pa.py_buffer(group.data)]
    )
