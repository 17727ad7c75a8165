"""Compare Spark with Tuplewire to Spark with Kafka: one session, the same rows, in turns.

It needs Maven and Java 17 for a broker and Spark's connector, which Maven downloads. If they are not
available, it reports them as missing and measures nothing.

Exit status: 0 if every row arrived once, or nothing could be measured; 1 if a row was lost or duplicated.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from functools import partial

import pyspark
from agent import HERE, Agent, parser_of
from kafka_broker import broker
from kafka_peer import spark_and_kafka
from kafka_rows import LATENCY, ROWS, SIZES, amount, sized
from maven import NotHereError, libraries, outcome
from report import Line, in_turns, progress, table
from rows import row_lines
from spark_agent import ASSIGNMENT
from spark_rows import spark_cells
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

CONNECTOR = HERE / "kafka" / "connector.xml"
CONNECTORS = ("4.2.0",)
"""Fallback versions if no connector is published for the Spark of .venv, the nearest first."""
_JARS = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
"""The parts of the connector that Spark does not include."""
_ROOM = ("--receive-queue-messages=2000000", "--receive-queue-bytes=1073741824", "--drain-seconds=1")


def _measure(spark: Agent, given: argparse.Namespace) -> Iterator[Line]:
    rows = [row for row in ROWS if row.name in given.only]
    for size in given.size:
        cells = {
            cell: partial(cell.trial, spark, amount(cell, size, quick=given.quick), size)
            for cell in spark_cells(rows)
        }
        warm = {cell: trial for cell, trial in cells.items() if cell.verb != LATENCY}
        in_turns(f"{size} bytes, to warm up the JVM", 1, warm)
        rounds = in_turns(f"{size} bytes", given.rounds, cells)
        for row in rows:
            yield from row_lines(sized(row, size), rounds)


def _connector() -> tuple[str, str]:
    """Return the connector's version and its class path; NotHereError with all reasons if there is none."""
    reasons = []
    for version in dict.fromkeys((pyspark.__version__, *CONNECTORS)):
        progress(f"asking Maven for Spark's connector for Kafka, {version}")
        try:
            place = libraries(CONNECTOR, f"spark.version={version}", only=_JARS)
        except NotHereError as error:
            reasons.append(str(error))
        else:
            return version, ":".join(map(str, sorted(place.glob("*.jar"))))
    raise NotHereError("\n".join(reasons))


def main() -> int:
    """Run the measurements of the command line."""
    parser = parser_of(__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--rounds", type=int, help="counted rounds (default: 3, with --quick 1)")
    parser.add_argument("--only", action="append", choices=names, help="these rows alone; may be repeated")
    parser.add_argument("--size", action="append", type=int, choices=SIZES, help="these sizes alone")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: does it work at all?")
    given = parser.parse_args()
    given.rounds = given.rounds or (1 if given.quick else 3)
    given.only, given.size = given.only or names, given.size or list(SIZES)
    return outcome("bench-kafka", lambda: _measured(given))


def _measured(given: argparse.Namespace) -> str:
    """Return the table and the text below it."""
    started = time.monotonic()
    connector, jars = _connector()
    progress("starting a Kafka broker")
    with broker() as (kafka, version), WorkerProcesses(2, TOPOLOGY, flags=_ROOM) as workers:
        workers.assign(ASSIGNMENT)
        progress("starting Spark")
        with Agent(spark_and_kafka, [each.address for each in workers.endpoints], jars, kafka) as spark:
            found = list(_measure(spark, given))
    return (
        f"{table(found)}\n\n"
        f"Spark {pyspark.__version__}, connector {connector}, Kafka {version}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 "
        f"minutes, medians of {given.rounds} rounds, {time.monotonic() - started:.0f} s in all.\nCompare the "
        "ratios; the rates belong to this machine and moment. Every row came once."
    )


if __name__ == "__main__":
    sys.exit(main())
