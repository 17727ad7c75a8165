"""The flights demo, which computes delays by carrier: spouts read flights, and bolts aggregate them.

lines -> spouts (PySpark tasks) -> fields grouping on carrier -> bolts (PySpark tasks) -> DataFrame

A message holds flights in columns: a spout divides a batch of Spark among the bolts. Used by run_command.py.
Owns no state. Not thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tuplewire.errors import ConfigError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_demos.attachment import Attachment, spread
from tuplewire_demos.flight_check import differences, expected
from tuplewire_demos.flight_input import raw_lines, read_header
from tuplewire_demos.flight_lines import FLIGHTS, FlightReader
from tuplewire_demos.flight_tasks import LATE_MINUTES, SCHEMA, DelayBolt, FlightSpout, ReadOnly
from tuplewire_demos.input import InputError
from tuplewire_demos.jobs import bolt_frame, check_room, run_jobs
from tuplewire_demos.report import Findings, Progress
from tuplewire_demos.text import REPORT, read_lines, skipped_rows
from tuplewire_service.command.terminal import write_table, write_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TOPOLOGY = "flights"


def assignment_for(n_workers: int, n_bolts: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by index."""
    return spread(_bolt_tasks(n_bolts), n_workers=n_workers)


@dataclass(frozen=True, slots=True)
class Round:
    """One run over the input.

    seconds: from the spouts' start to the last bolt's end, including Spark's reading. sending: seconds of all
    spouts to pack and send. receiving: seconds of all bolts to unpack and count.
    """

    seconds: float
    sending: float
    receiving: float


@dataclass(frozen=True, slots=True)
class Account:
    """The messages and end marks of all rounds. crossed: the ones forwarded between workers."""

    messages: int
    crossed: int
    marks: int
    crossed_marks: int

    @property
    def accepted(self) -> int:
        """The number of messages that all workers have accepted: a forwarded message is accepted twice."""
        return self.messages + self.crossed + self.marks + self.crossed_marks


@dataclass(frozen=True, slots=True)
class RunResult(Findings):
    """The results of a finished run.

    table: the output of the bolts. rows: the number sent in each round. alone: the seconds that Spark takes
    to read the same rows without sending them.
    """

    table: DataFrame
    rows: int
    rounds: Sequence[Round]
    account: Account
    alone: float


def run_flights(
    spark: SparkSession,
    workers: Sequence[Endpoint],
    *,
    path: Path,
    n_bolts: int = 2,
    repeat: int = 1,
    progress: Progress,
) -> RunResult:
    """Run the pipeline on workers of TOPOLOGY that have assignment_for(len(workers), n_bolts).

    path: a CSV file with a header and at least COLUMNS. repeat: the number of rounds; only the first one
    starts Python in Spark's tasks.
    Raises InputError, ConfigError or PipelineError. Unusable rows are skipped and reported.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    reader = FlightReader(read_header(path))
    check_room(spark, n_bolts)
    tasks = _bolt_tasks(n_bolts)
    lines, report = raw_lines(spark, path), from_arrow_schema(REPORT)
    rounds = []
    for number in range(1, repeat + 1):
        if repeat > 1:
            progress.stage(f"Round {number} of {repeat} ...")
        attachment = Attachment.of(
            TOPOLOGY, f"flights-{uuid.uuid4().hex}", workers, assignment_for(len(workers), n_bolts)
        )
        receiving = spark.sparkContext.accumulator(0.0)
        n_spouts = lines.rdd.getNumPartitions()
        spout = FlightSpout(reader, attachment, tasks, first_task=max(tasks) + 1, n_spouts=n_spouts)
        outcome = run_jobs(
            spark,
            workers,
            bolts=bolt_frame(spark, tasks, DelayBolt(attachment, receiving), from_arrow_schema(SCHEMA)),
            spouts=lines.mapInArrow(spout, report),
            tasks=tasks,
            progress=progress,
        )
        sending = sum(each["seconds"] for each in outcome.reports)
        rounds.append(Round(outcome.seconds, sending, receiving.value))
    rows = sum(each["rows"] for each in outcome.reports)
    skipped = skipped_rows(read_lines(spark, path), outcome.reports)
    if not rows:
        why = f"line {skipped.first[0].line} {skipped.first[0].problem}" if skipped.count else "only a header"
        raise InputError(f"{path} has no flight that can be used: {why}")
    progress.stage("Reading the same rows by Spark alone ...")
    started = time.monotonic()
    lines.mapInArrow(ReadOnly(reader), report).collect()
    alone = time.monotonic() - started
    progress.stage("Comparing with Spark's own groupBy ...")
    right = expected(lines.mapInArrow(reader.flights, from_arrow_schema(FLIGHTS))).collect()
    return RunResult(
        differences(outcome.table.collect(), right),
        skipped,
        outcome.ledgers,
        outcome.table,
        rows,
        rounds,
        _account(outcome.reports, attachment, tasks, repeat),
        alone,
    )


def _account(reports: Sequence[Row], attachment: Attachment, tasks: Sequence[int], rounds: int) -> Account:
    """Return the account of all rounds, each of which is like the reported one."""
    crossing = sum(attachment.crosses(each["source"], bolt) for each in reports for bolt in tasks)
    return Account(
        rounds * sum(each["messages"] for each in reports),
        rounds * sum(each["crossed"] for each in reports),
        rounds * len(reports) * len(tasks),
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
    lines = ["", *result.lines("Spark's own groupBy on the same rows"), *_rates(result)]
    write_text(stream, "".join(f"{line}\n" for line in lines))


def _rates(result: RunResult) -> Iterator[str]:
    """Yield lines with the parts of the ledgers' sum, and with the times of messaging and of Spark alone."""
    account, rows = result.account, result.rows
    yield (
        f"Accepted together: {account.messages:,} messages + {account.crossed:,} that crossed, once more "
        f"+ {account.marks:,} end marks + {account.crossed_marks:,} that crossed = {account.accepted:,}"
    )
    for number, each in enumerate(result.rounds, 1):
        name = f"Round {number}: " if len(result.rounds) > 1 else ""
        busy = each.sending + each.receiving
        yield (
            f"{name}{rows:,} flights in {each.seconds:.2f} s, with Spark's reading: "
            f"{rows / each.seconds:,.0f} flights/s"
        )
        yield (
            f"{name}messaging: {each.sending:.2f} s to send, {each.receiving:.2f} s to receive and count: "
            f"{rows / busy:,.0f} flights/s"
        )
    yield f"Spark alone, which reads the same rows and sends none: {result.alone:.2f} s"


def _bolt_tasks(n_bolts: int) -> range:
    if n_bolts < 1:
        raise ConfigError(f"the pipeline needs at least one bolt, not {n_bolts}")
    return range(1, n_bolts + 1)
