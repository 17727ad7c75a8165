"""Messages as the Arrow columns that the format `tuplewire` reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.arrow import key_and_headers, record_batch, repeated
from tuplewire.arrow_headers import HEADERS, KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuplewire.group import TaskGroup
    from tuplewire.session.delivery import Delivery

_ARROW_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("message", pa.binary()),
        ("source", pa.int32()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", KEY),
    ]
)
_ARROW_SCHEMA_WITH_HEADERS = _ARROW_SCHEMA.append(pa.field("headers", HEADERS))
TRAVELLING = ("key", "headers")
"""The columns of rows to write that travel with a message, where there are any."""


def read_batch(deliveries: Sequence[Delivery], *, headers: bool = False) -> pa.RecordBatch:
    """Return messages of one task that follow each other, in the columns of read_schema.

    Raises MalformedError for what another program has sent in place of a key and headers.
    """
    groups = [delivery.group for delivery in deliveries]
    columns = record_batch(groups)
    key, pairs = key_and_headers(groups, headers=headers)
    count = columns.num_rows
    before = deliveries[0].first_sequence - 1
    sequences = pc.cumulative_sum(repeated([before + 1, 1], [1, count - 1], pa.int64()))
    return pa.RecordBatch.from_arrays(
        [
            columns.column("task"),
            columns.column("message"),
            columns.column("source"),
            sequences,
            _timestamps(groups),
            key,
            *([pairs] if headers else []),
        ],
        schema=_ARROW_SCHEMA_WITH_HEADERS if headers else _ARROW_SCHEMA,
    )


def travelling(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of keys or of headers of rows to write; None if there is none that travels."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return None if pa.types.is_integer(column.type) else column  # an integer is for the grouping alone


def _timestamps(groups: Sequence[TaskGroup]) -> pa.Array:
    """Return when each message was sent, in whole milliseconds: the rest may differ between attempts."""
    kind = _ARROW_SCHEMA.field("timestamp").type
    micros = [group.accepted_micros // 1000 * 1000 or None for group in groups]
    return repeated(micros, list(map(len, groups)), kind)
