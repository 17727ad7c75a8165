"""The examples on Spark, each run unchanged in the session that all tests share."""

from __future__ import annotations

import re
import runpy

import pytest
from helpers.examples import EXAMPLES, PRINTS, on_spark
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


LONG = {"enrich_orders.py"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in PRINTS if on_spark(name)],
)
def test_example(name: str, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: ARG001
    """An example prints the expected output; `getOrCreate` returns the shared session."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capfd.readouterr().out
    for pattern in PRINTS[name]:
        assert re.search(pattern, printed), printed
