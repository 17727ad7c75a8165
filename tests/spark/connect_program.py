"""A program that runs topologies over Spark Connect: python connect_program.py REMOTE WORKER WORKER.

A process has either a regular session or a Spark Connect session, so this program needs a separate process.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from tuplewire.errors import ClosedError, ConfigError
from tuplewire.spark import membership
from tuplewire_demos.local_session import local_session
from tuplewire_topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple
from tuplewire_topology.running.statistics import ProcessFailedError
from tuplewire_topology.spark import Rows, TopologyProgress, run_topology, submit_topology

SECONDS = 100.0
COUNT = 1000
TWO = {"topology.workers": 2, "topology.max.spout.pending": 100}


class Numbers(Spout):
    """Emits numbers indefinitely."""

    outputs = ("number",)
    next = 0

    def next_tuple(self) -> None:
        self.collector.emit([self.next], message_id=self.next)
        self.next += 1


class Pass(BasicBolt):
    """Emits each number unchanged, and raises an error at one number."""

    outputs = ("number",)

    def __init__(self, raises_at: int = -1) -> None:
        self.raises_at = raises_at

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == self.raises_at:
            raise LookupError("no such number")
        collector.emit([message["number"]])


def topology(spout: Spout, bolt: BasicBolt, n_spouts: int = 1) -> Topology:
    """Return a topology of numbers and two tasks of a bolt."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout, n_spouts)
    builder.set_bolt("pass", bolt, 2).shuffle_grouping("numbers")
    return builder.create_topology()


def refused(action: Callable[[], object]) -> str:
    """Return the error text of a refused action."""
    try:
        action()
    except ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def main(remote: str, *workers: str) -> None:
    """Print the results as JSON."""
    found: dict[str, object] = {}
    spark = SparkSession.builder.remote(remote).getOrCreate()
    numbers = spark.range(COUNT).withColumnRenamed("id", "number")
    endless = topology(Numbers(), Pass())
    found["slots"] = refused(lambda: submit_topology(spark, endless, conf={"topology.workers": 7}))
    found["membership"] = refused(lambda: membership(spark, range(4)))
    found["session"] = refused(local_session("another").__enter__)

    outputs = {"pass": "number long"}
    of_rows = topology(Rows("number"), Pass(), 2)
    result = run_topology(spark, of_rows, conf=TWO, rows=numbers, outputs=outputs, workers=workers)
    found["rows"] = sorted(row["number"] for row in result.frame.collect())

    try:
        run_topology(spark, topology(Numbers(), Pass(77)), conf=TWO, workers=workers)
    except ProcessFailedError as error:
        found["failure"] = [str(error), *error.__notes__]

    for how in ("stop", "cancel"):
        running = submit_topology(spark, endless, conf=TWO, workers=workers)
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

    out_of_reach = submit_topology(spark, endless, conf=TWO)
    found["progress"] = refused(out_of_reach.progress)
    found["listen"] = refused(lambda: out_of_reach.listen(print))
    found["out of reach"] = refused(out_of_reach.stop)
    while not out_of_reach.wait(0.5):
        out_of_reach.cancel()  # has no effect before the server has the job
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
