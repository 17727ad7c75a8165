"""Source, sink, client and topologies over Spark Connect, which has no SparkContext.

A process has either a regular session or a Spark Connect session, so a separate process is the client.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import doubling as doubling_module
from helpers import eventually, queries
from helpers.doubling import Double, DoubleAndFail, Numbers, doubling
from helpers.drivers import report, run_driver
from helpers.tools import missing
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tuplewire import TaskMessageBatch, Team
from tuplewire.errors import ClosedError, ConfigError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark import ClientHandle, membership, register
from tuplewire_demos.local_session import local_session
from tuplewire_topology.running.statistics import ProcessFailedError
from tuplewire_topology.spark import Rows, TopologyProgress, run_topology, submit_topology

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 100.0
COUNT = 1000
TWO = {"topology.workers": 2, "topology.max.spout.pending": 100}


def refused(action: Callable[[], object]) -> str:
    """Return the error text of a refused action."""
    try:
        action()
    except ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[str]:
    """Serve Spark Connect from the shared session, and yield its address."""
    if find_spec("grpc_status") is None:
        missing("Spark Connect is missing; the extra `dev` has pyspark[connect]")
    context: Any = spark.sparkContext
    packaged = context._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(packaged, "SparkConnectService$"), "MODULE$")
    service.start(context._jsc.sc())
    yield f"sc://127.0.0.1:{service.server().getPort()}"
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


@pytest.mark.long
def test_source_sink_and_client(remote: str, launch: Any, tmp_path: Path) -> None:
    """A client without a JVM writes, sends in functions, streams and reads; everything runs on the server."""
    with launch("spark", {0: [1, 2, 6], 1: [3, 4, 5, 7]}) as running:
        found = run_driver(__file__, remote, "rows", running.endpoints[0].address, tmp_path)
    assert found == {"rows": 1000, "different rows": 1000, "pairs": [100, 100]}


def test_topologies(spark: SparkSession, remote: str) -> None:
    """Rows, failures with tracebacks, stop and cancel work; unsupported calls raise errors with advice."""
    with WorkerProcesses(2, "connect", flags=["--drain-seconds=1"]) as local:
        addresses = (each.unix_address for each in local.endpoints)
        found = run_driver(__file__, remote, "topologies", *addresses)
    jobs = spark.sparkContext.statusTracker()
    eventually(lambda: not jobs.getActiveJobsIds(), SECONDS, "no job of a cancelled topology goes on")
    assert found["rows"] == list(range(1000))
    summary, traceback = found["failure"]
    assert "of 'double': LookupError: no such number" in summary
    assert 'raise LookupError("no such number")' in traceback
    assert found["stop"] > 0
    assert "was cancelled" in found["cancel"]
    assert found["early"]
    assert "7 PySpark tasks at the same time, and Spark has 6 slot(s)" in found["slots"]
    assert "name the workers by workers=" in found["membership"]
    assert "SPARK_CONNECT_MODE_ENABLED is set" in found["session"]
    for what in ("progress", "listen", "out of reach"):
        assert "no worker is reachable" in found[what]
        assert "workers=[...]" in found[what]


def of_rows(spark: SparkSession, address: str, directory: str) -> None:
    """Stream rows of two tasks to 3 and 4, then to 5. Report the rows in 5, and the sums of a team."""
    register(spark)
    where = {"address": address, "topology": "spark"}
    handle = ClientHandle(address, topology="spark")

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with handle as client:
            for batch in batches:
                client.send(TaskMessageBatch.from_arrow(batch.column("task"), batch.column("message")))
                yield batch.select(["task"])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Team.of_stage([6, 7], address=address, topology="spark") as team:
            total = team.all_reduce(sum(batch.num_rows for batch in batches))
        yield pa.RecordBatch.from_pydict({"rows": [int(total)]})

    def send_batch(frame: DataFrame, _: int) -> None:
        messages = frame.select("message").toArrow()["message"].to_pylist()
        with handle as client:
            client.send(TaskMessageBatch.from_columns([5] * len(messages), messages))

    rows = spark.range(1000).selectExpr("cast(id % 2 + 1 as int) as task", "cast(id as string) as message")
    rows.where("message < '500'").write.format("tuplewire").mode("append").options(**where).save()
    rows.where("message >= '500'").mapInArrow(send, "task int").count()
    checkpoints = Path(directory)
    arrived = queries.stream(spark, {**where, "tasks": "1,2"}).selectExpr("task + 2 as task", "message")
    queries.start_sink(arrived, where, checkpoints / "sink", availableNow=True).awaitTermination()
    passed = queries.stream(spark, {**where, "tasks": "3,4"}).writeStream.foreachBatch(send_batch)
    queries.start(passed, checkpoints / "foreachBatch", availableNow=True).awaitTermination()
    frame = spark.read.format("tuplewire").options(**where, tasks="5").load()
    report("rows", frame.count())
    report("different rows", frame.select("message").distinct().count())
    pairs = spark.range(0, 100, 1, 2).mapInArrow(add, "rows long", barrier=True).collect()
    report("pairs", [each.rows for each in pairs])


def of_topologies(spark: SparkSession, *workers: str) -> None:
    """Run, stop and cancel topologies, and report the errors of unsupported calls."""
    numbers = spark.range(COUNT).withColumnRenamed("id", "number")
    endless = doubling(Numbers(None), Double())
    report("slots", refused(lambda: submit_topology(spark, endless, conf={"topology.workers": 7})))
    report("membership", refused(lambda: membership(spark, range(4))))
    report("session", refused(local_session("another").__enter__))

    outputs = {"double": "number long, doubled long"}
    of_rows = doubling(Rows("number"), Double(), 2)
    result = run_topology(spark, of_rows, conf=TWO, rows=numbers, outputs=outputs, workers=workers)
    report("rows", sorted(row["number"] for row in result.frame.collect()))

    try:
        run_topology(spark, doubling(Numbers(None), DoubleAndFail(77)), conf=TWO, workers=workers)
    except ProcessFailedError as error:
        report("failure", [str(error), *error.__notes__])

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
            report(how, running.result(SECONDS).frame.count())
        except ClosedError as error:
            report(how, str(error))

    out_of_reach = submit_topology(spark, endless, conf=TWO)
    report("progress", refused(out_of_reach.progress))
    report("listen", refused(lambda: out_of_reach.listen(print)))
    report("out of reach", refused(out_of_reach.stop))
    out_of_reach.cancel()
    report("early", out_of_reach.wait(SECONDS))


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(doubling_module)  # type: ignore[no-untyped-call]
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    if sys.argv[2] == "rows":
        of_rows(session, *sys.argv[3:])
    else:
        of_topologies(session, *sys.argv[3:])
    session.stop()
