"""The live page of a topology on Spark: its components by name, and which one is slow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from helpers import eventually, slow_words
from helpers.browser import browser
from helpers.viewer import web_viewer
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire_topology import Topology, TopologyBuilder
from tuplewire_topology.spark import Rows, SparkTopology, run_topology, submit_topology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # a wait may take SECONDS
# Spark's Python workers do not find this module.
cloudpickle.register_pickle_by_value(slow_words)  # type: ignore[no-untyped-call]

SECONDS = 180.0
BOX = "getComputedStyle(document.querySelector('#component-{} .box')).stroke"


@contextmanager
def submitted(spark: SparkSession, slow: Path) -> Iterator[SparkTopology]:
    """Run the words in two PySpark tasks, each beside a worker that the run starts; it ends in good order."""
    conf = {
        slow_words.FILE_KEY: str(slow),
        "topology.workers": 2,
        "topology.acker.executors": 0,
        "topology.executor.receive.buffer.size": 64,
    }
    running = submit_topology(spark, slow_words.topology(), conf=conf, outputs={}, name="words")
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
    """The link opens the page, which draws the topology of all workers, and names and marks the culprit."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    slow = tmp_path / "slow"
    with (
        submitted(spark, slow) as running,
        viewer_of(running.watch_command) as link,
        browser(tmp_path / "profile") as tab,
    ):
        tab.open(link)

        def until(expression: str, what: str) -> None:
            eventually(lambda: tab.value(expression), SECONDS, f"{what}; {tab.complaints}")

        until("by('map').querySelectorAll('[id^=component-]').length === 4", "the topology is drawn")
        until("last.edges.length === 3 && last.edges.every(e => e.rate > 0)", "tuples go over each edge")
        until(
            "last.components.find(c => c.component === 'count').workers.length === 2", "both workers are seen"
        )
        until("last.tasks.filter(t => t.component === 'count').length === 2", "its tasks are named")
        slow.touch()
        until("by('blocking').innerText.includes('bolt count is slow')", "the culprit is named")
        red = tab.value("getComputedStyle(by('blocking').firstChild).color")
        until(f"{BOX.format('count')} === '{red}'", "the culprit is red")
        slow.unlink()
        until(f"{BOX.format('count')} !== '{red}'", "all is well")
        assert tab.complaints == []


def viewer_of(command: str) -> AbstractContextManager[str]:
    """Run what a topology says."""
    *variables, _tuplewire, _top, _web, address = shlex.split(command)
    return web_viewer(address, dict(each.split("=", 1) for each in variables))


def rows_of_spark() -> Topology:
    """Return a topology that ends by itself: it stores the rows of a DataFrame."""
    builder = TopologyBuilder()
    builder.set_spout("rows", Rows("id"))
    builder.set_bolt("store", slow_words.Store()).shuffle_grouping("rows")
    return builder.create_topology()


@pytest.mark.slow
def test_a_run_says_how_to_watch_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has the command, and the name of the file with the run's token, not the token."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    conf = {"topology.workers": 1}
    run_topology(spark, rows_of_spark(), conf=conf, rows=spark.range(10), outputs={}, name="rows")
    said = capsys.readouterr().err
    watch = r"topology rows: watch it with TUPLEWIRE_TOKEN_FILE=/\S+ tuplewire top --web \S+\n"
    assert re.search(watch, said), said
    assert re.search("[0-9a-f]{64}", said) is None  # as long as a token


def test_a_run_beside_named_workers_says_so(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The command is for the worker that the driver talks to."""
    with WorkerProcesses(1, "rows", flags=["--drain-seconds=1"]) as local:
        (address,) = (each.unix_address for each in local.endpoints)
        run_topology(
            spark,
            rows_of_spark(),
            conf={"topology.workers": 1},
            rows=spark.range(10),
            outputs={},
            workers=[address],
            name="rows",
        )
    assert f"topology rows: watch it with tuplewire top --web {address}\n" in capsys.readouterr().err
