"""The pages for Spark users, whose blocks run in fresh Python processes, and the examples."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from helpers.drivers import DRIVER_SECONDS, INTERPRETED
from helpers.pasted import (
    EXAMPLES,
    PASTED_ON_SPARK,
    PASTED_ONCE,
    PASTED_TOGETHER,
    PRINTS,
    Pasted,
    check,
    on_spark,
    paste,
)
from pyspark.sql import SparkSession

from tuplewire_demos.local_session import FAST_START, create_java_home, find_java


def environment(directory: Path) -> dict[str, str]:
    """Return the environment that a page's Spark needs here."""
    conf = {
        # Spark gives its Python 15 s to respond, which may not be enough on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.ui.enabled": "false",
        **INTERPRETED,
    }
    flags = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    return {
        "JAVA_HOME": str(create_java_home(find_java(), directory)),
        "PYSPARK_SUBMIT_ARGS": f"{flags} --driver-java-options '{FAST_START}' pyspark-shell",
    }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pasted", "times"),
    [
        pytest.param(PASTED_TOGETHER, 1, marks=pytest.mark.part),
        *(pytest.param(each, 2, marks=pytest.mark.long) for each in PASTED_ON_SPARK),
    ],
    ids=lambda each: each.pages[0] if isinstance(each, Pasted) else str(each),
)
def test_pasted(pasted: Pasted, times: int, tmp_path: Path) -> None:
    """Every block of a page runs, one after another, also if a reader pastes the page again."""
    check(pasted, paste(pasted.pages * times, tmp_path, DRIVER_SECONDS, environment(tmp_path / "java")))


@pytest.mark.spark
@pytest.mark.long
def test_pasted_into_a_fresh_session(tmp_path: Path) -> None:
    """Every block of both pages runs when pasted in order; the first block creates the session."""
    check(PASTED_ONCE, paste(PASTED_ONCE.pages, tmp_path, DRIVER_SECONDS, environment(tmp_path / "java")))


LONG = {"enrich_orders.py"}


@pytest.mark.spark
@pytest.mark.slow
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
