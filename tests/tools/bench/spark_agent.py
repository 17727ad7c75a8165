"""The process with Spark: DataFrames into tasks and back, the same without Tuplewire, and with Kafka.

Each trial has its own data, which is removed after the time is taken, so that the next trial starts empty.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
from agent import BenchError, Verb, serve
from pyspark import BarrierTaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from warm_spark import WarmSpark
from workload import TOPOLOGY, WAIT_SECONDS, numbered

from tuplewire.client import Client
from tuplewire.spark import ClientHandle
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_demos.local_session import local_session

CORES = 2
TASKS = (1, 2)
TARGET = 3
WORKER_OF = {1: 0, 2: 1, 3: 1}
"""The index of each task's worker."""
ASSIGNMENT = {index: [task for task, at in WORKER_OF.items() if at == index] for index in (0, 1)}
WARM_BATCHES = 3
WARM_MESSAGES = 5
BATCH_SECONDS = 60.0
INTERVAL_SECONDS = 0.6
"""Interval between two messages through a query."""
_END = b"end"


class DropWriter(DataSourceArrowWriter):
    """Receives the rows that Spark passes to Python, and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop one partition."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropSource(DataSource):
    """A sink in Python that drops everything: the minimum cost of such a sink."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:  # noqa: ARG002, FBT001 - Spark's
        return DropWriter()


def timed(action: Callable[[], object]) -> dict[str, Any]:
    """Return the time of an action in seconds."""
    start = time.monotonic()
    action()
    return {"seconds": time.monotonic() - start}


def noop(frame: DataFrame) -> None:
    """Write a DataFrame to Spark's noop sink."""
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def query(frame: DataFrame, sink: str, options: Mapping[str, str], **trigger: Any) -> Iterator[Any]:
    """Run a query until the end of the block, with its checkpoint in memory."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of our own within
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        writer = frame.writeStream.format(sink).options(**options, checkpointLocation=directory)
        started = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield started
        finally:
            started.stop()


class Wire(NamedTuple):
    """The program at both ends of a query."""

    send: Callable[[bytes], object]
    """Sends one message to the query, immediately."""
    take: Callable[[], Sequence[bytes]]
    """Returns the output of the query, after a short wait."""


class Peer(ABC):
    """A system that Spark writes to and reads from."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @abstractmethod
    def begin(self) -> None:
        """Prepare the place of the next trial's data."""

    @abstractmethod
    def save(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """Write a frame."""

    @abstractmethod
    def load(self, reader: Any, **options: str) -> DataFrame:
        """Return the frame, or stream, of the trial's data. reader: Spark's."""

    @abstractmethod
    def take(self) -> int:
        """Remove the trial's data; return the number of messages."""

    @abstractmethod
    def through(self) -> AbstractContextManager[Wire]:
        """Run a query that converts messages to upper case, and a program at both of its ends."""

    def write(self, frame: DataFrame, **options: str) -> dict[str, Any]:
        """Write a frame."""
        self.begin()
        return {**timed(lambda: self.save(frame, options)), "received": self.take()}

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read the messages of a frame."""
        self.begin()
        self.save(frame, {})
        answer = timed(lambda: noop(self.load(self.spark.read)))
        count = self.load(self.spark.read).count()
        self.take()
        return {**answer, "received": count}

    def back(self, frame: DataFrame) -> dict[str, Any]:
        """Write a frame, and read it back."""
        self.begin()

        def both() -> None:
            self.save(frame, {})
            noop(self.load(self.spark.read))

        return {**timed(both), "received": self.take()}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read the messages of a frame with a streaming query; the answer has its micro-batches' seconds."""
        self.begin()
        self.save(frame, {})
        start = time.monotonic()
        with query(self.load(self.spark.readStream), "noop", {}, availableNow=True) as running:
            running.awaitTermination()
            seconds = time.monotonic() - start
            told = running.recentProgress
        self.take()
        return {
            "seconds": seconds,
            "batch_seconds": sum(each["durationMs"]["triggerExecution"] for each in told) / 1000,
            "received": sum(each["numInputRows"] for each in told),
        }


class Tuplewire(Peer):
    """Two workers with a task each, and a third task for the output of a query."""

    def __init__(self, spark: SparkSession, addresses: Sequence[str]) -> None:
        super().__init__(spark)
        self.addresses = addresses
        self.where = {"address": addresses[0], "topology": TOPOLOGY}

    def begin(self) -> None:
        """See Peer. The tasks are empty."""

    def save(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """See Peer. Without options at least once."""
        frame.write.format("tuplewire").mode("append").options(**self.where, **options).save()

    def load(self, reader: Any, **options: str) -> DataFrame:
        given = {**self.where, "tasks": ",".join(map(str, TASKS)), **options}
        frame: DataFrame = reader.format("tuplewire").options(**given).load()
        return frame

    def take(self) -> int:
        return sum(map(self.drain, TASKS))

    def drain(self, task: int) -> int:
        """Receive all messages of a task, up to an end mark; return their number."""
        with Client(self.addresses[WORKER_OF[task]], topology=TOPOLOGY) as client:
            client.send(task, _END)
            got = 0
            with client.recv([task], timeout=WAIT_SECONDS) as batches:
                for batch in batches:
                    got += len(batch)
                    if batch[-1].message == _END:
                        batches.acknowledge()
                        break
        return got - 1

    @contextmanager
    def through(self) -> Iterator[Wire]:
        """See Peer. From task 1 to task 3, with a client of each worker."""
        messages = self.load(self.spark.readStream, tasks=str(TASKS[0]))
        frame = messages.selectExpr(f"{TARGET} as task", "upper(cast(message as string)) as message")
        near, far = (self.addresses[WORKER_OF[task]] for task in (TASKS[0], TARGET))
        with (
            Client(near, topology=TOPOLOGY) as sender,
            Client(far, topology=TOPOLOGY) as receiver,
            query(frame, "tuplewire", self.where),
        ):
            batches = receiver.recv([TARGET], timeout=WAIT_SECONDS)

            def take() -> Sequence[bytes]:
                batch = next(batches)
                batches.acknowledge()
                return batch.payloads

            yield Wire(lambda payload: sender.send(TASKS[0], payload), take)
        self.drain(TASKS[0])  # Spark acknowledges a micro-batch with the next one

    def each_row(self, frame: DataFrame) -> dict[str, Any]:
        """Send a frame row by row from foreachPartition, as a program without the format does."""
        handle = ClientHandle(self.addresses[0], topology=TOPOLOGY)

        def send(partition: Iterable[Any]) -> None:
            with handle as client:
                for row in partition:
                    client.send(row.task, row.message.encode())

        return {**timed(lambda: frame.foreachPartition(send)), "received": self.take()}

    def check(self, frame: DataFrame) -> dict[str, int]:
        """Write numbered rows, and count the rows that come back once; -1 if others come, too."""
        rows = frame.count()
        self.save(frame, {})
        read = self.load(self.spark.read).selectExpr("cast(cast(message as string) as bigint) as n")
        once = read.where(f"n between 0 and {rows - 1}").groupBy("n").count().where("count = 1").count()
        return {"received": once if self.take() == rows else -1}

    def micro_batches(self, batches: int) -> dict[str, Any]:
        """Return the times of micro-batches that read one message and write it to another task."""
        count = batches + WARM_BATCHES
        with Client(self.addresses[0], topology=TOPOLOGY) as client:
            client.send(TaskMessageBatch.from_columns(TASKS[0], numbered(0, count)))
            client.flush()
        messages = self.load(self.spark.readStream, tasks=str(TASKS[0]), maxMessagesPerTrigger="1")
        frame = messages.selectExpr(f"{TARGET} as task", "message")
        answer = _micro_batches(frame, "tuplewire", self.where, batches)
        if (got := self.drain(TARGET)) != count:
            raise BenchError(f"{count} messages through micro-batches, {got} received")
        return answer


def _micro_batches(frame: DataFrame, sink: str, options: Mapping[str, str], batches: int) -> dict[str, Any]:
    """Run micro-batches of one row; return the time of each, by Spark's own clock."""
    millis: dict[int, int] = {}
    with query(frame, sink, options, processingTime="0 seconds") as running:
        deadline = time.monotonic() + BATCH_SECONDS
        while len(millis) < batches + WARM_BATCHES:
            if not running.isActive or time.monotonic() > deadline:
                raise BenchError(f"micro-batches to {sink}: {len(millis)} done, {running.exception()}")
            for progress in running.recentProgress:
                if progress["numInputRows"]:
                    millis[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
            time.sleep(0.1)
    return {"ns": [millis[batch] * 1e6 for batch in sorted(millis)[WARM_BATCHES:]]}


def _latencies(wire: Wire, count: int, size: int) -> list[float]:
    """Send a message each 0.6 s, and return the latencies in ns. BenchError unless each arrives once."""
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
    return [(moment - sent[number]) * 1e9 for number, moment in sorted(came) if number >= WARM_MESSAGES]


def spark(
    addresses: Sequence[str],
    conf: Mapping[str, str] = MappingProxyType({}),
    kafka: Callable[[SparkSession], Peer] | None = None,
) -> None:
    """Answer requests, of either system by its name."""
    os.environ.update(WarmSpark().environment)
    conf = {"spark.executorEnv.GRPC_VERBOSITY": "ERROR", **conf}
    with local_session("bench", cores=2 * CORES, conf=conf) as session:
        session.sparkContext.setLogLevel("ERROR")
        by_value: Any = cloudpickle.register_pickle_by_value
        by_value(sys.modules[DropSource.__module__])  # Spark's own processes cannot import it
        session.dataSource.register(DropSource)
        tuplewire = Tuplewire(session, addresses)
        peers: dict[str, Peer] = {"tuplewire": tuplewire}
        if kafka:
            peers["kafka"] = kafka(session)
        frames: dict[tuple[int, int], DataFrame] = {}

        def frame(rows: int, size: int) -> DataFrame:
            """Return a DataFrame that is already computed, in Spark's memory."""
            if (rows, size) not in frames:
                message = f"lpad(cast(id as string), {size}, '0') as message"
                made = session.range(0, rows, 1, CORES).selectExpr("cast(id % 2 + 1 as int) as task", message)
                made.persist().count()
                frames[rows, size] = made
            return frames[rows, size]

        def measured(verb: str) -> Verb:
            """Return the verb that calls a peer's method with a frame, in Spark's memory before the clock."""

            def measure(peer: str, rows: int, size: int, **options: str) -> dict[str, Any]:
                answer: dict[str, Any] = getattr(peers[peer], verb)(frame(rows, size), **options)
                return answer

            return measure

        def latency(peer: str, rows: int, size: int) -> dict[str, Any]:
            with peers[peer].through() as wire:
                return {"ns": _latencies(wire, rows, size)}

        def floor(rows: int, **_: Any) -> dict[str, Any]:
            reader = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
            return _micro_batches(reader.load(), "noop", {}, rows)

        def barrier(ranks: int, count: int) -> dict[str, Any]:
            def stage(_: Iterable[int]) -> Iterator[int]:
                BarrierTaskContext.get().barrier()
                for _round in range(count):
                    begun = time.perf_counter_ns()
                    BarrierTaskContext.get().barrier()
                    yield time.perf_counter_ns() - begun

            stages = session.sparkContext.range(ranks, numSlices=ranks).barrier()
            return {"ns": stages.mapPartitions(stage).collect()}

        serve(
            {
                **{verb: measured(verb) for verb in ("check", "write", "back", "each_row", "read", "stream")},
                "noop": lambda rows, size, **_: timed(lambda: noop(frame(rows, size))),
                "drop": lambda rows, size, **_: timed(
                    frame(rows, size).write.format("drop").mode("append").save
                ),
                "barrier": barrier,
                "latency": latency,
                "floor": floor,
                "micro_batches": lambda rows, **_: tuplewire.micro_batches(rows),
            }
        )
