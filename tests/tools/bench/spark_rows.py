"""The rows with Spark: DataFrames into tasks and back, and micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent import Agent, BenchError
from links import Links, Trial
from report import Line, in_turns, progress
from rows import Row, row_lines
from spark_agent import ASSIGNMENT, spark
from workload import MESSAGE_BYTES, TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

ROUNDS = 3
_CHECKED_ROWS = 20_000
_WITHIN = 600.0
"""Spark starts, and its first job takes long."""
_ROOM = ("--receive-queue-messages=1000000", "--receive-queue-bytes=268435456", "--drain-seconds=1")


@dataclass(frozen=True)
class SparkCell:
    """A measurement of each round: a request to the process with Spark."""

    title: str
    verb: str
    peer: str = "tuplewire"
    options: dict[str, str] = field(default_factory=dict, hash=False)
    clock: str = "seconds"
    """The field of the answer that contains its time."""
    rows: int = 400_000
    """Number of rows; for bench-kafka a factor."""

    def __str__(self) -> str:
        return f"{self.verb} {self.peer}, {self.title}"

    def trial(self, agent: Agent, rows: int, size: int = MESSAGE_BYTES) -> Trial:
        """Take the measurement; BenchError unless every row has arrived once."""
        asked = {"peer": self.peer, "rows": rows, "size": size, **self.options}
        answer: dict[str, Any] = agent.ask(self.verb, within=_WITHIN, **asked)
        if answer.get("received", rows) != rows:
            raise BenchError(f"{self}: {rows} rows written, {answer['received']} arrived")
        return Trial(rows, answer.get(self.clock, 1.0), nanoseconds=answer.get("ns", ()))


_NOOP = SparkCell("Spark's noop sink, same DataFrame", "noop")
_DROP = SparkCell("a sink in Python that drops it", "drop")
_EACH_ROW = SparkCell("foreachPartition, row by row", "each_row", rows=100_000)
"""With fewer rows, the job's own time of some tenths of a second would have more weight."""
_WRITE, _BACK = SparkCell("", "write"), SparkCell("", "back")
_BATCHES = SparkCell("", "micro_batches", rows=25)
_FLOOR = SparkCell("Spark alone: rate to noop", "floor", rows=25)
_OTHERS = {_NOOP: None, _DROP: None, _EACH_ROW: None}
ROWS = (
    Row("spark/write", f"{_WRITE.rows:,} rows from a DataFrame to tasks", _WRITE, _OTHERS),
    Row("spark/back", f"{_WRITE.rows:,} rows from a DataFrame to tasks and back", _BACK, _OTHERS),
    Row("spark/latency", "a micro-batch of one message, from task to task", _BATCHES, {_FLOOR: None}, (50,)),
)


def spark_cells(rows: Iterable[Row[SparkCell]]) -> list[SparkCell]:
    """Return the measurements of each round, without duplicates."""
    return list(dict.fromkeys(cell for row in rows for cell in (row.cell, *row.against)))


def measure_spark(links: Links, names: Sequence[str], _: float) -> list[Line]:
    """Run the rows and their comparisons in turns; BenchError unless every row arrived once."""
    progress("starting Spark")
    rows = [row for row in ROWS if row.name in names]
    with WorkerProcesses(2, TOPOLOGY, flags=_ROOM) as workers:
        workers.assign(ASSIGNMENT)
        agent = links.agent(spark, [each.address for each in workers.endpoints])
        SparkCell("numbered rows that come back once", "check").trial(agent, _CHECKED_ROWS)
        cells = {cell: partial(cell.trial, agent, cell.rows) for cell in spark_cells(rows)}
        rounds = in_turns("spark", ROUNDS + 1, cells)[1:]  # the first round warms up the JVM
    return [line for row in rows for line in row_lines(row, rounds)]
