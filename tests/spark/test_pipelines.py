"""The pipelines, on real Spark and real workers."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import eventually
from pyspark.sql import SparkSession

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_demos import flight_check, flight_input, flights
from tuplewire_demos.attachment import Attachment
from tuplewire_demos.input import InputError
from tuplewire_demos.jobs import PipelineError, bolt_frame, run_jobs
from tuplewire_demos.report import Progress
from tuplewire_demos.stream import Outlet, receive

pytestmark = pytest.mark.spark

NUMBERS = re.compile(r"[0-9][0-9,.]*")
HEADER = "year,carrier,dep_delay,origin,dest\n"


@pytest.fixture
def quiet() -> Progress:
    """Return a progress that nobody sees."""
    return Progress(io.StringIO())


@pytest.fixture
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Make Spark read even small files in many pieces."""
    for key, value in (("maxPartitionBytes", "20000"), ("openCostInBytes", "0")):
        spark.conf.set(f"spark.sql.files.{key}", value)
    yield
    for key in ("maxPartitionBytes", "openCostInBytes"):
        spark.conf.unset(f"spark.sql.files.{key}")


# --- flights ----------------------------------------------------------------------------------


def test_flights_of_2013(spark: SparkSession, flights_workers: Any, quiet: Progress) -> None:
    """All 336,776 flights go through both workers, and the answer is Spark's own."""
    with flight_input.nyc_flights() as path:
        result = flights.run_flights(spark, flights_workers.endpoints, path=path, progress=quiet)
    assert result.differences == []
    assert result.ok, result.ledgers
    assert result.rows == 336_776
    assert result.account.accepted == sum(ledger.accepted for ledger in result.ledgers.values())
    assert 0 < result.account.crossed < result.account.messages < 1000
    assert result.skipped.count == 0
    rows = {row["carrier"]: row for row in result.table.collect()}
    assert len(rows) == 16
    assert sum(row["flights"] for row in rows.values()) == 336_776
    assert rows["UA"]["flights"] == 58_665
    assert rows["AS"]["busiest_route"] == "EWR-SEA"
    shown = io.StringIO()
    flights.write_result(shown, result)
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    sample = page.partition("```\nEqual to")[2].partition("```")[0].splitlines()
    printed = {NUMBERS.sub("#", line) for line in shown.getvalue().splitlines()}
    assert len(sample) == 3
    assert all(NUMBERS.sub("#", line) in printed for line in sample[1:]), shown.getvalue()
    assert all(ledger.accepted > 10 for ledger in result.ledgers.values())


def test_flights_of_a_file(spark: SparkSession, launch: Any, quiet: Progress, tmp_path: Path) -> None:
    """A user's own file, with three workers: quotes, absent delays, ties and a byte order mark."""
    path = tmp_path / "my [new] flights, {1} 50%*.csv"
    path.write_bytes(
        b"\xef\xbb\xbfdest,origin,note, carrier ,dep_delay\r\n"
        b'B,A,"x, ""y""",ONE,10\r\n'
        b"C,A,,ONE,20.5\r\n"
        b"\r\n"
        b"C,A,,TWO,NA\r\n"
        b"B,A,,TWO,\r\n"
    )
    with launch("flights", flights.assignment_for(3, 3)) as running:
        result = flights.run_flights(spark, running.endpoints, path=path, n_bolts=3, progress=quiet)
    assert result.ok, result
    assert result.skipped.count == 0
    assert [tuple(row) for row in result.table.orderBy("carrier").collect()] == [
        ("ONE", 2, 15.25, 0.5, "A-B", 1),
        ("TWO", 2, None, None, "A-B", 1),
    ]


def test_flights_skips_bad_rows(
    spark: SparkSession, flights_workers: Any, quiet: Progress, tmp_path: Path
) -> None:
    """Every row that is no flight is left out, with its line number, the reason and its text."""
    path = tmp_path / "flights.csv"
    path.write_bytes(
        HEADER.encode()
        + b"2013,AA,1,JFK,LAX\n"
        + b"2013,AA,1,JFK\n"
        + b"\n"
        + b"2013,AA,soon,JFK,LAX\n"
        + b"2013,,1,JFK,LAX\n"
        + b"2013,AA\xff,1,JFK,LAX\n"
        + b"2013,AA,inf,JFK,LAX\n"
        + b"2013,AA,NaN,JFK,LAX\n"
        + b'2013,"AA,1,JFK,LAX\n'
        + b"2013,AA,3,JFK,LAX\n"
    )
    result = flights.run_flights(spark, flights_workers.endpoints, path=path, progress=quiet)
    assert result.ok, result
    assert [(row.line, row.problem, row.text) for row in result.skipped.first] == [
        (3, "has not the header's 5 columns", "2013,AA,1,JFK"),
        (5, "has a dep_delay that is no number", "2013,AA,soon,JFK,LAX"),
        (6, "has no carrier", "2013,,1,JFK,LAX"),
        (7, "is not UTF-8", "2013,AA\\xff,1,JFK,LAX"),
        (8, "has a dep_delay that is no number", "2013,AA,inf,JFK,LAX"),
    ]
    assert result.skipped.count == 7
    assert [(row["carrier"], row["flights"], row["mean_delay"]) for row in result.table.collect()] == [
        ("AA", 2, 2.0)
    ]
    shown = io.StringIO()
    flights.write_result(shown, result)
    assert (
        "Skipped 7 bad row(s):\n  line 3 has not the header's 5 columns: 2013,AA,1,JFK\n" in shown.getvalue()
    )
    assert "  ... and 2 more\n" in shown.getvalue()
    assert "Equal to Spark's own groupBy on the same rows: yes\n" in shown.getvalue()
    assert shown.getvalue().count("+ dropped 0 + pending 0 (balances)\n") == 2


@pytest.mark.usefixtures("small_pieces")
def test_line_numbers_hold_across_partitions(
    spark: SparkSession, flights_workers: Any, quiet: Progress, tmp_path: Path
) -> None:
    """A bad row deep in a file that is read in many pieces is named by its line in the file."""
    path = tmp_path / "flights.csv"
    lines = [HEADER, *(f"2013,C{number % 7},{number % 60},JFK,LAX\n" for number in range(9_999))]
    lines[123] = "nothing\n"
    lines[8_765] = "2013,AA,late,JFK,LAX\n"
    path.write_text("".join(lines), encoding="utf-8")
    result = flights.run_flights(spark, flights_workers.endpoints, path=path, progress=quiet)
    assert result.ok, result
    assert [row.line for row in result.skipped.first] == [124, 8_766]
    assert result.rows == 9_997


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"carrier,origin\nAA,JFK\n", "has no column dep_delay, dest; its columns are carrier, origin"),
        ("carrier\n".encode("utf-16"), "line 1 is not UTF-8 at byte 0"),
    ],
)
def test_unusable_header(content: bytes, message: str, tmp_path: Path) -> None:
    """A file that cannot be one of flights is refused before anything is started."""
    path = tmp_path / "flights.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        flight_input.read_header(path)


def test_no_such_file(tmp_path: Path) -> None:
    """A path that is no readable file is refused, and named."""
    with pytest.raises(InputError, match=r"cannot read .*none\.csv: No such file"):
        flight_input.read_header(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory"):
        flight_input.read_header(tmp_path)


@pytest.mark.parametrize(
    ("rows", "why"), [("", "only a header"), ("1\n2\n", "line 2 has not the header's 5 columns")]
)
def test_no_usable_row(
    spark: SparkSession, flights_workers: Any, quiet: Progress, tmp_path: Path, rows: str, why: str
) -> None:
    """A file without one flight is an error, not an empty table."""
    path = tmp_path / "flights.csv"
    path.write_text(HEADER + rows, encoding="utf-8")
    with pytest.raises(InputError, match=f"has no flight that can be used: {why}"):
        flights.run_flights(spark, flights_workers.endpoints, path=path, progress=quiet)


def test_differences_are_named(spark: SparkSession) -> None:
    """The comparison sees a wrong count, a wrong mean, and a carrier too many or too few."""
    ours = spark.createDataFrame(
        [("A", 1, 2.0), ("B", 2, 1.0), ("C", 1, 1.0)], "carrier string, n int, mean double"
    )
    theirs = spark.createDataFrame(
        [("A", 2, 2.0), ("B", 2, 1.0 + 1e-8), ("D", 1, 1.0)], "carrier string, n int, mean double"
    )
    assert flight_check.differences(ours.collect(), ours.collect()) == []
    assert flight_check.differences(ours.collect(), theirs.collect()) == [
        "A: n is 1, Spark has 2",
        "B: mean is 1.0, Spark has 1.00000001",
        "C: only in ours",
        "D: only in Spark",
    ]


# --- what goes wrong inside -------------------------------------------------------------------


def attachment_to(running: Any, placed: dict[int, list[int]]) -> Attachment:
    """Return how tasks reach these workers, in a run of its own."""
    return Attachment.of("failing", f"run-{time.monotonic_ns()}", running.endpoints, placed)


def test_too_few_slots(spark: SparkSession, flights_workers: Any, quiet: Progress, tmp_path: Path) -> None:
    """Bolts that would take every slot are refused: the spouts could never start."""
    path = tmp_path / "flights.csv"
    path.write_text(HEADER, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"6 bolts.* runs 7 PySpark tasks .* has 6 slot\(s\)"):
        flights.run_flights(spark, flights_workers.endpoints, path=path, n_bolts=6, progress=quiet)


def test_failing_spout_ends_the_run(spark: SparkSession, launch: Any, quiet: Progress) -> None:
    """A spout's own error is what the caller sees, soon, and the bolts do not stay behind."""

    def spout(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        raise KeyError("no such field")

    with launch("failing", {0: [1], 1: [2]}) as running:
        attachment = attachment_to(running, {0: [1], 1: [2]})

        def bolt(task: int) -> Iterator[pa.RecordBatch]:
            with attachment.client(task) as client:
                for _ in receive(client, task):
                    pass
            yield from ()

        with pytest.raises(PipelineError, match="a spout failed: KeyError: 'no such field'") as caught:
            run_jobs(
                spark,
                running.endpoints,
                bolts=bolt_frame(spark, [1, 2], bolt, "id bigint"),
                spouts=spark.range(2).mapInArrow(spout, "id bigint"),
                tasks=[1, 2],
                progress=quiet,
            )
        assert "line" in "".join(caught.value.__notes__)
        eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), 10, "no job is left")


def test_failing_bolt_ends_the_run(spark: SparkSession, launch: Any, quiet: Progress) -> None:
    """A bolt's own error ends the run although the spout would go on for ever."""
    with launch("failing", {0: [1]}) as running:
        attachment = attachment_to(running, {0: [1]})

        def spout(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with attachment.client(2) as client:
                outlet = Outlet(client, 2, [1])
                for _ in itertools.count():
                    outlet.send(TaskMessageBatch.from_columns(1, [b"x"] * 1000, 2))
            yield from rows

        def bolt(task: int) -> Iterator[pa.RecordBatch]:
            with attachment.client(task) as client:
                for _ in receive(client, task):
                    raise RuntimeError("the disk is full")
            yield from ()

        with pytest.raises(PipelineError, match="a bolt failed: RuntimeError: the disk is full"):
            run_jobs(
                spark,
                running.endpoints,
                bolts=bolt_frame(spark, [1], bolt, "id bigint"),
                spouts=spark.range(0, 1, 1, 1).mapInArrow(spout, "id bigint"),
                tasks=[1],
                progress=quiet,
            )
        eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), 10, "no job is left")


def test_missing_message_is_noticed(spark: SparkSession, launch: Any, quiet: Progress) -> None:
    """A bolt that gets fewer messages than the source counted fails, with the source and both numbers."""
    with launch("failing", {0: [1]}) as running:
        attachment = attachment_to(running, {0: [1]})

        def spout(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with attachment.client(7) as client:
                outlet = Outlet(client, 7, [1])
                outlet.send(TaskMessageBatch.from_columns(1, [b"x"] * 5, 7))
                outlet._sent[1] += 1
                outlet.end()
            yield from rows

        def bolt(task: int) -> Iterator[pa.RecordBatch]:
            with attachment.client(task) as client:
                for _ in receive(client, task):
                    pass
            yield from ()

        with pytest.raises(PipelineError, match="task 1: task 7 sent 6 messages, and 5 arrived"):
            run_jobs(
                spark,
                running.endpoints,
                bolts=bolt_frame(spark, [1], bolt, "id bigint"),
                spouts=spark.range(0, 1, 1, 1).mapInArrow(spout, "id bigint"),
                tasks=[1],
                progress=quiet,
            )


def test_dead_worker_ends_the_run(spark: SparkSession, launch: Any, quiet: Progress) -> None:
    """When a worker is killed in the middle the run ends with an error that names it."""
    with launch("failing", {0: [1], 1: [2]}) as running:
        attachment = attachment_to(running, {0: [1], 1: [2]})
        victim = running.local.endpoints[1]

        def spout(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with attachment.client(4) as client:
                for _ in itertools.count():
                    client.send(TaskMessageBatch.from_columns([1, 2], [b"x", b"y"], 4))
            yield from rows

        def bolt(task: int) -> Iterator[pa.RecordBatch]:
            with attachment.client(task) as client:
                for _ in receive(client, task):
                    pass
            yield from ()

        def kill_when_busy() -> None:
            with ControlClient(victim.unix_address) as control:
                eventually(lambda: control.status().ledger.acknowledged > 10, 60)
            os.kill(victim.process_id, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        with pytest.raises(TuplewireError, match=r"worker-1\.sock"):
            run_jobs(
                spark,
                running.endpoints,
                bolts=bolt_frame(spark, [1, 2], bolt, "id bigint"),
                spouts=spark.range(0, 1, 1, 1).mapInArrow(spout, "id bigint"),
                tasks=[1, 2],
                progress=quiet,
            )
        killer.join()


# --- the command ------------------------------------------------------------------------------


def tuplewire(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tuplewire_service", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.long
@pytest.mark.slow
def test_command_stops(tmp_path: Path) -> None:
    """Ctrl-C ends a run in the middle, with Spark and the workers, without a traceback."""
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 1_000_000, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "tuplewire_service", "run", "wordcount", "--input", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "PySpark tasks, emitted" in line:
                break
        os.killpg(run.pid, signal.SIGINT)
        assert run.stderr.readlines()[-1:] == ["Stopped.\n"]
        assert run.wait(60) == 130
        # Spark's Python daemon is the last to notice.
        eventually(lambda: not group_is_alive(run.pid), 20, "every process of the run has ended")


def group_is_alive(group: int) -> bool:
    """Whether any process of a process group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["flights", "--input", "/nowhere/x.csv"],
            1,
            "cannot read /nowhere/x.csv: No such file or directory",
        ),
        (["flights", "--cores", "2"], 64, "--cores 2 is too few"),
        (["flights", "--bolts", "0"], 64, "must be a whole number from 1, not '0'"),
        (["wordcount"], 64, "--input"),
    ],
)
def test_command_refuses(arguments: list[str], code: int, message: str) -> None:
    """A run that cannot work is refused at once, in one line."""
    ran = tuplewire("run", *arguments)
    assert ran.returncode == code
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout


def test_command_explains_itself() -> None:
    """The help of each pipeline has its options and an example."""
    for pipeline in ("flights", "wordcount"):
        ran = tuplewire("run", pipeline, "--help")
        assert ran.returncode == 0
        assert f"example: tuplewire run {pipeline}" in ran.stdout
