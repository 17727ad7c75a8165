"""The functions of the k-means demo that run in PySpark tasks.

Used by kmeans.py. Owns no state. Thread-safe. Separate, because each Python process of Spark imports it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from timeit import repeat, timeit
from typing import Any

import numpy as np
import pandas as pd

Array = np.ndarray[Any, np.dtype[np.float64]]

TOPOLOGY = "kmeans"
RESULT_SCHEMA = "centers array<double>, seconds double, spark_barrier double, team_barrier double"
"""The schema of the rows of run_rounds()."""
_N_BARRIERS = 100


def sums_of(points: Array, centers: Array) -> Array:
    """Return the sum of the points that are nearest to each center; the last column is their number.

    points: one in each column, with a last row of ones.
    """
    weights = np.column_stack([centers, -0.5 * (centers**2).sum(axis=1)])
    nearest = (points.T @ weights.T).argmax(axis=1)
    return np.stack([np.bincount(nearest, row, len(centers)) for row in points], axis=1)


def compute_centers(centers: Array, sums: Array) -> Array:
    """Return the means of the points of each center. A center without points stays."""
    count = sums[:, -1:]
    return np.where(count > 0, sums[:, :-1] / np.maximum(count, 1), centers)


def as_points(rows: Array) -> Array:
    """Convert points, one in each row, to the form that sums_of() needs."""
    return np.vstack([rows.T, np.ones(len(rows))])


def sum_partition(frames: Iterator[pd.DataFrame], centers: Array) -> Iterator[pd.DataFrame]:
    """Yield the sums of a partition in one row; for mapInPandas."""
    sums = np.zeros((len(centers), centers.shape[1] + 1))
    for frame in frames:  # a partition may be empty
        sums += sums_of(as_points(frame.to_numpy()), centers)
    yield pd.DataFrame({"sums": [sums.ravel()]})


def run_rounds(
    frames: Iterator[pd.DataFrame], workers: Sequence[str], start_centers: Array, rounds: int
) -> Iterator[pd.DataFrame]:
    """Run all rounds in a PySpark task. Rank 0 yields the result and the times."""
    from pyspark import BarrierTaskContext

    from tuplewire import Team

    context = BarrierTaskContext.get()
    rows = [frame.to_numpy() for frame in frames]
    points = as_points(np.vstack([np.empty((0, start_centers.shape[1])), *rows]))
    tasks = range(len(context.getTaskInfos()))
    address = workers[context.partitionId() % len(workers)]
    with Team.of_stage(tasks, address=address, topology=TOPOLOGY) as team:
        centers = start_centers
        team.barrier()
        began = time.monotonic()
        for _ in range(rounds):
            centers = compute_centers(centers, team.all_reduce(sums_of(points, centers)))
        seconds = time.monotonic() - began
        team_barrier = timeit(team.barrier, number=_N_BARRIERS) / _N_BARRIERS
        # Spark polls once a second, so the first barrier may be fast by chance: take the median.
        spark_barrier = median(repeat(context.barrier, number=1, repeat=3))
    if team.rank == 0:
        names = RESULT_SCHEMA.split()[::2]  # without the types
        yield pd.DataFrame([[centers.ravel(), seconds, spark_barrier, team_barrier]], columns=names)
