"""Queries of bench-kafka, for both systems."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from spark_agent import memory, timed


class Wire(NamedTuple):
    """The program at both ends of a query."""

    send: Callable[[bytes], object]
    """Sends one message to the query, immediately."""
    take: Callable[[], Sequence[bytes]]
    """Returns the output of the query, after a short wait."""


def stream_noop(frame: DataFrame) -> dict[str, Any]:
    """Run a query to its end; return its seconds, its micro-batches' seconds, and the rows read."""
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        query: Any = None

        def run() -> None:
            nonlocal query
            writer = frame.writeStream.format("noop").option("checkpointLocation", directory)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()

        answer = timed(run)
        told = query.recentProgress
        return {
            **answer,
            "batch_seconds": sum(each["durationMs"]["triggerExecution"] for each in told) / 1000,
            "received": sum(each["numInputRows"] for each in told),
        }


@contextmanager
def running(frame: DataFrame, sink: str, options: Mapping[str, str]) -> Iterator[None]:
    """Run a query until the end of the block, with its checkpoint in memory."""
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        writer = frame.writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", directory).start()
        try:
            yield
        finally:
            query.stop()
