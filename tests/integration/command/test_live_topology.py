"""A new user finds the slow bolt of a pipeline with the live page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import eventually
from helpers.browser import Browser, browser
from helpers.slow_words import FILE_KEY, topology
from helpers.viewer import page_data, web_viewer

from tuplewire_topology.clusters.cluster import DistributedCluster

SECONDS = 60.0
"""Seconds that a new user may need."""
BOX = "getComputedStyle(document.querySelector('#component-{} .box')).stroke"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Return the file that makes the bolt slow."""
    return tmp_path / "slow"


@pytest.fixture
def urls(slow: Path) -> Iterator[list[str]]:
    """Run the topology in two processes with a viewer of each, and yield the links to the pages."""
    conf = {
        FILE_KEY: str(slow),
        "topology.workers": 2,
        "topology.acker.executors": 0,
        "topology.executor.receive.buffer.size": 64,
        "tuplewire.worker.receive_queue_messages": 64,
    }
    with DistributedCluster() as cluster, ExitStack() as viewers:
        running = cluster.submit("words", conf, topology())
        yield [viewers.enter_context(web_viewer(each)) for each in running.addresses]
        slow.unlink(missing_ok=True)


def until(tab: Browser, expression: str, what: str) -> None:
    """Wait until an expression is true in the page."""
    eventually(lambda: tab.value(expression), SECONDS, f"{what}; {tab.complaints}")


@pytest.mark.slow
def test_a_stranger_finds_the_slow_bolt(urls: list[str], slow: Path, tmp_path: Path) -> None:
    """The page names the slow bolt and the blocked component, and shows the bolt in red until it recovers."""
    for url in urls:
        shown = {each["component"] for each in page_data(url)["components"]}
        assert shown == {"lines", "split", "count", "store"}
    with browser(tmp_path / "profile") as tab:
        tab.open(urls[0])
        until(tab, "by('map').querySelectorAll('[id^=component-]').length === 4", "the topology is drawn")
        until(tab, f"{BOX.format('count')} === {BOX.format('split')}", "nobody is slow yet")
        widths = "last.edges.map(e => width(e.rate))"
        until(tab, f"last.edges.every(e => e.rate > 0) && new Set({widths}).size > 1", "tuples flow")
        drawn = "[...by('map').querySelectorAll('path')].map(each => +each.getAttribute('stroke-width'))"
        assert tab.value(f"String({drawn}) === String({widths})")  # widths of the edges by rate
        slow.touch()
        until(tab, "by('blocking').innerText.includes('bolt count is slow')", "the culprit is named")
        until(tab, "by('blocking').innerText.includes('holds up split')", "and whom it holds up")
        red = tab.value("getComputedStyle(by('blocking').firstChild).color")
        until(tab, f"{BOX.format('count')} === '{red}'", "the culprit is red")
        until(tab, f"{BOX.format('store')} !== '{red}'", "who comes after it is not, once its queue is done")
        assert tab.value("by('news').textContent.includes('bolt count is slow')")  # for a screen reader
        slow.unlink()
        until(tab, f"{BOX.format('count')} !== '{red}' && !by('blocking').innerText", "all is well")
        assert tab.complaints == []


@pytest.mark.slow
def test_the_page_works_for_everybody(urls: list[str], tmp_path: Path) -> None:
    """The page works by keyboard, on a phone and in dark mode, and all controls have names."""
    with browser(tmp_path / "profile") as tab:
        tab.resize(390, 800)
        tab.open(urls[1])
        until(tab, "by('map').querySelectorAll('[id^=component-]').length === 4", "the topology is drawn")
        assert tab.value("document.documentElement.scrollWidth") <= 390
        press = "dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
        tab.value("by('component-split').focus()")
        tab.value(f"by('component-split').{press.format('Enter')}")
        assert tab.value("document.activeElement.innerText") == "component split"
        until(tab, "by('trail').querySelectorAll('figure').length === 2", "its time lines")
        tab.value(f"document.activeElement.{press.format('Escape')}")
        assert tab.value("by('detail').hidden")
        assert tab.value("document.activeElement.id") == "component-split"
        tab.value("window.seen = last; by('component-split').focus()")
        until(tab, "window.seen !== last", "it is drawn anew")
        assert tab.value("document.activeElement.id") == "component-split"  # the focus is unchanged
        nameless = (
            "[...document.querySelectorAll('[role=button], [role=img], button, input')].filter(each => "
            "!each.ariaLabel && !each.textContent.trim() && !each.closest('label')).map(each => each.id)"
        )
        assert tab.value(nameless) == []
        ground = "getComputedStyle(document.body).backgroundColor"
        light = tab.value(ground)
        tab.dark()
        assert tab.value(ground) != light
        assert tab.complaints == []
