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
from functools import partial
from typing import Any

import pyspark
from agent import HERE, Agent, BenchError
from kafka_broker import broker
from kafka_peer import spark_and_kafka
from kafka_rows import LATENCY, ROWS, SIZES, Cell, Plan, lines, name_of
from maven import NotHereError, libraries, outcome
from report import Line, in_turns, progress, table
from spark_agent import ASSIGNMENT
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
_TRIAL_SECONDS = 600.0


def _trial(spark: Agent, plan: Plan, cell: Cell, size: int) -> Any:
    amount = plan.amount(cell, size)
    asked: dict[str, Any] = {"rows": amount, "size": size, **cell.options}
    if cell.peer:
        asked["peer"] = cell.peer
    if cell.verb == LATENCY:
        return spark.ask(LATENCY, within=_TRIAL_SECONDS, **asked)["milliseconds"]
    answer = spark.ask("trial", within=_TRIAL_SECONDS, cell=cell.verb, **asked)
    if answer.get("received", amount) != amount:
        raise BenchError(f"{cell.title}, {cell.verb}: {amount} rows written, {answer['received']} arrived")
    return amount / answer[cell.clock]


def _measure(spark: Agent, plan: Plan) -> list[Line]:
    found: list[Line] = []
    for size in plan.sizes:
        cells = {cell: partial(_trial, spark, plan, cell, size) for cell in plan.cells()}
        warm = {cell: trial for cell, trial in cells.items() if cell.verb != LATENCY}
        in_turns(f"{name_of(size)}, to warm up the JVM", 1, warm)
        found += lines(plan, size, in_turns(name_of(size), plan.rounds, cells))
    return found


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


def _arguments() -> Plan:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="counted rounds (default: 3, with --quick 1)")
    parser.add_argument("--only", action="append", choices=ROWS, help="these rows alone; may be repeated")
    parser.add_argument("--size", action="append", type=int, choices=SIZES, help="these sizes alone")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: does it work at all?")
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else 3)
    return Plan(tuple(given.only or ROWS), tuple(given.size or SIZES), rounds, given.quick)


def main() -> int:
    """Run the measurements of the command line."""
    plan = _arguments()
    return outcome("bench-kafka", lambda: _measured(plan))


def _measured(plan: Plan) -> str:
    """Return the table and the text below it."""
    started = time.monotonic()
    connector, jars = _connector()
    progress("starting a Kafka broker")
    with broker() as (kafka, version), WorkerProcesses(2, TOPOLOGY, flags=_ROOM) as workers:
        workers.assign(ASSIGNMENT)
        progress("starting Spark")
        addresses = [each.address for each in workers.endpoints]
        with Agent(spark_and_kafka, addresses, jars, kafka) as spark:
            found = _measure(spark, plan)
    return (
        f"{table(found)}\n\n"
        f"Spark {pyspark.__version__}, connector {connector}, Kafka {version}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 "
        f"minutes, medians of {plan.rounds} rounds, {time.monotonic() - started:.0f} s in all.\nCompare the "
        "ratios; the rates belong to this machine and moment. Every row came once."
    )


if __name__ == "__main__":
    sys.exit(main())
