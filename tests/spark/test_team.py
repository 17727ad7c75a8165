"""Teams of PySpark tasks in barrier stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tuplewire

pytestmark = pytest.mark.spark

TASKS = range(100, 104)
FAILURES = (PySparkException, Py4JJavaError)
SCHEMA = "rank int, attempt int, total double, stale int"


@pytest.fixture(scope="module")
def addresses(spark: SparkSession, launch: Any) -> Iterator[list[str]]:  # noqa: ARG001 - Spark forks: start it first
    """Run two workers with two tasks each."""
    with launch("spark", {0: TASKS[:2], 1: TASKS[2:]}) as running:
        yield [each.address for each in running.endpoints]


def summing(addresses: list[str], marker: str = "", **options: Any) -> Any:
    """Return a function that sums over all tasks in 20 rounds. marker: rank 2 creates it, and fails once."""

    def run(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        assert context is not None
        rank, attempt = context.partitionId(), int(bool(marker) and Path(marker).exists())
        own = pd.concat(frames)["id"].sum()
        with tuplewire.Team.of_stage(
            range(100, 110), address=addresses[rank % 2], topology="spark", **options
        ) as team:
            for number in range(20):
                if marker and rank == 2 and number == 5 and not Path(marker).exists():
                    Path(marker).touch()
                    raise ValueError("fails once")
                total = team.all_reduce(own)
        yield pd.DataFrame(
            {"rank": [rank], "attempt": attempt, "total": float(total), "stale": team.stale_messages}
        )

    return run


@pytest.mark.parametrize("fails", [False, True])
def test_four_tasks_sum_their_rows(
    spark: SparkSession, addresses: list[str], tmp_path: Path, *, fails: bool
) -> None:
    """Ranks are partitions, and the team has the stage's size. After a failure, the stage runs again."""
    function = summing(addresses, str(tmp_path / "failed") if fails else "")
    rows = spark.range(0, 400, 1, 4).mapInPandas(function, SCHEMA, barrier=True).repartition(1).collect()
    assert [(each.rank, each.attempt, each.total) for each in sorted(rows)] == [
        (n, int(fails), 79_800.0) for n in range(4)
    ]


def test_too_few_tasks(spark: SparkSession, addresses: list[str]) -> None:
    """A stage with more tasks than mailboxes is an error."""

    def run(_: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        tuplewire.Team.of_stage([100], address=addresses[0], topology="spark")
        yield from ()

    with pytest.raises(FAILURES, match="the stage has 4 tasks, but only 1 task ids are named"):
        spark.range(0, 400, 1, 4).mapInPandas(run, SCHEMA, barrier=True).collect()


def test_outside_a_barrier_stage(spark: SparkSession, addresses: list[str]) -> None:
    """Outside a barrier stage, the error explains how to get one; on the driver, too."""
    with pytest.raises(FAILURES, match="use mapInPandas"):
        spark.range(0, 400, 1, 2).mapInPandas(summing(addresses), SCHEMA).collect()
    with pytest.raises(tuplewire.errors.ConfigError, match="barrier=True"):
        tuplewire.Team.of_stage([100], address=addresses[0])
