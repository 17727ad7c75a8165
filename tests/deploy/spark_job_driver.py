"""A Spark program with an executor in a pod: its tasks send through the worker beside it, and say what they see.

Arguments: Spark's settings, as JSON. Prints what the executor's programs had, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from tuplewire.spark.session import local_session

MESSAGES = 100


def send(numbers: Iterator[int]) -> Iterator[tuple[str, int]]:
    """Send each number to task 1; yield the address of the worker, and what has become of the messages."""
    from tuplewire import Client, TaskMessageBatch

    with Client(source=7) as client:
        client.send(TaskMessageBatch.from_columns(1, [str(number).encode() for number in numbers]))
        client.flush(60)
        yield os.environ["TUPLEWIRE_ADDRESS"], client.ledger().acknowledged


if __name__ == "__main__":
    with local_session("tuplewire-job", conf=json.loads(sys.argv[1])) as spark:
        print(json.dumps(spark.sparkContext.parallelize(range(MESSAGES), 2).mapPartitions(send).collect()))
