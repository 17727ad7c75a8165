"""A driver of its own, for tests that kill it: python streaming_driver.py ADDRESS DIRECTORY TRIGGER.

Streams tasks 1 to 4 to tasks 5 to 8, by a hundred messages at a time. TRIGGER: `live` goes on until it is
killed, `now` ends when it has read what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tuplewire.spark.session import local_session


def main(address: str, directory: str, trigger: str) -> None:
    """Run the query."""
    with local_session("driver", cores=2) as spark:
        query = (
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
            .trigger(**({"availableNow": True} if trigger == "now" else {"processingTime": "0 seconds"}))
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
