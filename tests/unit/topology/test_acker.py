"""The acker: completion of tuple trees, and the notification of their spouts."""

from __future__ import annotations

from collections.abc import Sequence

from tuplewire_topology.acking.acker import LocalTracker, TreeKey, TupleUpdates
from tuplewire_topology.authoring.tuples import ACK_STREAM, AddressedTuples, Roots, Stream, Tuple, TupleSource

A, B = (7, "a"), (8, "b")
SOURCE = TupleSource("bolt", 9, Stream())


class Told:
    """Records the notifications to spouts."""

    def __init__(self) -> None:
        self.fates: list[tuple[int, str, bool]] = []
        self.acker = LocalTracker(self.tell)

    def tell(self, column: AddressedTuples) -> None:
        """Record a column for a spout's task."""
        self.fates += [(column.task, fate[0], fate.source_stream == ACK_STREAM) for fate in column.tuples]

    def update(
        self,
        began: Sequence[TreeKey] = (),
        copies: Sequence[TreeKey] = (),
        acked: Sequence[Roots] = (),
        failed: Sequence[Roots] = (),
    ) -> None:
        """Report a task's updates to the acker; each of `copies` is a tuple with this root alone."""
        column = AddressedTuples(9, [Tuple([], SOURCE, (root,)) for root in copies])
        task = began[0][0] if began else 9
        self.acker.report(TupleUpdates(task, [key for _, key in began], [column], [], acked, failed))


def test_a_tree_is_over_when_its_last_copy_is() -> None:
    """A tuple's emissions count before its ack, so a tree completes only with its leaves."""
    told = Told()
    told.update(began=[A], copies=[A])
    told.update(copies=[A, A], acked=[(A,)])
    told.update(acked=[(A,)])
    assert (told.fates, len(told.acker._trees)) == ([], 1)
    told.update(acked=[(A,)])
    assert (told.fates, len(told.acker._trees)) == ([(7, "a", True)], 0)


def test_nobody_subscribes() -> None:
    """A tuple without a receiving task is processed immediately."""
    told = Told()
    told.update(began=[A])
    assert told.fates == [(7, "a", True)]


def test_failure_is_told_once_nothing_is_on_the_way() -> None:
    """A failure is reported when no tuple is in flight, so a retry meets no rest of the first try."""
    told = Told()
    told.update(began=[A], copies=[A, A])
    told.update(failed=[(A,)])
    assert told.fates == []
    told.update(acked=[(A,)])
    assert told.fates == [(7, "a", False)]


def test_several_roots() -> None:
    """A tuple with two roots delays both trees."""
    told = Told()
    told.update(began=[A], copies=[A])
    told.update(began=[B], copies=[B])
    told.update(copies=[A, B], acked=[(A,), (B,)])
    assert told.fates == []
    told.update(acked=[(A, B)])
    assert sorted(told.fates) == [(7, "a", True), (8, "b", True)]


def test_what_is_over_stays_over() -> None:
    """Emitting or acking a tuple of a completed or unknown tree changes nothing."""
    told = Told()
    told.update(began=[A], copies=[A])
    told.update(acked=[(A,)])
    told.update(copies=[A])
    told.update(acked=[(A,)], failed=[(B,)])
    assert told.fates == [(7, "a", True)]
