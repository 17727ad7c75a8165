"""The operations of bench-kafka that both systems implement, and shared code for Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame
from spark_agent import memory, timed


class Wire(Protocol):
    """The program at both ends of a query."""

    def send(self, payload: bytes) -> None:
        """Send one message to the query, immediately."""

    def take(self) -> Sequence[bytes]:
        """Return the output of the query, after a short wait."""


class Peer(Protocol):
    """One of the two systems; every method leaves it empty."""

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a DataFrame: return its seconds, and the number of rows that arrived."""

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read a DataFrame's number of rows into `noop`; return the seconds, and the number of rows."""

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Do the same with a streaming query that ends when all rows are read, and count the rows."""

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query that converts messages to upper case, from a source to a sink."""


def noop(frame: DataFrame) -> None:
    """Write a DataFrame to Spark's noop sink."""
    frame.write.format("noop").mode("overwrite").save()


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


class Query:
    """A query that runs until the end of the block, with its checkpoint in memory."""

    def __init__(self, frame: DataFrame, sink: str, options: Mapping[str, str]) -> None:
        self._writer = frame.writeStream.format(sink).options(**options)

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(dir=memory())
        self._query = self._writer.option("checkpointLocation", self._directory.name).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        self._directory.cleanup()
