"""Word count on Spark: the topology of every other mode, as PySpark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuplewire_demos.report import Progress
from tuplewire_demos.words import COUNTS, SKIPPED
from tuplewire_topology import Topology
from tuplewire_topology.running.statistics import ExecutorStatistics
from tuplewire_topology.spark import run_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OUTPUTS = {COUNTS: "word string, count bigint", SKIPPED: "offset bigint, problem string, text string"}


def count_words(
    spark: SparkSession,
    topology: Topology,
    workers: Sequence[str],
    conf: Mapping[str, Any],
    progress: Progress,
) -> tuple[dict[str, int], list[tuple[Any, ...]], Sequence[ExecutorStatistics]]:
    """Return the counts, what was skipped (offset, problem, text), and what the executors have done.

    workers: addresses. Raises as run_topology does.
    """
    result = run_topology(
        spark,
        topology,
        conf=conf,
        outputs=_OUTPUTS,
        workers=workers,
        name="wordcount",
        progress=lambda news: progress.line(str(news)),
    )
    # A word may have come out several times, and counts only grow.
    counts = result.frames[COUNTS].groupBy("word").max("count").collect()
    return dict(map(tuple, counts)), list(map(tuple, result.frames[SKIPPED].collect())), result.executors
