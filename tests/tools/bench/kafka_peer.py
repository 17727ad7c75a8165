"""Kafka as used by bench-kafka: Spark's connector, and Java's own clients, in Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka_broker import PARTITIONS
from pyspark.sql import DataFrame, SparkSession
from spark_agent import Peer, Wire, query, spark

_BYTES = "org.apache.kafka.common.serialization.ByteArray"


class Kafka(Peer):
    """One broker, and a topic per trial with the same number of partitions as Tuplewire has tasks."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        super().__init__(spark)
        self._where = {"kafka.bootstrap.servers": address}
        self._servers = {"bootstrap.servers": address}
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._clients = self._jvm.org.apache.kafka.clients
        self._admin = self._clients.admin.AdminClient.create(self._properties())
        self._topics = 0
        self._topic = ""

    def _properties(self, **more: str) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in {**self._servers, **more}.items():
            properties.put(name.replace("_", "."), value)
        return properties

    def _list(self, *items: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        for each in items:
            made.add(each)
        return made

    def _create(self, partitions: int) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        self._admin.createTopics(self._list(self._clients.admin.NewTopic(name, partitions, 1))).all().get()
        return name

    def _consumer(self, topic: str, partitions: int) -> Any:
        """Return a consumer of a topic, from its first record."""
        reads = f"{_BYTES}Deserializer"
        consumer = self._clients.consumer.KafkaConsumer(
            self._properties(key_deserializer=reads, value_deserializer=reads)
        )
        partition = self._jvm.org.apache.kafka.common.TopicPartition
        assigned = self._list(*(partition(topic, number) for number in range(partitions)))
        consumer.assign(assigned)
        consumer.seekToBeginning(assigned)
        return consumer

    def begin(self) -> None:
        self._topic = self._create(PARTITIONS)

    def save(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """See Peer. The partitions correspond to the tasks."""
        rows = frame.selectExpr("message as value", "task - 1 as partition")
        writer = rows.write.format("kafka").options(**self._where, topic=self._topic)
        writer.options(**{f"kafka.{name}": value for name, value in options.items()}).save()

    def load(self, reader: Any, **options: str) -> DataFrame:
        """See Peer. From the first record, which may precede the query."""
        given = {**self._where, "subscribe": self._topic, "startingOffsets": "earliest", **options}
        frame: DataFrame = reader.format("kafka").options(**given).load()
        return frame

    def take(self) -> int:
        consumer = self._consumer(self._topic, PARTITIONS)
        count = sum(map(int, consumer.endOffsets(consumer.assignment()).values()))
        consumer.close()
        self._admin.deleteTopics(self._list(self._topic)).all().get()
        return count

    @contextmanager
    def through(self) -> Iterator[Wire]:
        """See Peer. From a topic of one partition to another, with a producer and a consumer of Java."""
        source, target = self._create(1), self._create(1)
        messages = self.load(self.spark.readStream, subscribe=source)
        frame = messages.selectExpr("upper(cast(value as string)) as value")
        writes = f"{_BYTES}Serializer"
        clients = self._clients.producer
        producer = clients.KafkaProducer(
            self._properties(key_serializer=writes, value_serializer=writes, acks="all")
        )
        consumer = self._consumer(target, 1)
        wait = self._jvm.java.time.Duration.ofMillis(1000)

        def take() -> list[bytes]:
            return [bytes(each.value()) for each in consumer.poll(wait).iterator()]

        with query(frame, "kafka", {**self._where, "topic": target}):
            yield Wire(lambda payload: producer.send(clients.ProducerRecord(source, payload)), take)
        producer.close()
        consumer.close()
        self._admin.deleteTopics(self._list(source, target)).all().get()


def spark_and_kafka(addresses: list[str], jars: str, kafka: str) -> None:
    """Answer requests as spark_agent.spark, also with the broker at the address `kafka`."""
    conf = {
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": "",  # a JVM as Spark starts it, with both of its compilers
    }
    spark(addresses, conf, lambda session: Kafka(session, kafka))
