"""Kafka as used by bench-kafka: Spark's connector, and Java's own clients, in Spark's JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from kafka_broker import PARTITIONS
from pyspark.sql import DataFrame, SparkSession
from queries import Query, Wire, noop, stream_noop
from spark_agent import timed


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

    def topic(self, partitions: int = PARTITIONS) -> str:
        """Create a topic."""
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

    def producer(self) -> Any:
        """Return a producer that sends immediately."""
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
        """Write the rows to the partitions that correspond to the tasks."""
        rows = frame.selectExpr("message as value", "task - 1 as partition")
        writer = rows.write.format("kafka").options(**self._where, topic=topic)
        writer.options(**{f"kafka.{name}": value for name, value in options.items()}).save()

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> dict[str, Any]:
        """Write a frame into a topic."""
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
        answer = timed(lambda: noop(reader.load()))
        count = reader.load().count()
        self.delete(topic)
        return {**answer, "received": count}

    def stream(self, frame: DataFrame) -> dict[str, Any]:
        """Read a topic with a streaming query."""
        topic = self.topic()
        self._save(frame, topic, {})
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=topic)
        answer = stream_noop(reader.option("startingOffsets", "earliest").load())
        self.delete(topic)
        return answer

    def through(self) -> AbstractContextManager[Wire]:
        """Run a query from a topic of one partition to another."""
        source, target = self.topic(1), self.topic(1)
        reader = self._spark.readStream.format("kafka").options(**self._where, subscribe=source)
        reader = reader.option("startingOffsets", "earliest")  # a message may precede the query
        frame = reader.load().selectExpr("upper(cast(value as string)) as value")
        return KafkaWire(self, Query(frame, "kafka", {**self._where, "topic": target}), source, target)


class KafkaWire:
    """A program with a Java producer and consumer, in the same way as Spark's connector."""

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
