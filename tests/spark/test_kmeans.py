"""The k-means demo, on real Spark and real workers."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tuplewire_demos import kmeans, kmeans_steps
from tuplewire_demos.input import InputError
from tuplewire_demos.report import Progress

pytestmark = pytest.mark.spark

HEADER = "carrier,hour,dep_delay,arr_delay,air_time,distance\n"
CELLS = re.compile(r" {2,}|-{2,}")
NUMBERS = re.compile(r"[0-9][0-9,.]*")


def written(path: Path, rows: int) -> Path:
    """Write flights in three groups of different sizes, and two cancelled ones."""
    random = np.random.default_rng(1)
    lines = ["AA,5,NA,,100,500\n", "AA,6,1,,100,500\n"]
    for number in range(rows):
        group = min(number % 5, 2)
        late = 60 * (group == 1) + random.normal()
        lines.append(f"AA,{6 + 6 * group},{late},{late + 1},{100 + 200 * group},{700 * group}\n")
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return path


def shape_of(text: str) -> set[str]:
    """Return the lines of a text without numbers and widths of columns."""
    return {NUMBERS.sub("#", CELLS.sub(" ", line)).strip() for line in text.splitlines()}


def test_kmeans_in_four_ways(spark: SparkSession, launch: Any, tmp_path: Path) -> None:
    """All ways have the same result, and the README shows the output."""
    flights = kmeans.read_flights(written(tmp_path / "flights.csv", 600), 6)
    quiet = Progress(io.StringIO())
    with launch(kmeans_steps.TOPOLOGY, {0: [0, 2], 1: [1]}) as running:
        workers = [each.unix_address for each in running.endpoints]
        result = kmeans.run_kmeans(spark, workers, flights, rounds=3, partitions=3, progress=quiet)
    assert result.is_correct, (result.differences, result.ledgers)
    assert result.cluster_table[:, 0].sum() == 600
    assert list(result.runs) == [kmeans.DATAFRAME, kmeans.RDD_OF_ARRAYS, kmeans.MLLIB, kmeans.TEAM]
    assert min(each.round_seconds for each in result.runs.values()) > 0
    assert min(ledger.accepted for ledger in result.ledgers.values()) > 100  # the barriers
    shown = io.StringIO()
    kmeans.write_result(shown, result)
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (sample,) = [each for each in page.split("```\n") if kmeans.DATAFRAME in each]
    assert shape_of(sample) <= shape_of(shown.getvalue()), shown.getvalue()


def test_differences_are_named() -> None:
    """A way with another center, or with another number of points, is named."""
    points = kmeans_steps.as_points(np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]))
    centers = np.array([[0.5, 0.5], [5.0, 5.0]])
    times = {
        kmeans.TEAM: kmeans.TimedRun(centers, 1.0, 1.0),
        kmeans.MLLIB: kmeans.TimedRun(centers + 1e-9, 1.0, 1.0),
    }
    assert kmeans.differences(times, points) == []
    times[kmeans.MLLIB] = kmeans.TimedRun(centers[::-1], 1.0, 1.0)
    assert kmeans.differences(times, points) == ["MLlib in Scala has other centers or counts"]


def test_a_center_without_points_stays() -> None:
    """Centers move to the mean of their points; a center without points stays."""
    points = kmeans_steps.as_points(np.array([[0.0, 2.0], [1.0, 4.0]]))
    centers = np.array([[0.0, 0.0], [-9.0, -9.0]])
    sums = kmeans_steps.sums_of(points, centers)
    assert sums.tolist() == [[1.0, 6.0, 2.0], [0.0, 0.0, 0.0]]
    assert kmeans_steps.compute_centers(centers, sums).tolist() == [[0.5, 3.0], [-9.0, -9.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("carrier,hour\nAA,5\n", "cannot read the columns dep_delay, .*'dep_delay'"),
        (HEADER + "AA,5,soon,1,1,1\n", "cannot read the columns .*'soon'"),
        (HEADER + "AA,5,1,1,1,1\n" * 3, "has 1 different flights for 2 clusters"),
    ],
)
def test_unusable_file(content: str, message: str, tmp_path: Path) -> None:
    """A file that cannot be used is refused before anything starts."""
    path = tmp_path / "flights.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        kmeans.read_flights(path, 2)
