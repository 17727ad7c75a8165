"""The process with Spark for bench-kafka: the same rows written and read through Kafka and Tuplewire.

Each trial has its own data, which is removed after the time is taken, so that the next trial starts empty.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from agent import BenchError, serve
from kafka_peer import Kafka
from pyspark.sql import DataFrame, SparkSession
from queries import Peer, Query, Wire, noop, stream_noop
from spark_agent import CORES, TARGET, TASKS, WORKER_OF, Frames, timed
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

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query from task 1 to task 3."""
        reader = self._spark.readStream.format("tuplewire").options(**self._where, tasks=str(TASKS[0]))
        frame = reader.load().selectExpr(f"{TARGET} as task", "upper(cast(message as string)) as message")
        query = Query(frame, "tuplewire", self._where)
        return TuplewireWire(query, self._addresses, lambda: self._drain(TASKS[:1]))

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


class TuplewireWire:
    """A program with clients of both workers. drain: removes messages that the query did not acknowledge."""

    def __init__(self, query: Query, addresses: list[str], drain: Callable[[], object]) -> None:
        self._query = query
        self._drain = drain
        self._sender = Client(addresses[WORKER_OF[TASKS[0]]], topology=TOPOLOGY)
        self._receiver = Client(addresses[WORKER_OF[TARGET]], topology=TOPOLOGY)

    def __enter__(self) -> Self:
        self._query.__enter__()
        self._batches = self._receiver.recv([TARGET], timeout=WAIT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._query.__exit__()
        self._receiver.close()
        self._sender.close()
        self._drain()  # Spark acknowledges a micro-batch with the next one

    def send(self, payload: bytes) -> None:
        """Send to the task that the query reads."""
        self._sender.send(TASKS[0], payload)

    def take(self) -> Sequence[bytes]:
        """Wait for a batch."""
        batch = next(self._batches)
        self._batches.acknowledge()
        return batch.payloads


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


class Beside:
    """The requests of either system, by name."""

    def __init__(self, spark: SparkSession, kafka: str, addresses: list[str]) -> None:
        self._frames = Frames(spark, *addresses)
        self._peers: dict[str, Peer] = {
            "tuplewire": Tuplewire(spark, addresses),
            "kafka": Kafka(spark, kafka),
        }

    def write(self, peer: str, rows: int, size: int, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a DataFrame in Spark's memory."""
        return self._peers[peer].write(self._frames.frame(rows, size), options)

    def read(self, peer: str, rows: int, size: int) -> dict[str, Any]:
        """Read into `noop`; the rows are written before the clock starts."""
        return self._peers[peer].read(self._frames.frame(rows, size))

    def stream(self, peer: str, rows: int, size: int) -> dict[str, Any]:
        """Do the same with a streaming query."""
        return self._peers[peer].stream(self._frames.frame(rows, size))

    def latency(self, peer: str, count: int, size: int) -> dict[str, Any]:
        """Send single messages through a query that converts them to upper case."""
        with self._peers[peer].through() as wire:
            return {"milliseconds": latencies(wire, count, size)}

    def verbs(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return the supported requests."""
        return {
            "noop": self._frames.noop,
            "drop": self._frames.drop,
            "write": self.write,
            "read": self.read,
            "stream": self.stream,
            "latency": self.latency,
        }


def main(kafka: str, jars: str, *addresses: str) -> None:
    """Answer requests."""
    conf = {
        "spark.executorEnv.GRPC_VERBOSITY": "ERROR",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": "",  # a JVM as Spark starts it, with both of its compilers
    }
    os.environ.update(WarmSpark().environment)
    with local_session("bench-kafka", cores=2 * CORES, conf=conf) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        serve(Beside(spark, kafka, list(addresses)).verbs())


if __name__ == "__main__":
    main(*sys.argv[2:])
