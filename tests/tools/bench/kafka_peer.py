"""Kafka as used by bench-kafka: Spark's connector, and Java's own clients, in Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka_broker import PARTITIONS
from pyspark.sql import DataFrame, SparkSession
from queries import Wire, running, stream_noop
from spark_agent import noop, timed


class Kafka:
    """One broker, and a topic per trial with the same number of partitions as Tuplewire has tasks."""

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

    def _topic(self, partitions: int = PARTITIONS) -> str:
        """Create a topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        topics = self._jvm.java.util.ArrayList()
        topics.add(self._clients.admin.NewTopic(name, partitions, 1))
        self._admin.createTopics(topics).all().get()
        return name

    def _delete(self, *names: str) -> None:
        """Delete topics."""
        topics = self._jvm.java.util.ArrayList()
        for name in names:
            topics.add(name)
        self._admin.deleteTopics(topics).all().get()

    def _consumer(self, topic: str, partitions: int = PARTITIONS) -> Any:
        """Return a consumer of a topic, from its first record."""
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

    def _count(self, topic: str) -> int:
        consumer = self._consumer(topic)
        ends = consumer.endOffsets(consumer.assignment())
        count = sum(map(int, ends.values()))
        consumer.close()
        return count

    def _save(self, frame: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        """Write the rows to the partitions that correspond to the tasks."""
        rows = frame.selectExpr("message as value", "task - 1 as partition")
        writer = rows.write.format("kafka").options(**self._where, topic=topic)
        writer.options(**{f"kafka.{name}": value for name, value in options.items()}).save()

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a frame into a topic."""
        topic = self._topic()
        answer = timed(lambda: self._save(frame, topic, options))
        count = self._count(topic)
        self._delete(topic)
        return {**answer, "received": count}

    def read(self, frame: DataFrame) -> dict[str, Any]:
        """Read a topic."""
        topic = self._topic()
        self._save(frame, topic, {})
        reader = self._spark.read.format("kafka").options(**self._where, subscribe=topic)
        answer = timed(lambda: noop(reader.load()))
        count = reader.load().count()
        self._delete(topic)
        return {**answer, "received": count}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read a topic with a streaming query."""
        topic = self._topic()
        self._save(frame, topic, {})
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=topic)
        answer = stream_noop(reader.option("startingOffsets", "earliest").load())
        self._delete(topic)
        return answer

    @contextmanager
    def through(self) -> Iterator[Wire]:
        """Run a query from a topic of one partition to another.

        The program at its ends has a Java producer that sends immediately, and a Java consumer.
        """
        source, target = self._topic(1), self._topic(1)
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=source)
        reader = reader.option("startingOffsets", "earliest")  # a message may precede the query
        frame = reader.load().selectExpr("upper(cast(value as string)) as value")
        writes = "org.apache.kafka.common.serialization.ByteArraySerializer"
        clients = self._clients.producer
        producer = clients.KafkaProducer(
            self._properties(key_serializer=writes, value_serializer=writes, acks="all")
        )
        consumer = self._consumer(target, 1)
        wait = self._jvm.java.time.Duration.ofMillis(1000)

        def take() -> list[bytes]:
            records = consumer.poll(wait).iterator()
            payloads = []
            while records.hasNext():
                payloads.append(bytes(records.next().value()))
            return payloads

        with running(frame, "kafka", {**self._where, "topic": target}):
            yield Wire(lambda payload: producer.send(clients.ProducerRecord(source, payload)), take)
        producer.close()
        consumer.close()
        self._delete(source, target)
