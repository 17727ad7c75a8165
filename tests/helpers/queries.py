"""Streaming queries that read from Tuplewire, or write to it, as the tests on Spark start them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a stream of messages."""
    return spark.readStream.format("tuplewire").options(**options).load()


def start(writer: DataStreamWriter, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query, from its checkpoint if there is one."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def start_sink(
    rows: DataFrame, options: Mapping[str, str], checkpoint: Path, **trigger: Any
) -> StreamingQuery:
    """Start a query that sends rows."""
    return start(rows.writeStream.format("tuplewire").options(**options), checkpoint, **trigger)
