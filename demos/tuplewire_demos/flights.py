"""Runs the flights demo, which computes delays by carrier, and checks the result.

Used by run_command.py. Owns no state. Not thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tuplewire_demos.file_spout import LINES, SKIPPED, locate_skipped
from tuplewire_demos.flight_topology import (
    DELAYS,
    FLIGHTS_SCHEMA,
    LATE_MINUTES,
    SCHEMA,
    FlightReader,
    flights_topology,
    read_header,
)
from tuplewire_demos.input import InputError
from tuplewire_demos.report import Progress, RunReport, compare_results
from tuplewire_demos.spark_run import SKIPPED_COLUMNS, cores_of, run_on_spark
from tuplewire_service.command.terminal import write_table

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

TOPOLOGY = "flights"
_PENDING = 100
_EXPECTED_QUERY = """
SELECT
    carrier,
    sum(flights) AS flights,
    try_divide(sum(minutes), sum(departed)) AS mean_delay,
    try_divide(sum(late), sum(departed)) AS late_share,
    min_by(route, struct(-flights, route)) AS busiest_route,
    max(flights) AS route_flights
FROM (
    SELECT
        carrier,
        concat_ws('-', origin, dest) AS route,
        count(*) AS flights,
        count(dep_delay) AS departed,
        sum(dep_delay) AS minutes,
        count_if(dep_delay > {late}) AS late
    FROM {flights}
    GROUP BY 1, 2
)
GROUP BY carrier
"""
"""The query for the same result by Spark's own groupBy."""


@dataclass(frozen=True, slots=True)
class FlightsResult(RunReport):
    """The results of a finished run. table: the output of the bolts, by carrier.

    n_messages: the number with flights in the last round. seconds_by_round: with the start of tasks.
    """

    table: Sequence[Row]
    n_messages: int
    seconds_by_round: Sequence[float]

    @property
    def n_flights(self) -> int:
        """The number of flights in each round."""
        return sum(row["flights"] for row in self.table)


def run_flights(
    spark: SparkSession, workers: Sequence[str], *, path: Path, n_bolts: int, repeat: int, progress: Progress
) -> FlightsResult:
    """Run the topology on workers, which are given by their addresses.

    path: a CSV file with a header and at least COLUMNS. repeat: the number of rounds; only the first one
    starts Python in Spark's tasks.
    Raises InputError, ConfigError or the error of a failed topology. Unusable rows are skipped and reported.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    header = read_header(path)
    topology = flights_topology(path, header, n_spouts=cores_of(spark), n_bolts=n_bolts)
    outputs: dict[str, str | StructType] = {DELAYS: from_arrow_schema(SCHEMA), SKIPPED: SKIPPED_COLUMNS}
    seconds = []
    for number in range(1, repeat + 1):
        if repeat > 1:
            progress.start_stage(f"Round {number} of {repeat} ...")
        began = time.monotonic()
        result, ledgers = run_on_spark(
            spark, topology, workers, outputs, name=TOPOLOGY, pending=_PENDING, progress=progress
        )
        seconds.append(time.monotonic() - began)
    skipped = locate_skipped(path, result.frames[SKIPPED].collect())
    table = result.frames[DELAYS].orderBy("carrier").collect()
    if not table:
        why = f"line {skipped.first[0].line} {skipped.first[0].reason}" if skipped.count else "only a header"
        raise InputError(f"{path} has no flight that can be used: {why}")
    progress.start_stage("Checking the result ...")
    name = re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path.absolute()))  # Spark uses the name as a pattern
    lines = spark.read.text(f"file:{name}").selectExpr("CAST(value AS binary) AS value")  # perhaps not UTF-8
    flights = lines.mapInArrow(FlightReader(header).read_partition, from_arrow_schema(FLIGHTS_SCHEMA))
    spouts = [each for each in result.executors if each.component == LINES]
    messages = sum(each.counts.emitted_by.get("default", 0) for each in spouts)
    wrong = differences(table, spark.sql(_EXPECTED_QUERY, flights=flights, late=LATE_MINUTES).collect())
    return FlightsResult(wrong, skipped, ledgers, result.executors, table, messages, seconds)


def differences(rows: Sequence[Row], expected: Sequence[Row]) -> list[str]:
    """Return the differences of two results as text."""
    return compare_results(_values(rows), _values(expected), "Spark")


def _values(rows: Sequence[Row]) -> dict[str, Any]:
    values = {f"{row['carrier']}: {name}": value for row in rows for name, value in row.asDict().items()}
    return {**values, "the number of rows": len(rows)}


def write_result(stream: TextIO, result: FlightsResult, *, verbose: bool = False) -> None:
    """Write the table and the summary; with `verbose`, also the executors' statistics."""
    late = f"> {LATE_MINUTES} min late"
    header = ("carrier", "flights", "mean delay", late, "busiest route", "flights on it")
    rows = []
    for row in result.table:
        mean = "-" if row["mean_delay"] is None else f"{row['mean_delay']:.2f} min"
        share = "-" if row["late_share"] is None else f"{row['late_share']:.1%}"
        flights, route_flights = f"{row['flights']:,}", f"{row['route_flights']:,}"
        rows.append([row["carrier"], flights, mean, share, row["busiest_route"], route_flights])
    write_table(stream, header, rows)
    rates = []
    for number, seconds in enumerate(result.seconds_by_round, 1):
        name = f"Round {number}: " if len(result.seconds_by_round) > 1 else ""
        rates.append(
            f"{name}{result.n_flights:,} flights in {result.n_messages:,} messages, in {seconds:.2f} s: "
            f"{result.n_flights / seconds:,.0f} flights/s"
        )
    result.write_summary(stream, "the expected result", rates, verbose=verbose)
