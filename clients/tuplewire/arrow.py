"""Arrow arrays to columns and back, without a Python object per message. Needs pyarrow."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, MIN_TASK, InvalidTaskError, MalformedError
from tuplewire.group import TaskGroup, check_task

if TYPE_CHECKING:
    from collections.abc import Sequence


def groups_from_arrow(
    tasks: SupportsIndex | pa.Array, payloads: pa.Array, source: SupportsIndex | None
) -> list[TaskGroup]:
    """Return a group for each task, in the order of the task ids, in order within each.

    tasks: one id, or integers of any width. payloads: binary or strings of any layout. Both may be chunked,
    sliced or dictionary-encoded. Raises MalformedError for nulls, a wrong type, columns of different length
    or 2 GiB of payload and more, and InvalidTaskError for ids outside 0 to 2^31-1.
    """
    payloads = _payload_column(payloads)
    sender = None if source is None else check_task(source)
    if not isinstance(tasks, pa.Array | pa.ChunkedArray):
        task = check_task(tasks)
        return [_group(task, sender, payloads)] if len(payloads) else []
    tasks = _flat(tasks, "task")
    if len(tasks) != len(payloads):
        raise MalformedError(f"{len(tasks)} tasks and {len(payloads)} payloads: the columns differ in length")
    if not len(payloads):
        return []
    if not pa.types.is_integer(tasks.type) or tasks.null_count:
        nulls = f" with {tasks.null_count} null(s)" if tasks.null_count else ""
        raise MalformedError(f"the task column must be integers without nulls, not {tasks.type}{nulls}")
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
        groups.append(_group(task, sender, payloads.slice(start, end - start)))
        start = end
    return groups


def record_batch(groups: Sequence[TaskGroup]) -> pa.RecordBatch:
    """Return the groups as columns `task`, `source` and `message`.

    Raises MalformedError for 2 GiB of payload and more, which one such column cannot hold.
    """
    ends = pa.array(accumulate(map(len, groups)), pa.int32())
    data = b"".join(group.data for group in groups)
    if len(data) >= 2**31:
        raise MalformedError(f"{len(data)} bytes of payload are too many for one Arrow batch; slice it first")
    lengths = b"".join(group.lengths for group in groups)
    sizes = pa.Array.from_buffers(pa.int32(), len(lengths) // 4, [None, pa.py_buffer(lengths)])
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    return pa.RecordBatch.from_arrays(
        [
            _repeated([group.task for group in groups], ends),
            _repeated([group.source for group in groups], ends),
            pa.Array.from_buffers(pa.binary(), len(sizes), [None, offsets.buffers()[1], pa.py_buffer(data)]),
        ],
        schema=pa.schema([("task", pa.int32()), ("source", pa.int32()), ("message", pa.binary())]),
    )


def _repeated(values: Sequence[int | None], run_ends: pa.Array) -> pa.Array:
    runs = pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(values, pa.int32()))
    return pc.run_end_decode(runs)


def _flat(column: Any, name: str) -> pa.Array:
    """Return a column in one piece, with its values in it rather than in a dictionary."""
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise MalformedError(
            f"the {name} column is a {type(column).__name__}, not an Arrow array; "
            "for Python values use TaskMessageBatch.from_columns"
        )
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    except pa.ArrowInvalid as error:
        raise _too_large(name) from error


def _payload_column(column: Any) -> pa.Array:
    payloads = _flat(column, "message")
    if payloads.type not in {pa.binary(), pa.string()}:
        try:
            payloads = payloads.cast(pa.binary())
        except pa.ArrowNotImplementedError as error:
            raise MalformedError(
                f"the message column must be binary or string, not {payloads.type}"
            ) from error
        except pa.ArrowInvalid as error:
            raise _too_large("message") from error
    if payloads.null_count:
        raise MalformedError(
            f"the message column has {payloads.null_count} null(s); filter or fill them first"
        )
    return payloads


def _too_large(name: str) -> MalformedError:
    return MalformedError(f"the {name} column has 2 GiB of data or more; hand it over in smaller batches")


def _group(task: int, source: int | None, payloads: pa.Array) -> TaskGroup:
    _, offsets, data = payloads.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[payloads.offset], ends[payloads.offset + len(payloads)]
    sizes = pc.binary_length(payloads)
    lengths = sizes.buffers()[1][4 * sizes.offset : 4 * (sizes.offset + len(sizes))]
    return TaskGroup(task, source, lengths.to_pybytes(), data[first:last].to_pybytes() if data else b"")
