"""The process with Spark for bench-kafka: the same rows written and read through Kafka and Tuplewire.

Each trial has its own data, which is removed after the time is taken, so that the next trial starts empty.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent import BenchError, serve
from kafka_peer import Kafka
from pyspark.sql import DataFrame, SparkSession
from queries import Wire, running, stream_noop
from spark_agent import CORES, TARGET, TASKS, WORKER_OF, Frames, noop, timed
from warm_spark import WarmSpark
from workload import TOPOLOGY, WAIT_SECONDS

from tuplewire.client import Client
from tuplewire_demos.local_session import local_session

INTERVAL_SECONDS = 0.6
"""Interval between two messages through a query."""
WARM_MESSAGES = 5
_END = b"end"


class Tuplewire:
    """Two workers with a task each, and a third task for the output of a query."""

    def __init__(self, spark: SparkSession, addresses: list[str]) -> None:
        self._spark = spark
        self._addresses = addresses
        self._where = {"address": addresses[0], "topology": TOPOLOGY}

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a frame into tasks; without options at least once."""
        writer = frame.write.format("tuplewire").mode("append").options(**self._where, **options)
        answer = timed(writer.save)
        return {**answer, "received": self._drain(TASKS)}

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read the messages of two tasks."""
        frame.write.format("tuplewire").mode("append").options(**self._where).save()
        reader = self._spark.read.format("tuplewire").options(**self._where, tasks="1,2")
        answer = timed(lambda: noop(reader.load()))
        count = reader.load().count()
        self._drain(TASKS)
        return {**answer, "received": count}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read the messages of two tasks with a streaming query."""
        frame.write.format("tuplewire").mode("append").options(**self._where).save()
        reader = self._spark.readStream.format("tuplewire").options(**self._where, tasks="1,2")
        answer = stream_noop(reader.load())
        self._drain(TASKS)
        return answer

    @contextmanager
    def through(self) -> Iterator[Wire]:
        """Run a query from task 1 to task 3, and a client of each worker."""
        reader = self._spark.readStream.format("tuplewire").options(**self._where, tasks=str(TASKS[0]))
        frame = reader.load().selectExpr(f"{TARGET} as task", "upper(cast(message as string)) as message")
        near, far = (self._addresses[WORKER_OF[task]] for task in (TASKS[0], TARGET))
        with (
            Client(near, topology=TOPOLOGY) as sender,
            Client(far, topology=TOPOLOGY) as receiver,
            running(frame, "tuplewire", self._where),
        ):
            batches = receiver.recv([TARGET], timeout=WAIT_SECONDS)

            def take() -> Sequence[bytes]:
                batch = next(batches)
                batches.acknowledge()
                return batch.payloads

            yield Wire(lambda payload: sender.send(TASKS[0], payload), take)
        self._drain(TASKS[:1])  # Spark acknowledges a micro-batch with the next one

    def _drain(self, tasks: Iterable[int]) -> int:
        """Receive all messages of the tasks, up to an end mark; return their number."""
        return sum(map(self._drain_task, tasks))

    def _drain_task(self, task: int) -> int:
        with Client(self._addresses[WORKER_OF[task]], topology=TOPOLOGY) as client:
            client.send(task, _END)
            got = 0
            with client.recv([task], timeout=WAIT_SECONDS) as batches:
                for batch in batches:
                    got += len(batch)
                    if batch[-1].message == _END:
                        batches.acknowledge()
                        break
        return got - 1


def latencies(wire: Wire, count: int, size: int) -> list[float]:
    """Send numbered messages through a query, one every 0.6 s; return their latencies in milliseconds.

    The first few messages are not included. BenchError unless each message arrives exactly once.
    """
    sent: dict[int, float] = {}
    came: list[tuple[int, float]] = []
    total = count + WARM_MESSAGES
    late = threading.Event()

    def receive() -> None:
        while len(came) < total and not late.is_set():
            for payload in wire.take():
                came.append((int(payload[1:9]), time.monotonic()))
                if payload[:1] != b"M":
                    raise BenchError(f"the query has sent {payload[:20]!r}")

    receiver = threading.Thread(target=receive)
    receiver.start()
    start = time.monotonic()
    for number in range(total):
        time.sleep(max(0.0, start + number * INTERVAL_SECONDS - time.monotonic()))
        sent[number] = time.monotonic()
        wire.send(b"m%08d" % number + b"-" * (size - 9))
    receiver.join(WAIT_SECONDS)
    late.set()
    if sorted(number for number, _ in came) != list(range(total)):
        raise BenchError(f"{total} messages sent through a query, {len(came)} received, or others")
    return [(moment - sent[number]) * 1000 for number, moment in sorted(came) if number >= WARM_MESSAGES]


def main(kafka: str, jars: str, *addresses: str) -> None:
    """Answer requests, of either system by its name."""
    conf = {
        "spark.executorEnv.GRPC_VERBOSITY": "ERROR",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": "",  # a JVM as Spark starts it, with both of its compilers
    }
    os.environ.update(WarmSpark().environment)
    with local_session("bench-kafka", cores=2 * CORES, conf=conf) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        frames = Frames(spark, *addresses)
        peers: dict[str, Tuplewire | Kafka] = {
            "tuplewire": Tuplewire(spark, list(addresses)),
            "kafka": Kafka(spark, kafka),
        }

        def latency(peer: str, count: int, size: int) -> dict[str, Any]:
            """Send single messages through a query that converts them to upper case."""
            with peers[peer].through() as wire:
                return {"milliseconds": latencies(wire, count, size)}

        # The rows are in Spark's memory, or in the peer's, before the clock starts.
        serve(
            {
                "noop": frames.noop,
                "drop": frames.drop,
                "write": lambda peer, rows, size, options: peers[peer].write(
                    frames.frame(rows, size), options
                ),
                "read": lambda peer, rows, size: peers[peer].read(frames.frame(rows, size)),
                "stream": lambda peer, rows, size: peers[peer].stream(frames.frame(rows, size)),
                "latency": latency,
            }
        )


if __name__ == "__main__":
    main(*sys.argv[2:])
