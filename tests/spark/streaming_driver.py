"""A separate driver, for tests that kill it: python streaming_driver.py ADDRESS DIRECTORY.

Streams tasks 1 to 4 to tasks 5 to 8, a hundred messages at a time, until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire_demos.local_session import local_session


def start(spark: SparkSession, address: str, directory: str, **trigger: Any) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one."""
    return (
        spark.readStream.format("tuplewire")
        .option("address", address)
        .option("topology", "spark")
        .option("tasks", "1-4")
        .option("maxMessagesPerTrigger", "100")
        .load()
        .selectExpr("task + 4 as task", "concat_ws(' ', source, sequence, message) as message")
        .writeStream.format("tuplewire")
        .option("address", address)
        .option("topology", "spark")
        .option("checkpointLocation", str(Path(directory) / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def main(address: str, directory: str) -> None:
    """Run the query."""
    with local_session("driver", cores=2) as spark:
        start(spark, address, directory, processingTime="0 seconds").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
