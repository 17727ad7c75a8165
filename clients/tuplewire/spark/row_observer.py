"""The spans of reads and writes in Spark's tasks, if tracing is on.

A Python process of Spark may be killed when its task ends, so spans are sent before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tuplewire.spark.fetch import RangeReader
from tuplewire.tracing.context import TraceParent, count_contexts

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing


def observed(tracing: Tracing, reader: RangeReader, task: int) -> Iterator[pa.RecordBatch]:
    """Read a range, and make one span `receive` for it, linked to each trace in its messages."""
    began_ns = time.time_ns()
    found: Counter[TraceParent] = Counter()
    reader.look = partial(count_contexts, into=found)
    try:
        yield from reader
    finally:
        if found:
            about: Attributes = {
                "messaging.operation.type": "receive",
                "messaging.batch.message_count": reader.messages_read,
            }
            tracing.receive(task, found, about, began_ns)
            tracing.flush()


@contextmanager
def attempt(tracing: Tracing | None, partition: int) -> Iterator[None]:
    """Make a span `send` for an attempt to write a partition, if it is sampled."""
    if tracing is None or not tracing.samples():
        yield
        return
    about: Attributes = {"messaging.operation.type": "send", "tuplewire.spark.partition": partition}
    try:
        with tracing.around(tracing.begin("send", f"partition {partition}", about)):
            yield
    finally:
        tracing.flush()
