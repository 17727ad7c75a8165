"""The live page for its readers: many workers, long names, terms, charts, keys, and no colour alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers.browser import Browser, browser, until

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.live_page import LivePage
from tuplewire_service.command.viewer.rates import WorkerSample

WORKERS, TASKS = 200, 50
NAME = "<img src=x>-tuplewire-worker-with-a-long-name-{:03}"
SENDER, CONSUMER = "load.py@host:4711-1a2b3c4d", "store.py@host:4712-5e6f7a8b"
FOCUSED = "document.activeElement.ariaLabel"
CHART = "by('lines').querySelector('svg')"
CAPTION = "by('lines').querySelector('strong').textContent"


def status(number: int, seconds: float) -> pb.GetStatusResponse:
    """Return the status of a worker of this age. The first has a blocked sender, a consumer and a peer."""
    first = number == 0
    return pb.GetStatusResponse(
        worker_id=NAME.format(number),
        topology="many",
        incarnation=1,
        state=pb.WORKER_STATE_READY,
        local_task_count=TASKS,
        connected_session_count=int(first),
        subscribed_consumer_count=int(first),
        state_seconds={"backpressured_queue" if first else "idle": seconds},
        tasks=[
            pb.TaskStatus(
                task=number * TASKS + each, load=0.9 if first else 0.1, received_messages=int(100 * seconds)
            )
            for each in range(TASKS)
        ],
        peers=[pb.PeerStatus(worker_id=NAME.format(1), address="host:1")] if first else [],
        sessions=[pb.SessionStatus(sender_id=SENDER, connected=True, blocking_task_count=1)][: int(first)],
        consumers=[pb.ConsumerStatus(consumer_id=CONSUMER, tasks=[0], task_count=1)] if first else [],
    )


@cache
def many() -> list[WorkerSample]:
    """Return 200 workers with 10,000 tasks."""
    return [
        WorkerSample(NAME.format(each), f"host:{each}", status(each, 11), status(each, 10), task_count=TASKS)
        for each in range(WORKERS)
    ]


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Browser]:
    """Open the page of many workers in a browser; in the end, it must not have complained."""
    with LivePage(many, 0, interval=1.0) as page, browser(tmp_path) as tab:
        tab.open(page.url)
        until(tab, "by('count').textContent.includes('100 of 10,000')", "the rows")
        yield tab
        assert tab.complaints == []


def test_many_workers_stay_few_elements(tab: Browser) -> None:
    """The page shows the worst workers and tasks, the number of the others, and keeps its elements."""
    assert tab.value("by('more').textContent") == "and 188 more, in the table of workers"
    assert tab.value("by('mapkey').textContent.endsWith('And 188 more workers.')")
    assert tab.value("document.querySelectorAll('#map [data-state]').length") == 2 * 40
    assert "and 10 more" in tab.value("by('map').textContent")
    assert tab.value("by('title').textContent").startswith("Topology many, 200 workers")
    tab.value("window.seen = last; window.kept = [...document.querySelectorAll('#body tr, #lines figure')]")
    until(tab, "window.seen !== last", "it is drawn again")
    assert tab.value("window.kept.length > 100 && window.kept.every(each => each.isConnected)")
    for table in ("tasks", "workers"):
        tab.value(f"by('tab-{table}').click()")
        until(tab, f"by('table').ariaLabel === '{table}'", "the table")
        assert tab.value("document.querySelectorAll('*').length") < 6000
    assert tab.value("document.images.length") == 0  # names are text, not HTML
    tab.resize(390, 800)
    until(tab, "document.documentElement.scrollWidth <= 390", "it fits a phone")


def test_names_are_short_and_complete(tab: Browser) -> None:
    """Long ids lose their middle, so they stay distinct; the complete id is a hint, and can be searched."""
    names = "[...document.querySelectorAll('#map .name')].map(each => each.textContent)"
    assert tab.value(f"new Set({names}).size") == 12
    for table, full in (("senders", SENDER), ("consumers", CONSUMER)):
        tab.value(f"by('tab-{table}').click(); by('filter').value = '{full}'; by('filter').oninput()")
        until(tab, "document.querySelectorAll('#body tr').length === 1", table)
        cell = "document.querySelector('#body th button')"
        assert tab.value(f"{cell}.textContent") == full.rpartition("-")[0]
        assert tab.value(f"{cell}.title") == full
        tab.value(f"{cell}.click()")
        until(tab, f"by('detailtitle').textContent.endsWith('{full}')", "the complete id")


def test_each_term_is_explained(tab: Browser) -> None:
    """Titles of columns and charts, and the states of a legend in a fixed order, have a hint and an entry."""
    titles = "Object.values(TABLES).flatMap(each => each.columns.map(column => column[0]))"
    assert tab.value(f"[...{titles}, ...LINES.map(each => each[0])].filter(each => !hint(each))") == []
    shown = "[...document.querySelectorAll('#head button, #lines figcaption span, #keys > span')]"
    assert tab.value(f"{shown}.length > 20 && {shown}.every(each => each.title)")
    assert tab.value("[...by('keys').children].map(each => each.textContent)") == [
        "busy",
        "idle",
        "backpressured: queue",
        "backpressured: credit",
        "backpressured: socket",
    ]
    assert tab.value("by('terms').querySelectorAll('dt').length") > 50


def test_charts_have_axes_and_values(tab: Browser) -> None:
    """A chart has a scale and a time; a pointer or the slider shows the values of an earlier time in all."""
    until(tab, "history.length >= 4", "some history")
    axes = "[...by('lines').querySelector('.plot').querySelectorAll('span')].map(each => each.textContent)"
    assert tab.value(axes)[1:] == ["0", "30.0 s agonow", "30.0 s ago", "now"]
    label = f"{CHART}.ariaLabel"
    until(
        tab, f"/^Accepted: .* now, at least .* and at most .* in the last 30.0 s$/.test({label})", "as text"
    )
    move = "{chart}.dispatchEvent(new PointerEvent('{kind}', {{clientX: {x}, pointerType: 'mouse'}}))"
    place = f"{CHART}.getBoundingClientRect().right - {CHART}.getBoundingClientRect().width / 15"
    tab.value(move.format(chart=CHART, kind="pointermove", x=place))
    assert tab.value(f"/, [0-9.]+ m?s ago$/.test({CAPTION})")
    assert tab.value("by('when').value") == "-2"
    tab.value(move.format(chart=CHART, kind="pointerleave", x=0))
    assert not tab.value(f"{CAPTION}.includes('ago')")
    tab.value("by('when').value = -3; by('when').oninput()")  # as the arrow keys of a slider
    assert tab.value("by('when').getAttribute('aria-valuetext')") == "3.0 s ago"
    assert tab.value("by('lines').querySelectorAll('strong').length") == 7
    assert tab.value(
        "[...by('lines').querySelectorAll('strong')].every(each => each.textContent.endsWith('ago'))"
    )


def test_keys_and_words_replace_pointer_and_colour(tab: Browser) -> None:
    """Arrow keys move between the squares of tasks; red and orange also have words or a shape."""
    assert tab.value("document.querySelectorAll('#map [data-state][tabindex=\"0\"]').length") == 2
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
    tab.value("document.querySelector('#map [data-state]').focus()")
    assert tab.value(FOCUSED) == "task 0, nearly full"
    for key, number in (("Right", 1), ("Down", 21), ("Left", 20), ("Up", 0), ("Up", 0)):
        tab.value(press.format(f"Arrow{key}"))
        assert tab.value(FOCUSED) == f"task {number}, nearly full"
    tab.value(press.format("Enter"))
    until(tab, "document.activeElement.textContent === 'task 0'", "the task by itself")
    tab.value(press.format("Escape"))
    assert tab.value(FOCUSED) == "task 0, nearly full"
    assert tab.value("document.querySelector('#map [data-state]').getAttribute('rx')") == "6"
    assert tab.value("by('map').querySelectorAll('path').length") == 3  # sender, consumer, peer
    assert tab.value("by('map').querySelectorAll('polygon').length") == 3
    labels = tab.value("[...by('map').querySelectorAll('.on')].map(each => each.textContent)")
    assert sum("waits" in each for each in labels) == 1
    assert sum("disconnected" in each for each in labels) == 1
    assert tab.value("by('map').ariaLabel.includes('programs to ')")
    stripes = "getComputedStyle(document.querySelector('.bar .backpressured_queue')).backgroundImage"
    assert tab.value(f"{stripes} !== 'none'")
    assert tab.value("document.querySelector('#body th').scope") == "row"
