"""Tuple trees over several processes: each is reported when all its tuples are done, never earlier."""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tuplewire_topology.acking.acker import AckerClient, AckerTrees, TreeOutcome, TupleUpdates, tracking_keys
from tuplewire_topology.authoring.collector import EmittedTuples
from tuplewire_topology.authoring.description import (
    Component,
    ComponentKind,
    GroupingType,
    Input,
    Topology,
    with_ackers,
)
from tuplewire_topology.authoring.tuples import AddressedTuples, Roots, Stream, Tuple

OUT = (Stream("value"),)
TOPOLOGY = with_ackers(
    Topology(
        [
            Component("a", ComponentKind.SPOUT, OUT),
            Component(
                "b", ComponentKind.BOLT, OUT, (Input("a"), Input("b", grouping=GroupingType.ALL)), 3, 3
            ),
        ]
    ),
    2,
)
SPOUT, BOLTS, ACKERS = 1, (2, 3, 4), (5, 6)


def roots_of(message_id: Roots) -> set[int]:
    """Return the roots that a tuple descends from."""
    return {int.from_bytes(pair[:8], "little") for _, pair in message_id}


class World:
    """A spout, bolts that emit at random, and acker tasks; updates arrive late, in order for each sender."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.followers = {task: AckerClient(TOPOLOGY, task, seed=task) for task in (SPOUT, *BOLTS)}
        self.trees = {task: AckerTrees() for task in ACKERS}
        self.queues: dict[int, list[Tuple]] = {task: [] for task in BOLTS}
        self.told: dict[tuple[int, int], deque[Tuple]] = {}
        self.left: dict[int, int] = {}
        self.failed: set[int] = set()
        self.fates: list[TreeOutcome] = []

    def targets(self) -> list[int]:
        return list(self.draw(st.lists(st.sampled_from(BOLTS), unique=True, max_size=3)))

    def send(
        self, task: int, began: list[int], tuples: list[Tuple], acked: list[Roots], failed: list[Roots]
    ) -> None:
        """Send tuples, each to some tasks, and the updates about them; some tuples are lost by an error."""
        lost = [message for message in tuples if self.draw(st.integers(0, 9)) == 0]
        for message in lost:
            self.failed |= roots_of(message.roots)
        columns = [
            AddressedTuples(target, [message])
            for message in tuples
            if message not in lost
            for target in self.targets()
        ]
        for column in columns:
            self.queues[column.task] += column.tuples
            self.count(column.tuples[0].roots, 1)
        for column in self.followers[task].report(TupleUpdates(task, began, columns, lost, acked, failed)):
            self.told.setdefault((task, column.task), deque()).extend(column.tuples)

    def count(self, message_id: Roots, change: int) -> None:
        for root in roots_of(message_id):
            self.left[root] = self.left.get(root, 0) + change

    def emit(self) -> None:
        message = Tuple([1], TOPOLOGY.source(SPOUT, "default"), ((SPOUT, "id"),))
        ((root, _),) = self.followers[SPOUT].start_tracking([EmittedTuples(message.source, None, [message])])
        self.left[root] = 0
        self.send(SPOUT, [root], [message], [], [])

    def execute(self) -> None:
        """Run a bolt: it joins some of its tuples, emits, and acks or fails."""
        task = self.draw(st.sampled_from(BOLTS))
        queue = self.queues[task]
        taken = [queue.pop() for _ in range(self.draw(st.integers(0, min(2, len(queue)))))]
        anchors = tuple(dict.fromkeys(root for message in taken for root in message.roots))
        source = TOPOLOGY.source(task, "default")
        tuples = [Tuple([1], source, anchors) for _ in range(self.draw(st.integers(0, 2)) if anchors else 0)]
        self.followers[task].renumber([EmittedTuples(source, None, tuples)])
        ids = [message.roots for message in taken]
        fails = bool(ids) and self.draw(st.integers(0, 9)) == 0
        self.send(task, [], tuples, [] if fails else ids, ids if fails else [])
        for message_id in ids:
            self.count(message_id, -1)
            if fails:
                self.failed |= roots_of(message_id)

    def hear(self) -> None:
        """Deliver the next update of some sender to an acker task."""
        waiting = [key for key, messages in self.told.items() if messages]
        if not waiting:
            return
        key = self.draw(st.sampled_from(waiting))
        for fate in self.trees[key[1]].apply_report(self.told[key].popleft()):
            _, root, processed = fate
            self.fates.append(fate)
            assert not processed or (not self.left[root] and root not in self.failed)
            assert processed or root in self.failed


@patch("tuplewire_topology.acking.acker._MAX_ROOTS", 2)  # so that reports have several tuples
@given(st.data())
def test_every_tree_is_told_once_and_not_too_early(data: st.DataObject) -> None:
    """Each root has exactly one, correct fate, for any joins, emits, failures and delays of updates."""
    world = World(data.draw)
    for _ in range(data.draw(st.integers(1, 40))):
        data.draw(st.sampled_from([world.emit, world.execute, world.execute, world.hear]))()
    for task, queue in world.queues.items():
        while queue:
            message_id = queue.pop().roots
            world.count(message_id, -1)
            world.send(task, [], [], [message_id], [])
    while any(world.told.values()):
        world.hear()
    assert sorted(root for _, root, _ in world.fates) == sorted(world.left)
    assert {root for _, root, processed in world.fates if not processed} == world.failed
    assert not any(map(len, world.trees.values()))


def test_keys_of_a_fate() -> None:
    """A fate from an acker task contains the keys of many tuples."""
    message = Tuple([(7).to_bytes(8, "little") * 2], TOPOLOGY.source(5, "__ack_ack"))
    assert list(tracking_keys(message)) == [7, 7]
