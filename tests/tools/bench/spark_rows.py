"""The rows with Spark: DataFrames into tasks and back, and micro-batches."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from agent import BenchError
from links import Links
from report import RATE, Line, compared, in_turns, progress
from spark_agent import ASSIGNMENT, spark
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

LATENCY = "spark/latency"
_FRAME_ROWS = 400_000
_CELLS = {"noop": _FRAME_ROWS, "drop": _FRAME_ROWS, "write": _FRAME_ROWS, "back": _FRAME_ROWS}
_CELLS["each_row"] = 100_000  # with fewer, the job's own time of some tenths of a second has more weight
_FRAMES = {"spark/write": ("write", "to tasks"), "spark/back": ("back", "to tasks and back")}
_AGAINST = {
    "noop": "Spark's noop sink, same DataFrame",
    "drop": "a sink in Python that drops it",
    "each_row": "foreachPartition, row by row",
}
SPARK_ROWS = (*_FRAMES, LATENCY)
ROUNDS = 3
_CHECKED_ROWS = 20_000
_BATCHES = 25
_WITHIN = 300.0
"""Spark starts, and its first job takes long."""
_ROOM = ("--receive-queue-messages=1000000", "--receive-queue-bytes=268435456", "--drain-seconds=1")


def measure_spark(links: Links, names: Sequence[str], _: float) -> list[Line]:
    """Run the rows and their comparisons in turns; BenchError unless every row arrived once."""
    progress("starting Spark")
    with WorkerProcesses(2, TOPOLOGY, flags=_ROOM) as workers:
        workers.assign(ASSIGNMENT)
        agent = links.agent(spark, [each.address for each in workers.endpoints])
        wrong = agent.ask("trial", within=_WITHIN, cell="check", rows=_CHECKED_ROWS)["wrong"]
        if wrong:
            raise BenchError(f"{wrong} of {_CHECKED_ROWS} numbered rows did not come back once")
        return list(_lines(partial(agent.ask, within=_WITHIN), names))


def _lines(ask: Any, names: Sequence[str]) -> Iterator[Line]:
    def rate(verb: str, rows: int) -> float:
        answer = ask("trial", cell=verb, rows=rows)
        if answer.get("received", rows) != rows:
            raise BenchError(f"{verb}: {rows} rows written, {answer['received']} received")
        return float(rows / answer["seconds"])

    frames = {name: _FRAMES[name] for name in names if name in _FRAMES}
    verbs = {*_AGAINST, *(verb for verb, _ in frames.values())} if frames else set()
    cells = {verb: partial(rate, verb, rows) for verb, rows in _CELLS.items() if verb in verbs}
    rounds = in_turns("spark", ROUNDS + 1, cells)[1:]  # the first round warms up the JVM
    for name, (verb, where) in frames.items():
        for other, title in _AGAINST.items():
            pairs = [(each[verb], each[other]) for each in rounds]
            yield compared(name, f"{_FRAME_ROWS:,} rows from a DataFrame {where}", RATE, pairs, title)
    if LATENCY in names:
        cells = {verb: partial(ask, verb, batches=_BATCHES) for verb in ("micro_batches", "floor")}
        medians = [
            {verb: statistics.median(answer["millis"]) for verb, answer in each.items()}
            for each in in_turns("spark", ROUNDS, cells)
        ]
        pairs = [(each["micro_batches"], each["floor"]) for each in medians]
        title = "a micro-batch of one message, from task to task"
        yield compared(LATENCY, title, "ms", pairs, "Spark alone: rate to noop")
