"""Flights: delays by carrier. Spouts read flights, fields-grouped by carrier; bolts aggregate.

lines -> spouts (PySpark tasks) -> fields grouping on carrier -> bolts (PySpark tasks) -> DataFrame

A message holds flights in columns: a spout divides a batch of Spark's by the bolts, and sends each its part.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tuplewire.errors import ConfigError
from tuplewire_demos.attachment import Attachment, WorkerEndpoint, spread
from tuplewire_demos.flight_check import differences, expected
from tuplewire_demos.flight_input import raw_lines, read_flights, read_header
from tuplewire_demos.flight_lines import FlightReader
from tuplewire_demos.flight_tasks import LATE_MINUTES, SCHEMA, DelayBolt, FlightSpout, ReadOnly
from tuplewire_demos.input import InputError
from tuplewire_demos.jobs import Outcome, bolt_frame, check_room, run_jobs
from tuplewire_demos.report import Account, Progress, Round, RunResult, write_account
from tuplewire_demos.text import REPORT, read_lines, skipped_rows
from tuplewire_service.command.terminal import write_table, write_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def assignment_for(n_workers: int, n_bolts: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index."""
    return spread(_bolt_tasks(n_bolts), n_workers=n_workers)


def run_flights(
    spark: SparkSession,
    workers: Sequence[WorkerEndpoint],
    *,
    path: Path,
    n_bolts: int = 2,
    repeat: int = 1,
    topology: str = "flights",
    progress: Progress,
) -> RunResult:
    """Run the pipeline on workers that have the assignment of assignment_for(len(workers), n_bolts).

    path: a CSV file with a header and COLUMNS among its columns. repeat: how many times all of it runs; only
    the first has to start Python in Spark's tasks.
    Raises InputError, ConfigError or PipelineError; rows that cannot be used are skipped and reported.
    """
    header = read_header(path)
    check_room(spark, n_bolts)
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
    raw_lines(spark, path).mapInArrow(ReadOnly(FlightReader(header)), REPORT).collect()
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
        lines = raw_lines(self._spark, self._path)
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
    account = StringIO()
    write_account(account, result)
    write_text(stream, f"\n{account.getvalue()}")


def _bolt_tasks(n_bolts: int) -> range:
    if n_bolts < 1:
        raise ConfigError(f"the pipeline needs at least one bolt, not {n_bolts}")
    return range(1, n_bolts + 1)
