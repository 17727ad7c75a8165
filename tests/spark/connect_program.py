"""A program that runs topologies over Spark Connect; test_run_topology_connect.py starts it.

A process has either a session of its own or one of Spark Connect, so it cannot share the tests' process.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from pyspark.sql import SparkSession

from tuplewire.errors import ClosedError, ConfigError
from tuplewire.spark.java import find_java, wrapped_home
from tuplewire.spark.topology import Rows, TopologyProgress, run_topology, submit_topology
from tuplewire.topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple
from tuplewire.topology.termination import ProcessFailedError
from tuplewire_service.server.launch import LocalWorkers

SECONDS = 100.0
COUNT = 1000
TWO = {"topology.workers": 2, "topology.max.spout.pending": 100}


class Numbers(Spout):
    """Emits numbers without end."""

    outputs = ("number",)
    next = 0

    def next_tuple(self) -> None:
        self.collector.emit([self.next], message_id=self.next)
        self.next += 1


class Pass(BasicBolt):
    """Emits what it gets, and raises at one number."""

    outputs = ("number",)

    def __init__(self, raises_at: int = -1) -> None:
        self.raises_at = raises_at

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == self.raises_at:
            raise LookupError("no such number")
        collector.emit([message["number"]])


def topology(spout: Spout, bolt: BasicBolt, n_spouts: int = 1) -> Topology:
    """Return numbers, and two tasks of a bolt."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout, n_spouts)
    builder.set_bolt("pass", bolt, 2).shuffle_grouping("numbers")
    return builder.create_topology()


def main() -> None:
    """Print what has come out, as JSON."""
    os.environ |= {
        "JAVA_HOME": str(wrapped_home(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    found: dict[str, object] = {}
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    with LocalWorkers(2, "connect", flags=["--drain-seconds=1"]) as local:
        workers = [each.unix_address for each in local.endpoints]
        try:
            run_topology(spark, topology(Numbers(), Pass()), conf={"topology.workers": 3}, workers=workers)
        except ConfigError as error:
            found["slots"] = str(error)

        numbers = spark.range(COUNT).withColumnRenamed("id", "number")
        outputs = {"pass": "number long"}
        of_rows = topology(Rows("number"), Pass(), 2)
        result = run_topology(spark, of_rows, conf=TWO, rows=numbers, outputs=outputs, workers=workers)
        found["rows"] = sorted(row["number"] for row in result.frame.collect())

        try:
            run_topology(spark, topology(Numbers(), Pass(77)), conf=TWO, workers=workers)
        except ProcessFailedError as error:
            found["failure"] = [str(error), *error.__notes__]

        for how in ("stop", "cancel"):
            running = submit_topology(spark, topology(Numbers(), Pass()), conf=TWO, workers=workers)
            executes = threading.Event()

            def look(progress: TopologyProgress, executes: threading.Event = executes) -> None:
                if progress.executed:
                    executes.set()

            running.listen(look)
            assert executes.wait(SECONDS)
            getattr(running, how)()
            try:
                found[how] = running.result(SECONDS).frame.count()
            except ClosedError as error:
                found[how] = str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
