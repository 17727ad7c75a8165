"""The process with Spark, beside Kafka: the same rows through its connector and through Tuplewire, and back.

Each trial has its own data; what it wrote is taken away off the clock, so that the next finds nothing.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from agent import BenchError, serve
from kafka_broker import PARTITIONS
from pyspark.sql import DataFrame, SparkSession
from spark_agent import CORES, TARGET, TASKS, WORKER_OF, Frames, memory, timed
from workload import TOPOLOGY, WAIT_SECONDS

from tuplewire.client import Client
from tuplewire_demos.local_session import local_session

INTERVAL_SECONDS = 0.6
"""Between two messages through a query."""
WARM_MESSAGES = 5
_END = b"end"


class Wire(Protocol):
    """The program at both ends of a query."""

    def send(self, payload: bytes) -> None:
        """Send one message to the query, at once."""

    def take(self) -> Sequence[bytes]:
        """Return what has come out of the query, after a short wait."""


class Peer(Protocol):
    """One of the two systems; each method leaves it empty."""

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a DataFrame: its seconds, and how many rows have arrived."""

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read as many rows as a DataFrame has into `noop`: the seconds of that, and how many there were."""

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Do the same with a streaming query that ends when all is read, and count the rows."""

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query from a source to a sink that makes what comes upper case."""


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _stream_noop(frame: DataFrame) -> dict[str, Any]:
    """Run a query to its end; its seconds from start to end, and the rows that it has read."""
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        query: Any = None

        def run() -> None:
            nonlocal query
            writer = frame.writeStream.format("noop").option("checkpointLocation", directory)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()

        answer = timed(run)
        return {**answer, "received": sum(each["numInputRows"] for each in query.recentProgress)}


class Query:
    """A query that runs as long as the block, with its checkpoint in memory."""

    def __init__(self, frame: DataFrame, sink: str, options: Mapping[str, str]) -> None:
        self._writer = frame.writeStream.format(sink).options(**options)

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(dir=memory())
        self._query = self._writer.option("checkpointLocation", self._directory.name).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        self._directory.cleanup()


# --- Tuplewire --------------------------------------------------------------------------------


class Tuplewire:
    """Two workers with a task each, and a third task for what a query sends on."""

    def __init__(self, spark: SparkSession, addresses: list[str]) -> None:
        self._spark = spark
        self._addresses = addresses
        self._where = {"address": addresses[0], "topology": TOPOLOGY}

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write it into tasks; without options at least once."""
        writer = frame.write.format("tuplewire").mode("append").options(**self._where, **options)
        answer = timed(writer.save)
        return {**answer, "received": self._drain(TASKS)}

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read what two tasks hold."""
        frame.write.format("tuplewire").mode("append").options(**self._where).save()
        reader = self._spark.read.format("tuplewire").options(**self._where, tasks="1,2")
        answer = timed(lambda: _noop(reader.load()))
        count = reader.load().count()
        self._drain(TASKS)
        return {**answer, "received": count}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read what two tasks hold, by a streaming query."""
        frame.write.format("tuplewire").mode("append").options(**self._where).save()
        reader = self._spark.readStream.format("tuplewire").options(**self._where, tasks="1,2")
        answer = _stream_noop(reader.load())
        self._drain(TASKS)
        return answer

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query from task 1 to task 3."""
        reader = self._spark.readStream.format("tuplewire").options(**self._where, tasks=str(TASKS[0]))
        frame = reader.load().selectExpr(f"{TARGET} as task", "upper(cast(message as string)) as message")
        return TuplewireWire(Query(frame, "tuplewire", self._where), self._addresses)

    def _drain(self, tasks: Iterable[int]) -> int:
        """Take all that is in tasks, up to an end mark; return how much that was."""
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
    """A program with clients of both workers."""

    def __init__(self, query: Query, addresses: list[str]) -> None:
        self._query = query
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

    def send(self, payload: bytes) -> None:
        """Send to the task that the query reads."""
        self._sender.send(TASKS[0], payload)

    def take(self) -> Sequence[bytes]:
        """Wait for a batch."""
        return next(self._batches).payloads


# --- Kafka ------------------------------------------------------------------------------------


class Kafka:
    """One broker, a topic for each trial, with as many partitions as Tuplewire has tasks."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self._address = address
        self._where = {"kafka.bootstrap.servers": address}
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._clients = self._jvm.org.apache.kafka.clients
        self._admin = self._clients.admin.AdminClient.create(self._properties())
        self._topics = 0

    def _properties(self, **more: str) -> Any:
        properties = self._jvm.java.util.Properties()
        settings = {"bootstrap.servers": self._address}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        for name, value in settings.items():
            properties.put(name, value)
        return properties

    def topic(self, partitions: int = PARTITIONS) -> str:
        """Make a topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        topics = self._jvm.java.util.ArrayList()
        topics.add(self._clients.admin.NewTopic(name, partitions, 1))
        self._admin.createTopics(topics).all().get()
        return name

    def delete(self, *names: str) -> None:
        """Delete topics."""
        topics = self._jvm.java.util.ArrayList()
        for name in names:
            topics.add(name)
        self._admin.deleteTopics(topics).all().get()

    def consumer(self, topic: str, partitions: int = PARTITIONS) -> Any:
        """Return a consumer of a topic, from its beginning."""
        bytes_reader = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        consumer = self._clients.consumer.KafkaConsumer(
            self._properties(key_deserializer=bytes_reader, value_deserializer=bytes_reader)
        )
        assigned = self._jvm.java.util.ArrayList()
        for partition in range(partitions):
            assigned.add(self._jvm.org.apache.kafka.common.TopicPartition(topic, partition))
        consumer.assign(assigned)
        consumer.seekToBeginning(assigned)
        return consumer

    def producer(self) -> Any:
        """Return a producer that waits for nothing before it sends."""
        bytes_writer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        return self._clients.producer.KafkaProducer(
            self._properties(key_serializer=bytes_writer, value_serializer=bytes_writer, acks="all")
        )

    def record(self, topic: str, payload: bytes) -> Any:
        """Return a record to send."""
        return self._clients.producer.ProducerRecord(topic, payload)

    def milliseconds(self, count: int) -> Any:
        """Return a duration."""
        return self._jvm.java.time.Duration.ofMillis(count)

    def _count(self, topic: str) -> int:
        consumer = self.consumer(topic)
        ends = consumer.endOffsets(consumer.assignment())
        count = sum(map(int, ends.values()))
        consumer.close()
        return count

    def _save(self, frame: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        """Write the rows to the partitions that stand for the tasks."""
        rows = frame.selectExpr("message as value", "task - 1 as partition")
        writer = rows.write.format("kafka").options(**self._where, topic=topic)
        writer.options(**{f"kafka.{name}": value for name, value in options.items()}).save()

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write it into a topic."""
        topic = self.topic()
        answer = timed(lambda: self._save(frame, topic, options))
        count = self._count(topic)
        self.delete(topic)
        return {**answer, "received": count}

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read a topic."""
        topic = self.topic()
        self._save(frame, topic, {})
        reader = self._spark.read.format("kafka").options(**self._where, subscribe=topic)
        answer = timed(lambda: _noop(reader.load()))
        count = reader.load().count()
        self.delete(topic)
        return {**answer, "received": count}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read a topic by a streaming query."""
        topic = self.topic()
        self._save(frame, topic, {})
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=topic)
        answer = _stream_noop(reader.option("startingOffsets", "earliest").load())
        self.delete(topic)
        return answer

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query from a topic of one partition to another."""
        source, target = self.topic(1), self.topic(1)
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=source)
        reader = reader.option("startingOffsets", "earliest")  # a message may come before the query is there
        frame = reader.load().selectExpr("upper(cast(value as string)) as value")
        return KafkaWire(self, Query(frame, "kafka", {**self._where, "topic": target}), source, target)


class KafkaWire:
    """A program with a producer and a consumer, of Java as Spark's own."""

    def __init__(self, kafka: Kafka, query: Query, source: str, target: str) -> None:
        self._kafka = kafka
        self._query = query
        self._topics = (source, target)
        self._producer = kafka.producer()
        self._consumer = kafka.consumer(target, 1)

    def __enter__(self) -> Self:
        self._query.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.__exit__()
        self._producer.close()
        self._consumer.close()
        self._kafka.delete(*self._topics)

    def send(self, payload: bytes) -> None:
        """Send to the topic that the query reads."""
        self._producer.send(self._kafka.record(self._topics[0], payload))

    def take(self) -> Sequence[bytes]:
        """Wait for records."""
        records = self._consumer.poll(self._kafka.milliseconds(1000)).iterator()
        payloads = []
        while records.hasNext():
            payloads.append(bytes(records.next().value()))
        return payloads


# --- both -------------------------------------------------------------------------------------


def latencies(wire: Wire, count: int, size: int) -> list[float]:
    """Send numbered messages through a query, one each 0.6 s; the milliseconds that each takes.

    The first few are not counted. BenchError unless each comes once.
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
    """What is asked of either system, by name."""

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
        """Read into `noop` what was written off the clock."""
        return self._peers[peer].read(self._frames.frame(rows, size))

    def stream(self, peer: str, rows: int, size: int) -> dict[str, Any]:
        """Do the same with a streaming query."""
        return self._peers[peer].stream(self._frames.frame(rows, size))

    def latency(self, peer: str, count: int, size: int) -> dict[str, Any]:
        """Send single messages through a query that makes them upper case."""
        with self._peers[peer].through() as wire:
            return {"milliseconds": latencies(wire, count, size)}

    def verbs(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return what it answers."""
        return {
            "noop": self._frames.noop,
            "drop": self._frames.drop,
            "write": self.write,
            "read": self.read,
            "stream": self.stream,
            "latency": self.latency,
        }


def main(kafka: str, jars: str, *addresses: str) -> None:
    """Serve."""
    conf = {
        "spark.executorEnv.GRPC_VERBOSITY": "ERROR",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": "",  # a JVM as Spark starts it, with both of its compilers
    }
    with local_session("bench-kafka", cores=2 * CORES, memory="2g", conf=conf) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        serve(Beside(spark, kafka, list(addresses)).verbs())


if __name__ == "__main__":
    main(*sys.argv[2:])
