"""The Spark jobs of deploy/cluster-check.sh, in cluster mode, with a worker in each of their pods.

spark_job.py topology    a shuffle, and a topology in the executors
spark_job.py sink        an exactly-once write and a read, through workers that the driver assigns
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from tuplewire.spark import membership, register
from tuplewire.spark.topology import Rows, run_topology
from tuplewire.topology import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple

COUNT = 10_000


class Double(BasicBolt):
    """Emits twice the id."""

    outputs = ("number",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([2 * message["id"]])


def check(found: object, wanted: object) -> None:
    """End with an error where something else was found."""
    if found != wanted:
        sys.exit(f"found {found}, not {wanted}")


def topology(spark: SparkSession) -> None:
    """Double numbers, and check their count and sum."""
    groups = spark.range(COUNT).repartition(4).groupBy((F.col("id") % 10).alias("digit")).count()
    check(groups.count(), 10)
    builder = TopologyBuilder()
    builder.set_spout("numbers", Rows("id"), 2)
    builder.set_bolt("double", Double(), 2).shuffle_grouping("numbers")
    result = run_topology(
        spark,
        builder.create_topology(),
        conf={"topology.workers": 2},
        rows=spark.range(COUNT),
        outputs={"double": "number long"},
    )
    found = result.frame.agg(F.count("*"), F.sum("number")).collect()[0]
    check(tuple(found), (COUNT, COUNT * (COUNT - 1)))


def sink(spark: SparkSession) -> None:
    """Write rows exactly once, and check that reading returns each of them."""
    register(spark)
    with membership(spark, tasks=range(8), at_least=2) as workers:
        workers.wait(2)
        rows = spark.range(COUNT).selectExpr("CAST(id % 8 AS INT) AS task", "CAST(id AS STRING) AS message")
        writer = rows.write.format("tuplewire").mode("append").option("address", workers.address)
        writer.option("deliveryGuarantee", "exactlyOnce").save()
        reader = spark.read.format("tuplewire").option("address", workers.address)
        found = reader.option("tasks", "0-7").load()
        check(found.select(F.col("message").cast("string")).distinct().count(), COUNT)
        check(found.count(), COUNT)


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    {"topology": topology, "sink": sink}[sys.argv[1]](session)
    print(f"passed: {sys.argv[1]}, {COUNT} rows", flush=True)
    session.stop()
