"""The pipelines, on real Spark and real workers."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import eventually
from helpers.tools import started
from helpers.worker_process import COMMAND, run_command
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_demos import flight_topology, flights
from tuplewire_demos.input import InputError
from tuplewire_demos.report import Progress

pytestmark = pytest.mark.spark

HEADER = "year,carrier,dep_delay,origin,dest\n"


@pytest.fixture
def quiet() -> Progress:
    """Return a progress with discarded output."""
    return Progress(io.StringIO())


Run = Callable[[bytes], flights.FlightsResult]


@pytest.fixture
def run(spark: SparkSession, flights_workers: list[str], quiet: Progress, tmp_path: Path) -> Run:
    """Return a function that runs the flights of a file through both workers."""

    def run(content: bytes) -> flights.FlightsResult:
        path = tmp_path / "flights.csv"
        path.write_bytes(content)
        return flights.run_flights(spark, flights_workers, path=path, n_bolts=2, repeat=1, progress=quiet)

    return run


@pytest.mark.long
@pytest.mark.slow
def test_flights_of_2013(spark: SparkSession, flights_workers: list[str], quiet: Progress) -> None:
    """All 336,776 flights go through both workers, and the result equals Spark's own."""
    with flight_topology.extract_nyc_flights() as path:
        result = flights.run_flights(spark, flights_workers, path=path, n_bolts=2, repeat=1, progress=quiet)
    assert result.differences == []
    assert result.is_correct, result.ledgers
    assert result.n_flights == 336_776
    assert 0 < result.n_messages < 1000
    assert result.skipped.count == 0
    rows = {row["carrier"]: row for row in result.table}
    assert len(rows) == 16
    assert rows["UA"]["flights"] == 58_665
    assert rows["AS"]["busiest_route"] == "EWR-SEA"
    assert all(ledger.accepted > 10 for ledger in result.ledgers.values())


def test_flights_of_a_file(spark: SparkSession, quiet: Progress, tmp_path: Path) -> None:
    """A user's file with quotes, absent delays, ties and a byte order mark works with three workers."""
    path = tmp_path / "my [new] flights, {1} 50%*.csv"
    path.write_bytes(
        b"\xef\xbb\xbfdest,origin,note, carrier ,dep_delay\r\n"
        b'B,A,"x, ""y""",ONE,10\r\n'
        b"C,A,,ONE,20.5\r\n"
        b"\r\n"
        b"C,A,,TWO,NA\r\n"
        b"B,A,,TWO,\r\n"
    )
    with WorkerProcesses(3, "flights", flags=["--drain-seconds=1"]) as local:
        workers = [each.unix_address for each in local.endpoints]
        result = flights.run_flights(spark, workers, path=path, n_bolts=3, repeat=1, progress=quiet)
    assert result.is_correct, result
    assert result.skipped.count == 0
    assert [tuple(row) for row in result.table] == [
        ("ONE", 2, 15.25, 0.5, "A-B", 1),
        ("TWO", 2, None, None, "A-B", 1),
    ]


def test_flights_skips_bad_rows(run: Run) -> None:
    """Rows that are not flights are skipped, and reported with line number, reason and text."""
    result = run(
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
    assert result.is_correct, result
    assert [(row.line, row.reason, row.text) for row in result.skipped.first] == [
        (3, "does not have the header's 5 columns", "2013,AA,1,JFK"),
        (5, "has a dep_delay that is not a number", "2013,AA,soon,JFK,LAX"),
        (6, "has no carrier", "2013,,1,JFK,LAX"),
        (7, "is not UTF-8", "2013,AA\\xff,1,JFK,LAX"),
        (8, "has a dep_delay that is not a number", "2013,AA,inf,JFK,LAX"),
    ]
    assert result.skipped.count == 7
    assert [(row["carrier"], row["flights"], row["mean_delay"]) for row in result.table] == [("AA", 2, 2.0)]
    shown = io.StringIO()
    flights.write_result(shown, result)
    assert (
        "Skipped 7 bad row(s):\n  line 3 does not have the header's 5 columns: 2013,AA,1,JFK\n"
        in shown.getvalue()
    )
    assert "  ... and 2 more\n" in shown.getvalue()
    assert "Equal to the expected result: yes\n" in shown.getvalue()
    assert shown.getvalue().count("+ dropped 0 + pending 0 (balances)\n") == 2


def test_line_numbers_hold_across_partitions(run: Run) -> None:
    """A bad row deep in a file that is read in many pieces is reported with its line in the file."""
    lines = [HEADER, *(f"2013,C{number % 7},{number % 60},JFK,LAX\n" for number in range(9_999))]
    lines[123] = "nothing\n"
    lines[8_765] = "2013,AA,late,JFK,LAX\n"
    result = run("".join(lines).encode())
    assert result.is_correct, result
    assert [row.line for row in result.skipped.first] == [124, 8_766]
    assert result.n_flights == 9_997


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"carrier,origin\nAA,JFK\n", "has no column dep_delay, dest; its columns are carrier, origin"),
        ("carrier\n".encode("utf-16"), "line 1 is not UTF-8 at byte 0"),
    ],
)
def test_unusable_header(content: bytes, message: str, tmp_path: Path) -> None:
    """A file with an unusable header is refused before anything starts."""
    path = tmp_path / "flights.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        flight_topology.read_header(path)


def test_no_such_file(tmp_path: Path) -> None:
    """A path that is not a readable file is refused by name."""
    with pytest.raises(InputError, match=r"cannot read .*none\.csv: No such file"):
        flight_topology.read_header(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory"):
        flight_topology.read_header(tmp_path)


@pytest.mark.parametrize(
    ("rows", "why"), [("", "only a header"), ("1\n2\n", "line 2 does not have the header's 5 columns")]
)
def test_no_usable_row(run: Run, rows: str, why: str) -> None:
    """A file without a usable flight raises an error, instead of giving an empty table."""
    with pytest.raises(InputError, match=f"has no flight that can be used: {why}"):
        run(f"{HEADER}{rows}".encode())


def test_differences_are_named(spark: SparkSession) -> None:
    """The comparison detects a wrong count, a wrong mean, and an additional or a missing carrier."""
    ours = spark.createDataFrame(
        [("A", 1, 2.0), ("B", 2, 1.0), ("C", 1, 1.0)], "carrier string, n int, mean double"
    )
    theirs = spark.createDataFrame(
        [("A", 2, 2.0), ("B", 2, 1.0 + 1e-8), ("D", 1, 1.0)], "carrier string, n int, mean double"
    )
    assert flights.differences(ours.collect(), ours.collect()) == []
    assert flights.differences(ours.collect(), theirs.collect()) == [
        "A: n is 1, Spark has 2",
        "B: mean is 1.0, Spark has 1.00000001",
        "C: carrier is C, Spark has None",
        "C: mean is 1.0, Spark has None",
        "C: n is 1, Spark has None",
        "D: carrier is None, Spark has D",
        "D: mean is None, Spark has 1.0",
        "D: n is None, Spark has 1",
    ]
    assert flights.differences(ours.collect() * 2, ours.collect()) == ["the number of rows is 6, Spark has 3"]


@pytest.mark.long
@pytest.mark.slow
def test_command_stops(tmp_path: Path) -> None:
    """Ctrl-C stops a run with Spark and the workers, without a traceback."""
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 1_000_000, encoding="utf-8")
    with started(*COMMAND, "run", "wordcount", "--input", path, start_new_session=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "PySpark tasks, emitted" in line:
                break
        os.killpg(run.pid, signal.SIGINT)
        assert run.stderr.readlines()[-1:] == ["Stopped.\n"]
        assert run.wait(60) == 130
        # Spark's Python daemon is the last to exit.
        eventually(lambda: not group_is_alive(run.pid), 20, "every process of the run has ended")


def group_is_alive(group: int) -> bool:
    """Return True if a process group has a running process."""
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
        (["kmeans", "--input", "/nowhere/x.csv"], 1, "cannot read /nowhere/x.csv"),
        (["flights", "--bolts", "0"], 64, "must be a whole number from 1, not '0'"),
        (["wordcount"], 64, "--input"),
    ],
)
def test_command_refuses(arguments: list[str], code: int, message: str) -> None:
    """A run that cannot work is refused immediately, in one line."""
    ran = run_command("run", *arguments, timeout=110)
    assert ran.returncode == code
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout
