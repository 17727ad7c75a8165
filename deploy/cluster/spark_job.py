"""The Spark jobs of deploy/cluster-check.sh, with a worker in the pod of each executor.

spark_job.py topology    a shuffle, and a topology in the executors
spark_job.py sink        a shuffle, an exactly-once write and a read, through workers that the driver assigns
spark_job.py stream      a query that reads numbers while an executor's pod is deleted
spark_job.py team        a barrier stage whose tasks sum arrays together
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
from code_digest import code_digest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

import tuplewire
from tuplewire.errors import TuplewireError
from tuplewire.membership import Membership
from tuplewire.spark import membership, register
from tuplewire_topology import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from tuplewire_topology.spark import Rows, run_topology

COUNT = 10_000
RANKS = 4
TEAM_SECONDS = 20.0
"""The work of the team: long enough to check the nodes of its pods."""
RATE = 200
"""Numbers a second of the stream: 50 seconds are longer than a pod has to end."""
ARRIVE_SECONDS = 120.0


class Double(BasicBolt):
    """Emits twice the id."""

    outputs = ("number",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([2 * message["id"]])


def check(found: object, wanted: object) -> None:
    """End with an error where something else was found."""
    if found != wanted:
        sys.exit(f"found {found}, not {wanted}")


def shuffle(spark: SparkSession) -> None:
    """Group numbers, which executors have to exchange for it."""
    groups = spark.range(COUNT).repartition(4).groupBy((F.col("id") % 10).alias("digit")).count()
    check(groups.count(), 10)


def topology(spark: SparkSession) -> None:
    """Double numbers, and check their count and sum."""
    shuffle(spark)
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
    shuffle(spark)
    register(spark)
    with membership(spark, tasks=range(8), min_workers=2) as workers:
        workers.wait(2)
        rows = spark.range(COUNT).selectExpr("CAST(id % 8 AS INT) AS task", "CAST(id AS STRING) AS message")
        writer = rows.write.format("tuplewire").mode("append").option("address", workers.address)
        writer.option("deliveryGuarantee", "exactlyOnce").save()
        reader = spark.read.format("tuplewire").option("address", workers.address)
        found = reader.option("tasks", "0-7").load()
        check(found.select(F.col("message").cast("string")).distinct().count(), COUNT)
        check(found.count(), COUNT)


def _sent(workers: Membership, numbers: range) -> bool:
    """Send numbers by way of a worker that is there now; return whether all of them are acknowledged."""
    try:
        with tuplewire.Client(workers.address) as client:
            for number in numbers:
                client.send(number % 8, b"%d" % number)
            client.flush(10.0)
    except TuplewireError:  # its pod was deleted
        return False
    return True


def stream(spark: SparkSession) -> None:
    """Send numbers and read them with a query, and check that each one arrives."""
    register(spark)
    seen: set[int] = set()

    def note(rows: DataFrame, _: int) -> None:
        seen.update(
            int(row.number) for row in rows.select(F.col("message").cast("string").alias("number")).collect()
        )

    with membership(spark, tasks=range(8), min_workers=2) as workers:
        workers.wait(2)
        reader = (
            spark.readStream.format("tuplewire").option("address", workers.address).option("tasks", "0-7")
        )
        query = (
            reader.load()
            .writeStream.option("checkpointLocation", "/tmp/checkpoint")  # noqa: S108 - the pod's own
            .foreachBatch(note)
            .start()
        )
        print("numbers are being sent", flush=True)
        for first in range(0, COUNT, RATE):
            while not _sent(workers, range(first, first + RATE)):
                time.sleep(0.1)
            time.sleep(1.0)
        deadline = time.monotonic() + ARRIVE_SECONDS
        while len(seen) < COUNT and query.isActive and time.monotonic() < deadline:
            time.sleep(1.0)
        query.stop()
    check(sorted(seen) == list(range(COUNT)), True)


def _sum_together(_: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Sum arrays with all tasks of the stage; yield the rank, the number of sums, and the pod."""
    with tuplewire.Team.of_stage(range(RANKS)) as group:
        rounds, end = 0, time.monotonic() + TEAM_SECONDS
        while group.broadcast(time.monotonic() < end):  # by the clock of rank 0
            rounds += 1
            total = group.all_reduce(np.full(1000, group.rank + rounds))
            check(set(total.tolist()), {sum(range(RANKS)) + RANKS * rounds})
        yield group.rank, rounds, socket.gethostname()


def team(spark: SparkSession) -> None:
    """Run a Team in a barrier stage, and check that all ranks were in each round, in two pods."""
    with membership(spark, tasks=range(RANKS), min_workers=2) as workers:
        workers.wait(2)
        print("the team is at work", flush=True)
        stage = spark.sparkContext.parallelize(range(RANKS), RANKS).barrier()
        ranks, rounds, pods = zip(*stage.mapPartitions(_sum_together).collect(), strict=True)
    check(sorted(ranks), list(range(RANKS)))
    check((len(set(rounds)), len(set(pods))), (1, 2))
    print(f"{RANKS} ranks in 2 pods have made {2 * rounds[0]} calls", flush=True)


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    {"topology": topology, "sink": sink, "stream": stream, "team": team}[sys.argv[1]](session)
    print(f"passed: {sys.argv[1]}, code {code_digest()}", flush=True)
    session.stop()
