"""A Spark program with an executor in a pod: its tasks send through the worker next to that executor.

Arguments: Spark's settings, as JSON, and a file. The test writes the port of the executors'
workers, here not 6700, to that file. The program prints the results of its tasks, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from helpers import eventually

from tuplewire.spark import membership
from tuplewire_demos.local_session import local_session

MESSAGES = 100
_SECONDS = 120.0


def send(numbers: Iterable[int]) -> Iterable[tuple[str, int]]:
    """Send each number to task 1; yield the address of the worker and the number of acknowledged messages."""
    from tuplewire import Client, TaskMessageBatch

    with Client(source=7) as client:
        client.send(TaskMessageBatch.from_columns(1, [str(number).encode() for number in numbers]))
        client.flush(60)
        yield os.environ["TUPLEWIRE_ADDRESS"], client.ledger().acknowledged


def main(settings: dict[str, str], port_file: Path) -> None:
    """Run the program: Spark requests an executor, and the executor's worker gets the task."""
    with local_session("tuplewire-job", conf=settings) as spark:
        eventually(port_file.exists, _SECONDS, "the worker's port")
        port = int(port_file.read_text(encoding="utf-8"))
        with membership(spark, [1], port=port, at_least=1) as workers:
            workers.wait(1, _SECONDS)
            seen = spark.sparkContext.parallelize(range(MESSAGES), 2).mapPartitions(send).collect()
            print(json.dumps(seen))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
