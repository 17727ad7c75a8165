"""Arrow rows, in columns, as the payload of a message. Needs pyarrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.config import MIB
from tuplewire.errors import MalformedError


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Return rows as the payload of one message: a whole stream of Arrow's IPC format, with its schema.

    So a bolt gets columns, a few thousand rows at a time, and no object for each row. The bytes of a message
    are bounded (max_message_bytes); route_rows() divides rows accordingly. Any program with an Arrow library
    reads it. Source: the Arrow columnar format, "IPC Streaming Format".
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_rows(payload: bytes) -> pa.RecordBatch:
    """Return the rows that pack_rows() put into a payload; their columns share its memory.

    Raises MalformedError for what is no such payload; all of it is checked, text for UTF-8, too.
    """
    try:
        with pa.ipc.open_stream(payload) as stream:
            rows = stream.read_next_batch()
        rows.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise MalformedError(
            f"a payload of {len(payload)} bytes holds no rows of pack_rows(): {error}"
        ) from error
    return rows


def route_rows(
    tasks: pa.Array, rows: pa.RecordBatch, max_bytes: int = MIB // 2
) -> tuple[list[int], list[bytes]]:
    """Divide rows by the task of each, and return them packed: a task and a payload for each message.

    They are made for TaskMessageBatch.from_columns(). Rows to one task stay in order, and take several
    messages where one would have more than about so many bytes (a single row is never divided).
    """
    order = pc.array_sort_indices(tasks)  # stable
    runs = pc.run_end_encode(tasks.take(order))
    rows = rows.take(order)
    found: list[int] = []
    payloads: list[bytes] = []
    start = 0
    for task, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        most = max(1, max_bytes * (end - start) // max(1, rows.slice(start, end - start).nbytes))
        for first in range(start, end, most):
            found.append(task)
            payloads.append(pack_rows(rows.slice(first, min(most, end - first))))
        start = end
    return found, payloads
