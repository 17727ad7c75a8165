"""Metric series: selection, totals and exposition format."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from tuplewire_service.metrics.families import encode_openmetrics
from tuplewire_service.metrics.worker_metrics import Names, Totals


def test_first_come_first_kept() -> None:
    """Keys beyond the limit share `other`, and a key keeps its name while it exists."""
    names = Names(2)
    assert names.of(["a", "b", "c"]) == {"a": "a", "b": "b", "c": "other"}
    assert names.of(["c", "b", "a", "d"]) == {"a": "a", "b": "b", "c": "other", "d": "other"}
    assert names.of(["b", "c", "e"]) == {"b": "b", "c": "other", "e": "e"}
    assert names.of(["c", "a"]) == {"c": "other", "a": "a"}


def test_no_total_falls_while_its_name_is_there() -> None:
    """A counter never decreases while its name exists; a name that returns starts from zero."""
    dice = random.Random(7)
    names, totals = Names(3), Totals()
    connections: dict[int, tuple[str, int]] = {}
    before: dict[str, list[int]] = {}
    for number in range(500):
        connections[number] = (f"w{dice.randrange(6)}", 0)
        for key in list(connections):
            worker, count = connections[key]
            connections[key] = (worker, count + dice.randrange(10))
            if dice.random() < 0.3:
                del connections[key]
        named = names.of(worker for worker, _ in connections.values())
        now = totals.add_up({key: (named[worker], (count,)) for key, (worker, count) in connections.items()})
        for name in before.keys() & now.keys():
            assert now[name] >= before[name], name
        assert "other" in now or "other" not in before
        before = now


@pytest.fixture
def registry() -> CollectorRegistry:
    """Give a registry with families of every kind, and with unusual values and labels."""
    registry = CollectorRegistry()
    gauge = Gauge("g", 'A gauge with a \\ and a "quote"\nand a line.', ["b", "a"], registry=registry)
    odd = [0, -1, 0.1, 1e-7, 999_999, 1_000_000, 123_456_789, 2**53, 1e300, float("inf"), float("nan")]
    for value in odd:
        gauge.labels(f"{value}", 'x"y\\z\nw').set(value)
    Counter("c", "A counter.", registry=registry).inc(12_345_678)
    Info("i", "An info.", registry=registry).info({"version": "1.2"})
    Histogram("h_seconds", "A histogram.", ["l"], registry=registry).labels("v").observe(
        0.3, {"trace_id": "4bf9"}
    )
    return registry


def _without_created(text: bytes) -> list[bytes]:
    """Return the lines except the library's creation times, which Tuplewire's collectors do not have."""
    return [line for line in text.splitlines() if b"_created" not in line]


def test_openmetrics_is_the_librarys(registry: CollectorRegistry) -> None:
    """The encoder writes the same bytes as prometheus-client."""
    theirs = generate_openmetrics(registry)  # type: ignore[no-untyped-call]  # the library's
    assert _without_created(encode_openmetrics(registry)) == _without_created(theirs)
