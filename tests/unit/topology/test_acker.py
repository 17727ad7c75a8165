"""The acker: when a tree of tuples is processed, and who is told."""

from __future__ import annotations

from tuplewire_topology.acking.acker import Acker
from tuplewire_topology.authoring.tuples import ACK_STREAM, AddressedTuples

A, B = (7, "a"), (8, "b")


class Told:
    """Remembers what spouts are told."""

    def __init__(self) -> None:
        self.fates: list[tuple[int, str, bool]] = []
        self.acker = Acker(self.tell)

    def tell(self, column: AddressedTuples) -> None:
        """Take a column for a spout's task."""
        self.fates += [(column.task, fate[0], fate.source_stream == ACK_STREAM) for fate in column.tuples]


def test_a_tree_is_over_when_its_last_copy_is() -> None:
    """What a bolt emits counts before what it acks, so that a tree ends only with its leaves."""
    told = Told()
    told.acker.update(began=[A], copies={A: 1})
    told.acker.update(copies={A: 2}, acked=[(A,)])
    told.acker.update(acked=[(A,)])
    assert (told.fates, len(told.acker)) == ([], 1)
    told.acker.update(acked=[(A,)])
    assert (told.fates, len(told.acker)) == ([(7, "a", True)], 0)


def test_nobody_subscribes() -> None:
    """A tuple that goes to no task is processed at once."""
    told = Told()
    told.acker.update(began=[A])
    assert told.fates == [(7, "a", True)]


def test_failure_is_told_once_nothing_is_on_the_way() -> None:
    """A spout that sends a failed tuple again meets no rest of the first attempt."""
    told = Told()
    told.acker.update(began=[A], copies={A: 2})
    told.acker.update(failed=[(A,)])
    assert told.fates == []
    told.acker.update(acked=[(A,)])
    assert told.fates == [(7, "a", False)]


def test_several_roots() -> None:
    """A tuple that descends from two holds both trees up."""
    told = Told()
    told.acker.update(began=[A, B], copies={A: 1, B: 1})
    told.acker.update(copies={A: 1, B: 1}, acked=[(A,), (B,)])
    assert told.fates == []
    told.acker.update(acked=[(A, B)])
    assert sorted(told.fates) == [(7, "a", True), (8, "b", True)]


def test_what_is_over_stays_over() -> None:
    """A bolt that emits anchored to what it has acked, or acks what nobody knows, changes nothing."""
    told = Told()
    told.acker.update(began=[A], copies={A: 1})
    told.acker.update(acked=[(A,)])
    told.acker.update(copies={A: 1})
    told.acker.update(acked=[(A,)], failed=[(B,)])
    assert told.fates == [(7, "a", True)]
