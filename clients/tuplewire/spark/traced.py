"""Spans of what Spark's tasks read and write with the format, where tracing is on.

A Python process of Spark's may be killed once its task has ended: spans are sent before that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from tuplewire.group import TaskGroup
from tuplewire.session.delivery import Delivery
from tuplewire.spark.bad_rows import BadRows
from tuplewire.spark.fetch import RangeReader
from tuplewire.spark.offsets import Range
from tuplewire.spark.options import SinkOptions, SourceOptions
from tuplewire.spark.row_router import RowRouter
from tuplewire.tracing.context import MOST_CONTEXTS, TraceParent, sampled, with_entry
from tuplewire.tracing.spans import Attributes, Tracing, entry_of


class TracedRangeReader(RangeReader):
    """Makes one span `receive` of a range, with a link to each trace of which it has a message."""

    def __init__(
        self, tracing: Tracing, wanted: Range, options: SourceOptions, others: tuple[str, ...]
    ) -> None:
        super().__init__(wanted, options, others)
        self._tracing = tracing
        self._task = wanted.task
        self._found: Counter[TraceParent] = Counter()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        began_ns = time.time_ns()
        try:
            yield from super().__iter__()
        finally:
            self._tell(began_ns)

    def _batch(self, deliveries: Sequence[Delivery]) -> pa.RecordBatch:
        for each in deliveries:
            if each.group.header_data and len(self._found) < MOST_CONTEXTS:
                self._found.update(sampled(each.group.header_data))
        return super()._batch(deliveries)

    def _tell(self, began_ns: int) -> None:
        if not self._found:
            return
        alone = next(iter(self._found)) if len(self._found) == 1 else None
        self._tracing.begin(
            "receive",
            self._task,
            SpanKind.CONSUMER,
            {"messaging.operation.type": "receive", "messaging.batch.message_count": self._read},
            parent=alone,
            links=() if alone else self._found,
            start_ns=began_ns,
        ).end()
        self._tracing.flush()


@contextmanager
def attempt_span(tracing: Tracing, partition: int) -> Iterator[None]:
    """Have a span `send` around an attempt to write a partition, if it is sampled."""
    if not tracing.samples():
        yield
        return
    about: Attributes = {"messaging.operation.type": "send", "tuplewire.spark.partition": partition}
    try:
        with tracing.around(tracing.begin("send", f"partition {partition}", SpanKind.PRODUCER, about)):
            yield
    finally:
        tracing.flush()


class TracedRowRouter(RowRouter):
    """Gives rows that have no context that of the span around."""

    def __init__(self, options: SinkOptions, partition: int, bad: BadRows, address: str) -> None:
        super().__init__(options, partition, bad, address)
        self._entry = entry_of(trace.get_current_span())
        self._limit = bad.max_message_bytes

    def groups(self, rows: pa.RecordBatch) -> tuple[TaskGroup, ...]:
        groups = super().groups(rows)
        if self._entry is None:
            return groups
        entry, limit = self._entry, self._limit
        return tuple(with_entry(group, entry, limit) for group in groups)
