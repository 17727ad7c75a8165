"""A separate driver with a query that must wait: python waiting_driver.py ADDRESS DIRECTORY GUARANTEE.

Streams numbered rows of 1 KB to tasks 1 and 2, 1,000 a second, until its standard input ends. Then it stops
the query, which must still be active, starts it again from its checkpoint, and lets it finish.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire_demos.local_session import local_session

TIMEOUT = "10"


def start(spark: SparkSession, where: dict[str, str], **trigger: Any) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one."""
    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", "1000")
        .load()
        .selectExpr(
            "cast(value % 2 + 1 as int) as task", "concat(lpad(value, 12, '0'), repeat(' ', 988)) as message"
        )
        .writeStream.format("tuplewire")
        .options(topology="spark", timeout=TIMEOUT, **where)
        .trigger(**trigger)
        .start()
    )


def main(address: str, directory: str, guarantee: str) -> None:
    """Run the query."""
    where = {
        "address": address,
        "deliveryGuarantee": guarantee,
        "checkpointLocation": str(Path(directory) / "checkpoint"),
    }
    with local_session("waiting", cores=2) as spark:
        query = start(spark, where, processingTime="0 seconds")
        sys.stdin.read()
        assert query.isActive, query.exception()
        query.stop()
        start(spark, where, availableNow=True).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
