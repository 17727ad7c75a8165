"""The live page of a topology on Spark: the components by name, and the slow component."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually, words
from helpers.browser import page_data, web_viewer
from helpers.executors import pipeline
from pyspark.sql import SparkSession

from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire_topology.spark import Rows, SparkTopology, run_topology, submit_topology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # a wait may take SECONDS

SECONDS = 180.0


@contextmanager
def submitted(spark: SparkSession, slow: Path) -> Iterator[SparkTopology]:
    """Run the words in two PySpark tasks with workers that the run starts; stop the run cleanly."""
    conf = {
        words.SLOW_FILE: str(slow),
        "topology.workers": 2,
        "topology.acker.executors": 0,
        "topology.executor.receive.buffer.size": 64,
    }
    running = submit_topology(spark, words.slow_topology(), conf=conf, outputs={}, name="words")
    try:
        yield running
    finally:
        slow.unlink(missing_ok=True)
        running.stop()
        running.result(SECONDS)


@pytest.mark.slow
def test_a_slow_bolt_on_spark_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has the topology of all workers, and names and marks the slow bolt."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    slow = tmp_path / "slow"
    with submitted(spark, slow) as running, viewer_of(running.watch_command) as link:

        def until(holds: Callable[[dict[str, Any]], bool], what: str) -> None:
            eventually(lambda: holds(page_data(link)), SECONDS, what)

        def row(page: dict[str, Any], component: str) -> dict[str, Any]:
            return next(each for each in page["components"] if each["component"] == component)

        until(lambda page: len(page["components"]) == 4, "the topology is known")
        until(lambda page: [bool(each["rate"]) for each in page["edges"]] == [True] * 3, "tuples flow")
        until(lambda page: len(row(page, "count")["workers"]) == 2, "both workers are seen")
        until(lambda page: str(page["tasks"]).count("'count'") == 2, "its tasks are named")
        slow.touch()
        until(lambda page: "bolt count is slow" in str(page["problems"]), "the culprit is named")
        until(lambda page: row(page, "count")["is_slow"], "the culprit is marked")
        slow.unlink()
        until(lambda page: not row(page, "count")["is_slow"], "all is well")


def viewer_of(command: str) -> AbstractContextManager[str]:
    """Run the watch command of a topology."""
    *variables, _tuplewire, _top, _web, _flag, address = shlex.split(command)
    return web_viewer(address, dict(each.split("=", 1) for each in variables))


@pytest.mark.slow
def test_a_run_says_how_to_watch_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has the watch command with the name of the run's token file, but not the token."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    conf = {"topology.workers": 1}
    topology = pipeline({"rows": Rows("id"), "store": words.Store()})
    run_topology(spark, topology, conf=conf, rows=spark.range(10), outputs={}, name="rows")
    said = capsys.readouterr().err
    watch = r"topology rows: watch it with TUPLEWIRE_TOKEN_FILE=/\S+ tuplewire top --web --address \S+\n"
    assert re.search(watch, said), said
    assert re.search("[0-9a-f]{64}", said) is None  # as long as a token
