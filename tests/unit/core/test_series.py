"""Metric series: selection and totals."""

from __future__ import annotations

import random

from tuplewire_service.metrics.worker_metrics import Series


def test_first_come_first_kept() -> None:
    """Keys beyond the limit share `other`, and a key keeps its name while it exists."""
    series = Series(2)
    assert series.names_of(["a", "b", "c"]) == {"a": "a", "b": "b", "c": "other"}
    assert series.names_of(["c", "b", "a", "d"]) == {"a": "a", "b": "b", "c": "other", "d": "other"}
    assert series.names_of(["b", "c", "e"]) == {"b": "b", "c": "other", "e": "e"}
    assert series.names_of(["c", "a"]) == {"c": "other", "a": "a"}


def test_no_total_falls_while_its_name_is_there() -> None:
    """A counter never decreases while its name exists; a name that returns starts from zero."""
    dice = random.Random(7)
    series = Series(3)
    connections: dict[int, tuple[str, int]] = {}
    before: dict[str, list[int]] = {}
    for number in range(500):
        connections[number] = (f"w{dice.randrange(6)}", 0)
        for key in list(connections):
            worker, count = connections[key]
            connections[key] = (worker, count + dice.randrange(10))
            if dice.random() < 0.3:
                del connections[key]
        named = series.names_of(worker for worker, _ in connections.values())
        now = series.add_up({key: (named[worker], (count,)) for key, (worker, count) in connections.items()})
        for name in before.keys() & now.keys():
            assert now[name] >= before[name], name
        assert "other" in now or "other" not in before
        before = now
