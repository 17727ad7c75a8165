"""The rows with Spark: DataFrames into tasks and back, and micro-batches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from agent import Agent, BenchError
from report import RATE, Line, compared
from spark_agent import tasks_of_workers
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

WRITE, BACK, LATENCY = "spark/write", "spark/back", "spark/latency"
SPARK_ROWS = (WRITE, BACK, LATENCY)

ROUNDS = 3
FRAME_ROWS = 400_000
SLOW_ROWS = 100_000
"""Row by row; with fewer rows, the job's own time of some tenths of a second would have more weight."""
CHECKED_ROWS = 20_000
BATCHES = 25
FIRST_SECONDS = 300.0
"""Spark starts, and its first job takes long."""

_ROOM = ("--receive-queue-messages=1000000", "--receive-queue-bytes=268435456", "--drain-seconds=1")
_TITLES = {
    WRITE: f"{FRAME_ROWS:,} rows from a DataFrame to tasks",
    BACK: f"{FRAME_ROWS:,} rows from a DataFrame to tasks and back",
    LATENCY: "a micro-batch of one message, from task to task",
}


def measure_spark(names: Sequence[str], progress: Callable[[str], None]) -> list[Line]:
    """Run the rows and their comparisons in turns; BenchError unless every row arrived once."""
    progress("starting Spark")
    with WorkerProcesses(2, TOPOLOGY, flags=_ROOM) as workers:
        workers.assign(tasks_of_workers())
        with Agent("spark_agent.py", "spark", *(each.address for each in workers.endpoints)) as spark:
            wrong = spark.ask("check", within=FIRST_SECONDS, rows=CHECKED_ROWS)["wrong"]
            if wrong:
                raise BenchError(f"{wrong} of {CHECKED_ROWS} numbered rows did not come back once")
            lines = []
            if frames := [name for name in names if name != LATENCY]:
                lines += _frame_lines(spark, frames, progress)
            if LATENCY in names:
                lines += _latency_lines(spark, progress)
    return lines


def _frame_lines(spark: Agent, names: Sequence[str], progress: Callable[[str], None]) -> list[Line]:
    verbs = {WRITE: "write", BACK: "there_and_back"}
    cells = {
        "noop": FRAME_ROWS,
        "drop": FRAME_ROWS,
        **{verbs[name]: FRAME_ROWS for name in names},
        "each_row": SLOW_ROWS,
    }
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS + 1):
        rates = {}
        for verb, rows in cells.items():
            progress(f"spark, round {number} of {ROUNDS}: {verb}, {rows:,} rows")
            answer = spark.ask(verb, within=FIRST_SECONDS, rows=rows)
            if answer.get("received", rows) != rows:
                raise BenchError(f"{verb}: {rows} rows written, {answer['received']} received")
            rates[verb] = rows / answer["seconds"]
        rounds.append(rates)
    timed = rounds[1:]  # the first round warms up the JVM
    titles = {
        "noop": "Spark's noop sink, same DataFrame",
        "drop": "a sink in Python that drops it",
        "each_row": "foreachPartition, row by row",
    }
    return [
        compared(
            name,
            _TITLES[name],
            RATE,
            [each[verbs[name]] for each in timed],
            title,
            [each[other] for each in timed],
        )
        for name in names
        for other, title in titles.items()
    ]


def _latency_lines(spark: Agent, progress: Callable[[str], None]) -> list[Line]:
    ours, floors = [], []
    for number in range(1, ROUNDS + 1):
        progress(f"spark, round {number} of {ROUNDS}: micro-batches")
        ours.append(
            statistics.median(spark.ask("micro_batches", within=FIRST_SECONDS, batches=BATCHES)["millis"])
        )
        floors.append(statistics.median(spark.ask("floor", within=FIRST_SECONDS, batches=BATCHES)["millis"]))
    return [compared(LATENCY, _TITLES[LATENCY], "ms", ours, "Spark alone: rate to noop", floors)]
