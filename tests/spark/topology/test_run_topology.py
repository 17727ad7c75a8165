"""A topology that runs as the PySpark tasks of a barrier stage."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.admin import samples
from helpers.doubling import Double, DoubleAndDie, DoubleAndFail, Numbers, doubling
from helpers.measured_words import added_up
from pyspark.sql import SparkSession

from tuplewire.errors import ClosedError, ConfigError, TopologyError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_topology import BasicBolt, BasicOutputCollector, FailedError, TopologyContext, Tuple
from tuplewire_topology.running.statistics import ProcessFailedError
from tuplewire_topology.spark import (
    Rows,
    SparkTopology,
    TopologyProgress,
    TopologyResult,
    run_topology,
    submit_topology,
)

pytestmark = pytest.mark.spark

SECONDS = 180.0
TWO = {"topology.workers": 2}
SMALL = {**TWO, "topology.max.spout.pending": 100}
SCHEMA = {"double": "number long, doubled long"}
COUNT = 3000
STILL_SECONDS = 30.0


@pytest.fixture(scope="module")
def endpoints(spark: SparkSession) -> Iterator[list[Endpoint]]:  # noqa: ARG001 - Spark forks: start it first
    """Run two workers that all topologies here use, one after the other."""
    with WorkerProcesses(2, "tests", flags=["--drain-seconds=1"]) as local:
        yield local.endpoints


@pytest.fixture
def workers(endpoints: list[Endpoint]) -> list[str]:
    """Return the addresses of the workers."""
    return [each.unix_address for each in endpoints]


Run = Callable[..., TopologyResult]


@pytest.fixture
def run(spark: SparkSession, workers: list[str]) -> Run:
    """Return a function that runs a topology to its end in two PySpark tasks on the workers."""
    return partial(run_topology, spark, conf=TWO, workers=workers, progress=lambda _: None)


Submit = Callable[..., SparkTopology]


@pytest.fixture
def submit(spark: SparkSession, workers: list[str]) -> Submit:
    """Return a function that starts a topology on the workers."""
    return partial(submit_topology, spark, conf=TWO, workers=workers)


class Fail(DoubleAndFail):
    """Records each start."""

    def __init__(self, at: int, notes: Path) -> None:
        super().__init__(at)
        self.notes = notes

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        with (self.notes / "begun").open("a") as file:
            file.write("x")


class FailInTurn(Double):
    """Raises an error in one task, and then in the other while it ends because of the first."""

    def __init__(self, notes: Path) -> None:
        self.waits = notes / "waits"

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.is_first = context.task_index == 1

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        if self.is_first:
            eventually(self.waits.exists)
            raise LookupError("the cause")
        self.waits.touch()
        eventually(lambda: not any("executor numbers" in each.name for each in threading.enumerate()))
        raise LookupError("what it led to")


class FailToPrepare(Double):
    """Fails in prepare()."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        raise ConnectionError(f"no database for task {context.task}")


class DieAndRefuse(DoubleAndDie):
    """Also raises an error at each tenth number."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] % 10 == 0:
            raise ValueError(message["number"])
        super().execute(message, collector)


class Tally(BasicBolt):
    """Records at its end the count of its numbers."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.seen = 0

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.task = context.task

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        self.seen += 1

    def cleanup(self) -> None:
        (self.notes / f"seen-{self.task}").write_text(str(self.seen))


def pairs(count: int) -> list[tuple[int, int]]:
    """Return the expected pairs for `count` numbers."""
    return [(number, 2 * number) for number in range(count)]


def test_rows_of_a_frame(spark: SparkSession, run: Run) -> None:
    """Each row of a DataFrame is emitted once, by column name; without a schema, fields return as strings."""
    rows = spark.range(COUNT).selectExpr("'x' as other", "id as number")
    result = run(doubling(Rows("number"), Double(), 2), rows=rows)
    assert result.frame.dtypes == [("number", "string"), ("doubled", "string")]
    found = sorted((int(row["number"]), int(row["doubled"])) for row in result.frame.collect())
    assert found == pairs(COUNT)


class Choosy(Double):
    """Raises an error at one of four numbers, and fails another."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] % 4 == 0:
            raise ValueError(f"no number: {message['number']}")
        if message["number"] % 4 == 2:
            raise FailedError
        super().execute(message, collector)


def test_dead_letters_are_rows_of_the_result(spark: SparkSession, run: Run) -> None:
    """Tuples and rows that fail too often are dead letters in the result, each once, and can run again."""
    told: list[TopologyProgress] = []
    result = run(
        doubling(Rows("number"), Choosy(), 2),
        conf={**TWO, "topology.error.policy": "dead_letter", "topology.error.tries": 2},
        outputs=SCHEMA,
        rows=spark.range(40).withColumnRenamed("id", "number"),
        progress=told.append,
    )
    assert sorted(map(tuple, result.frame.collect())) == [pair for pair in pairs(40) if pair[0] % 2]
    letters = result.dead_letters
    found = sorted(
        (
            json.loads(row["tuple"])["number"],
            row["component"],
            row["source_component"],
            row["tries"],
            row["reason"],
        )
        for row in letters.collect()
    )
    assert found == [
        (number, "double", "numbers", 2, f"ValueError: no number: {number}")
        if number % 4 == 0
        else (
            number,
            "numbers",
            "numbers",
            3,
            "MaxAttemptsExceededError: bolts have failed the row, or it took too long",
        )
        for number in range(0, 40, 2)
    ]
    failed = result.failed_rows
    assert (failed.dead_letter_count, failed.count) == (20, 10)
    assert {int(example.removeprefix("number=")) % 4 for example in failed.examples} == {2}
    assert any("ValueError: no number" in error for error in failed.errors)
    spouts = [each for each in result.executors if each.component == "numbers"]
    assert sum(each.counts.failed for each in spouts) == 30
    assert told[-1].dead_letter_count == 20
    assert letters.where("time between now() - interval 1 hour and now()").count() == 20
    again = run(
        doubling(Rows("number"), Double(), 2),
        outputs=SCHEMA,
        rows=letters.selectExpr("from_json(tuple, 'number long').number as number"),
    )
    assert sorted(map(tuple, again.frame.collect())) == [pair for pair in pairs(40) if pair[0] % 2 == 0]
    with pytest.raises(TopologyError, match="no dead letters are stored: set topology"):
        _ = again.dead_letters


def test_results_are_those_of_one_generation(run: Run, endpoints: list[Endpoint], tmp_path: Path) -> None:
    """If a process is killed, the topology starts again. Each dead letter and metric counts numbers once."""
    generations = set()
    result = run(
        doubling(Numbers(COUNT), DieAndRefuse(COUNT // 2 + 1, tmp_path)),
        conf={**SMALL, "topology.error.policy": "dead_letter"},
        outputs=SCHEMA,
        progress=lambda progress: generations.add(progress.generation),
    )
    assert len(list(tmp_path.glob("died-*"))) == 1
    assert len(generations - {None}) == 2
    assert sorted(map(tuple, result.frame.collect())) == [pair for pair in pairs(COUNT) if pair[0] % 10]
    letters = sorted(json.loads(row["tuple"])["number"] for row in result.dead_letters.collect())
    assert letters == list(range(0, COUNT, 10))
    pages = [samples(each.metrics_url) for each in endpoints]
    assert sum(added_up(each, "tuplewire_user_doubled_total") for each in pages) == COUNT * 9 // 10


def test_failing_bolt(spark: SparkSession, submit: Submit, tmp_path: Path) -> None:
    """A bolt's error ends the job immediately, and the raised error has its traceback."""
    running = submit(doubling(Numbers(None), Fail(77, tmp_path)), name="t")
    with pytest.raises(
        ProcessFailedError, match=r"'t' has failed: task \d of 'double': LookupError: no such n"
    ) as caught:
        running.result(SECONDS)
    assert 'in execute\n    raise LookupError("no such number")\n' in "".join(caught.value.__notes__)
    assert (tmp_path / "begun").read_text() == "xx", "an error of the user's was tried again"
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(running.job_group)]
    assert "FAILED" in [job.status for job in jobs if job]


class Words(Double):
    """Emits a string instead of a number."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([f"number {message['number']}", ""])


@pytest.mark.parametrize(
    ("spout", "bolt", "more", "message"),
    [
        # A bolt that fails because its PySpark task ends after another failure is not named.
        (Numbers(None), FailInTurn, {}, "the cause"),
        # A bolt that fails in prepare() ends the job before any spout emits.
        (Numbers(None), FailToPrepare, {}, "no database for task"),
        # A session limit in the topology's settings applies in the PySpark tasks.
        (
            Numbers(100),
            Double,
            {"conf": {**TWO, "tuplewire.session.max_message_bytes": 3}},
            "exceeds the limit of 3 bytes",
        ),
        # A value that the schema cannot hold is named with its bolt and column.
        (
            Numbers(None),
            Words,
            {"outputs": {"double": "n timestamp, word string"}},
            r"'double': column 'n' is timestamp.* cannot hold",
        ),
    ],
)
def test_failures_are_named(
    run: Run, tmp_path: Path, spout: Numbers, bolt: type[Double], more: dict[str, Any], message: str
) -> None:
    """Each failure ends the topology with an error that names its cause."""
    made = FailInTurn(tmp_path) if bolt is FailInTurn else bolt()
    with pytest.raises(ProcessFailedError, match=message):
        run(doubling(spout, made), **more)


def test_cancelled_job(spark: SparkSession, submit: Submit, tmp_path: Path) -> None:
    """A topology with a cancelled job still processes its emitted tuples, and closes all components."""
    running = submit(doubling(Numbers(None, tmp_path), Tally(tmp_path)), conf=SMALL, name="endless")
    assert running.progress() == TopologyProgress()
    with pytest.raises(TimeoutError, match="it continues"):
        running.result(0.01)
    eventually(lambda: running.progress().executed > 1000, SECONDS, "tuples are executed")
    context = spark.sparkContext
    (job,) = context.statusTracker().getActiveJobsIds()
    assert job in context.statusTracker().getJobIdsForGroup(running.job_group)
    context.cancelJobGroup(running.job_group)
    with pytest.raises(ClosedError, match="'endless' was cancelled"):
        running.result(SECONDS)
    seen = [int(path.read_text()) for path in tmp_path.glob("seen-*")]
    assert len(seen) == 2
    assert sum(seen) == int((tmp_path / "emitted").read_text())


class StandStill(Double):
    """Blocks at its first number, much longer than a cancelled job may take to end."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        (self.notes / "stands").touch()
        time.sleep(STILL_SECONDS)
        (self.notes / "went on").touch()


def test_a_wait_ends_with_the_job(submit: Submit, tmp_path: Path) -> None:
    """A spout that waits for a blocked bolt does not delay the end of a cancelled job."""
    running = submit(doubling(Numbers(None), StandStill(tmp_path)), name="still")
    eventually((tmp_path / "stands").exists, SECONDS, "the bolt stands still")
    running.cancel()
    with pytest.raises(ClosedError, match="'still' was cancelled"):
        running.result(STILL_SECONDS / 2)
    assert not (tmp_path / "went on").exists()
    early = submit(doubling(Numbers(None), Double()), name="early")
    early.cancel()
    assert early.wait(SECONDS), "a job that Spark has not started is cancelled once it has"


def test_too_few_slots(spark: SparkSession) -> None:
    """A topology that needs more slots than Spark has is refused before a job starts, with advice."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    jobs = scheduler.numTotalJobs()
    with pytest.raises(ConfigError, match=r"runs 7 PySpark tasks .* has 6 slot\(s\): give it more cores"):
        run_topology(spark, doubling(Numbers(1), Double()), conf={"topology.workers": 7})
    assert scheduler.numTotalJobs() == jobs


def test_what_does_not_fit(spark: SparkSession) -> None:
    """Schemas and rows that do not fit the topology are refused before anything runs."""
    plain = doubling(Numbers(1), Double())
    with pytest.raises(TopologyError, match="columns n, and its tuples have the fields number, doubled"):
        run_topology(spark, plain, outputs={"double": "n long"})
    with pytest.raises(TopologyError, match="not a component"):
        run_topology(spark, plain, outputs={"triple": None})
    with pytest.raises(TopologyError, match="for a Rows spout, and the topology has no such spout"):
        run_topology(spark, plain, rows=spark.range(1))
    bound = Double()
    bound.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TopologyError, match=r"'double' cannot be sent .* create in open\(\) or prepare\(\)"):
        run_topology(spark, doubling(Numbers(1), bound))
    of_rows = doubling(Rows("number"), Double(), 2)
    with pytest.raises(TopologyError, match="emits the rows of a DataFrame: pass it"):
        run_topology(spark, of_rows, conf=TWO)
    with pytest.raises(TopologyError, match="emits number, and the DataFrame has only id"):
        run_topology(spark, of_rows, conf=TWO, rows=spark.range(1))
    with pytest.raises(TopologyError, match="give it an executor for each"):
        run_topology(spark, of_rows, conf={"topology.workers": 3}, rows=spark.range(1))
