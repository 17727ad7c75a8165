"""The live page of a topology on Spark: its components by name, and who is slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import eventually, slow_words
from helpers.browser import browser
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tuplewire.addresses import ADDRESS_VARIABLE
from tuplewire.connection.control_client import ControlClient
from tuplewire.spark.topology import Rows, SparkTopology, run_topology, submit_topology
from tuplewire.topology import Topology, TopologyBuilder
from tuplewire_service.launching.local_workers import LocalWorkers

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
    with submitted(spark, slow) as running, browser(tmp_path / "profile") as tab:
        tab.open(running.page)

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


def rows_of_spark() -> Topology:
    """Return a topology that ends by itself: it stores the rows of a DataFrame."""
    builder = TopologyBuilder()
    builder.set_spout("rows", Rows("id"))
    builder.set_bolt("store", slow_words.Store()).shuffle_grouping("rows")
    return builder.create_topology()


@pytest.mark.slow
def test_a_run_says_how_to_open_its_page(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has the link, and the name of the file with the run's token; the page ends with the run."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    conf = {"topology.workers": 1}
    result = run_topology(spark, rows_of_spark(), conf=conf, rows=spark.range(10), outputs={}, name="rows")
    said = capsys.readouterr().err
    assert re.search(r"topology rows: live page http://\S+/ \(.* the first one in /\S+\)", said), said
    assert re.search("[0-9a-f]{64}", said) is None  # as long as a token
    assert result.page == ""


def test_the_page_of_named_workers_stays(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Log and result have the link of the worker that the driver talks to."""
    with LocalWorkers(1, "rows", flags=["--drain-seconds=1"]) as local:
        (address,) = (each.unix_address for each in local.endpoints)
        with ControlClient(address) as control:
            page = control.status().page
        result = run_topology(
            spark,
            rows_of_spark(),
            conf={"topology.workers": 1},
            rows=spark.range(10),
            outputs={},
            workers=[address],
            name="rows",
        )
    assert result.page == page
    assert page.startswith("http://")
    assert f"topology rows: live page {page} (with a browser on this machine)" in capsys.readouterr().err
