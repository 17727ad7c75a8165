"""The k-means demo: the same NumPy function in one Spark job for each round, and in one job with a Team.

Used by run_command.py. Owns no state. Not thread-safe. Design: docs/design/teams.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

from tuplewire_demos.input import InputError, SkippedRows, check_file
from tuplewire_demos.kmeans_steps import (
    RESULT_SCHEMA,
    Array,
    as_points,
    compute_centers,
    run_rounds,
    sum_partition,
    sums_of,
)
from tuplewire_demos.report import Progress, RunReport
from tuplewire_demos.spark_run import ledgers_of
from tuplewire_service.command.terminal import write_table

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

N_TASKS = 1000
"""The number of tasks of the workers. It must not be below the number of PySpark tasks."""
JVM_OPTIONS = "-XX:+UseParallelGC -Ddev.ludovic.netlib.blas.nativeLib=libm.so.6"
"""The options of the JVM. MLlib needs the optimizing compiler, which the other demos do not wait for.

MLlib would print an error if no native BLAS is installed. Vectors of five numbers do not use that library.
"""
COLUMNS = ("dep_delay", "arr_delay", "air_time", "distance", "hour")
"""The columns of the points: minutes, minutes, minutes, miles, and the scheduled hour of the day."""
DATAFRAME, RDD_OF_ARRAYS, MLLIB, TEAM = "DataFrame, mapInPandas", "RDD of arrays", "MLlib in Scala", "Team"
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The centers of one way, the time of all its rounds with job starts, and the mean time of a round."""

    centers: Array
    seconds: float
    round_seconds: float


@dataclass(frozen=True, slots=True)
class KMeansResult(RunReport):
    """The results of a finished run. runs: by the name of the way.

    cluster_table: the number of flights of each cluster, and its center in the units of the columns.
    barrier_seconds: the time of a barrier of Spark, and of one of the team.
    """

    runs: Mapping[str, TimedRun]
    rounds: int
    cluster_table: Array
    barrier_seconds: tuple[float, float]


# --- one job for each round ----------------------------------------------------------------------


def _sum_dataframe(frame: DataFrame, centers: Array) -> Array:
    rows = frame.mapInPandas(partial(sum_partition, centers=centers), "sums array<double>").collect()
    total: Array = np.sum([row["sums"] for row in rows], axis=0)
    return total.reshape(len(centers), -1)


def _sum_rdd(arrays: RDD[Array], centers: Array) -> Array:
    return reduce(np.add, arrays.map(partial(sums_of, centers=centers)).collect())


def _run_jobs(progress: Progress, sum_up: Callable[[Array], Array], centers: Array, rounds: int) -> TimedRun:
    sum_up(centers)  # starts Python in Spark's tasks, and fills the cache
    began = time.monotonic()
    for number in range(rounds):
        progress.show_line(f"round {number + 1} of {rounds}", number / rounds)
        centers = compute_centers(centers, sum_up(centers))
    seconds = time.monotonic() - began
    return TimedRun(centers, seconds, seconds / rounds)


def _run_mllib(arrays: RDD[Array], start_centers: Array, rounds: int) -> TimedRun:
    """Run MLlib's k-means in Scala. Its Python classes cannot keep converted points between two runs."""
    from pyspark.mllib.common import _py2java
    from pyspark.mllib.linalg import DenseVector

    context = arrays.context
    vectors = _py2java(context, arrays.flatMap(lambda points: map(DenseVector, points[:-1].T))).cache()
    vectors.count()
    scala: Any = context._jvm
    clustering = scala.org.apache.spark.mllib.clustering
    model = clustering.KMeansModel(_py2java(context, list(map(DenseVector, start_centers))))
    trainer = clustering.KMeans().setK(len(start_centers)).setEpsilon(0.0).setInitialModel(model)
    trainer.setMaxIterations(rounds).run(vectors.rdd())  # the JVM compiles the code in the first run
    began = time.monotonic()
    found = trainer.run(vectors.rdd())
    seconds = time.monotonic() - began
    centers = np.array([list(center.toArray()) for center in found.clusterCenters()])
    vectors.unpersist()
    return TimedRun(centers, seconds, seconds / found.numIter())


# --- one job with a team -------------------------------------------------------------------------


def _run_team(
    frame: DataFrame, workers: Sequence[str], start_centers: Array, rounds: int
) -> tuple[TimedRun, tuple[float, float]]:
    began = time.monotonic()
    run = partial(run_rounds, workers=workers, start_centers=start_centers, rounds=rounds)
    (row,) = frame.mapInPandas(run, RESULT_SCHEMA, barrier=True).collect()
    centers = np.array(row["centers"]).reshape(start_centers.shape)
    timed = TimedRun(centers, time.monotonic() - began, row["seconds"] / rounds)
    return timed, (row["spark_barrier"], row["team_barrier"])


# --- the run -------------------------------------------------------------------------------------


def read_flights(path: Path, clusters: int) -> pd.DataFrame:
    """Return the COLUMNS of all rows of a CSV file that have each of them.

    Raises InputError for an unusable file, or one with fewer different rows than clusters.
    """
    check_file(path)
    kinds = dict.fromkeys(COLUMNS, pa.float64())
    options = pc.ConvertOptions(include_columns=COLUMNS, column_types=kinds, null_values=["", "NA"])
    try:
        flights: pd.DataFrame = pc.read_csv(path, convert_options=options).drop_null().to_pandas()
    except (pa.ArrowException, KeyError) as error:
        raise InputError(f"cannot read the columns {', '.join(COLUMNS)} of {path}: {error}") from error
    if (different := len(flights.drop_duplicates())) < clusters:
        raise InputError(f"{path} has {different} different flights for {clusters} clusters")
    return flights


def run_kmeans(
    spark: SparkSession,
    workers: Sequence[str],
    flights: pd.DataFrame,
    *,
    clusters: int = 6,
    rounds: int = 30,
    partitions: int = 2,
    progress: Progress,
) -> KMeansResult:
    """Compute the centers in four ways, all from the same start, with the same number of rounds.

    workers: the addresses of workers; the worker of task n is workers[n % len(workers)]. flights: see
    read_flights(). partitions: the number of PySpark tasks. Raises ConfigError, or the error of a failed job.
    """
    mean, scale = flights.mean(), flights.std().replace(0.0, 1.0)
    points = (flights - mean) / scale
    start_centers = points.drop_duplicates().sample(clusters, random_state=0).to_numpy()
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", value=True)
    frame = spark.createDataFrame(points).repartition(partitions).cache()
    parts = np.array_split(points.to_numpy(), partitions)
    arrays = spark.sparkContext.parallelize(map(as_points, parts), partitions).cache()
    implementations: dict[str, Callable[[Array, int], TimedRun]] = {
        DATAFRAME: partial(_run_jobs, progress, partial(_sum_dataframe, frame)),
        RDD_OF_ARRAYS: partial(_run_jobs, progress, partial(_sum_rdd, arrays)),
        MLLIB: partial(_run_mllib, arrays),
    }
    runs = {}
    for name, compute in implementations.items():
        progress.start_stage(f"{name}: {rounds} rounds ...")
        runs[name] = compute(start_centers, rounds)
    progress.start_stage(f"{TEAM}: {rounds} rounds in one job ...")
    runs[TEAM], barriers = _run_team(frame, workers, start_centers, rounds)
    array, centers = as_points(points.to_numpy()), runs[TEAM].centers
    table = np.column_stack([sums_of(array, centers)[:, -1], centers * scale.to_numpy() + mean.to_numpy()])
    wrong, ledgers = differences(runs, array), ledgers_of(workers)
    return KMeansResult(wrong, SkippedRows(0, ()), ledgers, (), runs, rounds, table, barriers)


def differences(runs: Mapping[str, TimedRun], points: Array) -> list[str]:
    """Return a text for each way with centers (by over 1e-6) or numbers of points unlike the team's."""
    counts = {name: sums_of(points, each.centers)[:, -1] for name, each in runs.items()}
    return [
        f"{name} has other centers or counts"
        for name, each in runs.items()
        if not np.allclose(each.centers, runs[TEAM].centers, rtol=_TOLERANCE, atol=_TOLERANCE)
        or not np.array_equal(counts[name], counts[TEAM])
    ]


def write_result(stream: TextIO, result: KMeansResult, *, verbose: bool = False) -> None:
    """Write the times, the clusters and the summary."""
    team = result.runs[TEAM].round_seconds
    rows = []
    for name, each in result.runs.items():
        faster = "" if name == TEAM else f"{each.round_seconds / team:.1f} x"
        rows.append((name, f"{each.round_seconds * 1000:.1f}", f"{each.seconds:.1f}", faster))
    write_table(stream, ("", "ms per round", "seconds", "a Team's round is faster by"), rows)
    stream.write("\n")
    header = ("flights", "share", "departs late", "arrives late", "in the air", "distance", "departure due")
    cluster_rows = []
    for count, departs, arrives, air, miles, hour in sorted(result.cluster_table.tolist(), reverse=True):
        share = count / result.cluster_table[:, 0].sum()
        minutes = [f"{each:,.0f} min" for each in (departs, arrives, air)]
        cluster_rows.append((f"{count:,.0f}", f"{share:.1%}", *minutes, f"{miles:,.0f} mi", f"{hour:.0f} h"))
    write_table(stream, header, cluster_rows)
    spark, team_barrier = result.barrier_seconds
    rates = [
        f"{result.cluster_table[:, 0].sum():,.0f} flights, {result.rounds} rounds",
        f"A barrier of Spark takes {spark * 1000:,.0f} ms, and one of a Team {team_barrier * 1000:.1f} ms",
    ]
    result.write_summary(stream, "the centers and counts of the other three", rates, verbose=verbose)
