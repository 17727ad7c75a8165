"""Arrow rows, in columns, as the payload of a message.

Used by programs, bolts and the demos. Owns no state. Thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, InvalidTaskError, MalformedError, MessageError
from tuplewire.settings.config import MIB
from tuplewire.values.arrow import runs_by_task


def pack_rows(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as the payload of one message: a complete stream of Arrow's IPC format, with its schema.

    Any program with an Arrow library can read the payload. Its size is limited (max_message_bytes);
    route_rows() divides rows into about 512 KiB. Dictionary values that the rows do not use are omitted.
    Raises MessageError if `rows` is not a RecordBatch or Table.
    """
    batch = _compact(_one_batch(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_rows(payload: bytes) -> pa.RecordBatch:
    """Return the rows in a payload of pack_rows(), or in any stream of Arrow's IPC format.

    The columns of a single batch share the payload's memory. Raises MalformedError for any other payload; all
    values are checked, also the UTF-8 of strings.
    """
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise MalformedError(f"a payload is bytes, not {type(payload).__name__}")
    try:
        with pa.ipc.open_stream(payload) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            rows = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, stream.schema)
        return _one_batch(rows)
    except (pa.ArrowException, OSError) as error:
        raise MalformedError(
            f"a payload of {len(payload)} bytes holds no rows of pack_rows(): {error}"
        ) from error


def route_rows(
    tasks: pa.Array | pa.ChunkedArray, rows: pa.RecordBatch | pa.Table, max_bytes: int = MIB // 2
) -> tuple[list[int], list[bytes]]:
    """Divide rows by task, and return the tasks and payloads for TaskMessageBatch.from_columns().

    Args:
        max_bytes: The approximate maximum size of a message. A single row is never divided.

    Returns:
        One or more messages for each task, with its rows in order.

    Raises:
        MessageError: `rows` is not a RecordBatch or Table.
        InvalidTaskError: A task id is invalid, or there is not one for each row.
    """
    rows = _one_batch(rows)
    try:
        tasks = tasks if isinstance(tasks, pa.Array | pa.ChunkedArray) else pa.array(tasks)
        order, runs = runs_by_task(tasks, rows.num_rows, "rows")
    except (MalformedError, pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidTaskError(f"tasks are integers from 0 to {MAX_TASK}: {error}") from error
    rows = rows.take(order)
    message_tasks: list[int] = []
    payloads: list[bytes] = []
    for task, start, count in runs:
        run = _compact(rows.slice(start, count))
        # Divide by the average size of a row: the exact size of each message is known only after packing.
        max_rows = max(1, max_bytes * run.num_rows // max(1, run.nbytes))
        for first in range(0, run.num_rows, max_rows):
            message_tasks.append(task)
            payloads.append(pack_rows(run.slice(first, max_rows)))
    return message_tasks, payloads


def _one_batch(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    if not isinstance(rows, pa.Table):
        raise MessageError(f"rows are a RecordBatch or a Table of pyarrow, not {type(rows).__name__}")
    batches = rows.unify_dictionaries().combine_chunks().to_batches()
    (batch,) = batches or [pa.RecordBatch.from_pylist([], rows.schema)]
    return batch


def _compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Remove dictionary values that these rows do not use, because Arrow writes the whole dictionary."""
    return pa.RecordBatch.from_arrays(list(map(_compact_column, rows.columns)), schema=rows.schema)


def _compact_column(column: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(column.type) or len(column.dictionary) <= 1:
        return column
    used = pc.unique(column.indices).drop_null()
    if len(used) == len(column.dictionary):
        return column
    used = used.take(pc.array_sort_indices(used))  # keeps the order of an ordered dictionary
    indices = pc.index_in(column.indices, used).cast(column.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, column.dictionary.take(used), ordered=column.type.ordered)
