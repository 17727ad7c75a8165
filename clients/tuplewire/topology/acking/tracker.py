"""How an executor tells what has become of its tuples: to the acker of its process, or to acker tasks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tuplewire.topology.acking.acker import Acker, Root
from tuplewire.topology.acking.acker_tasks import EDGE_MASK, ID, factor_of, from_block, to_block
from tuplewire.topology.collector import Emitted
from tuplewire.topology.description import ACKER_COMPONENT, ComponentKind, Topology
from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.tuples import ACK_STREAM, FAIL_STREAM, INIT_STREAM, MessageId, Tuple

_KEY = 8
"""The bytes of a message id that hold its root."""


class TupleTracker(ABC):
    """Follows what one task emits, acks and fails; used from the task's thread alone."""

    @abstractmethod
    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """Take in what a spout has emitted, before it is sent.

        Returns, for each tuple with a message id, the key under which its fate is told, and that id.
        """

    @abstractmethod
    def derive(self, runs: Sequence[Emitted]) -> None:
        """Take in what a bolt has emitted, before it is sent."""

    @abstractmethod
    def tell(
        self,
        began: Sequence[Any],
        columns: Sequence[AddressedTuples],
        lost: Sequence[Tuple],
        acked: Sequence[MessageId],
        failed: Sequence[MessageId],
    ) -> list[AddressedTuples]:
        """Tell the acker of this, before any of the columns is on its way; return what is to be sent as well.

        began: the keys that begin() returned. columns: what goes to each task. lost: tuples that go to none,
        by an error. acked, failed: the ids of copies that are done with.
        """


class LocalTracker(TupleTracker):
    """Tells the acker of this process. Keys are the spout's own message ids."""

    def __init__(self, acker: Acker, task: int) -> None:
        self._acker = acker
        self._task = task

    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """See TupleTracker."""
        return [
            (message_id, message_id)
            for run in runs
            for message in run.tuples
            for _, message_id in message.message_id
        ]

    def derive(self, runs: Sequence[Emitted]) -> None:
        """See TupleTracker; nothing is to be done."""

    def tell(
        self,
        began: Sequence[Any],
        columns: Sequence[AddressedTuples],
        lost: Sequence[Tuple],
        acked: Sequence[MessageId],
        failed: Sequence[MessageId],
    ) -> list[AddressedTuples]:
        """See TupleTracker."""
        copies: dict[Root, int] = {}
        for tuples in (lost, *(column.tuples for column in columns)):
            for message in tuples:
                for root in message.message_id:
                    copies[root] = copies.get(root, 0) + 1
        if began or copies or acked or failed:
            roots = [(self._task, key) for key in began]
            self._acker.update(roots, copies, acked, [*failed, *(message.message_id for message in lost)])
        return []


class AckerTracker(TupleTracker):
    """Tells acker tasks, by tuples that go with the others. Keys are random, a new one for each emit.

    seed: of the random numbers; for tests, as two tasks must never have the same.
    Source: what Storm's `SpoutOutputCollectorImpl` and `BoltOutputCollectorImpl` send to the acker.
    """

    def __init__(self, topology: Topology, task: int, seed: int | None = None) -> None:
        kind = topology.component_of(task).kind
        self._ackers = topology.tasks_of(ACKER_COMPONENT)
        self._edges_source = topology.source(task, INIT_STREAM if kind is ComponentKind.SPOUT else ACK_STREAM)
        self._fail_source = topology.source(task, FAIL_STREAM)
        self._own_factor = factor_of(task)
        self._bits = random.Random(seed).getrandbits  # noqa: S311 - ids, no secrets

    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """See TupleTracker."""
        began = []
        for run in runs:
            for message in run.tuples:
                for _, message_id in message.message_id:
                    root = self._bits(64)
                    message.message_id = ((self._acker_of(root), ID.pack(root, self._bits(64) | 1)),)
                    began.append((root, message_id))
        return began

    def _acker_of(self, root: int) -> int:
        return self._ackers[root % len(self._ackers)]

    def derive(self, runs: Sequence[Emitted]) -> None:
        """See TupleTracker. Each tuple gets a number of its own, in place of those of its anchors."""
        for run in runs:
            for message in run.tuples:
                if message.message_id:
                    number = (self._bits(64) | 1).to_bytes(8, "little")
                    roots = dict.fromkeys((acker, pair[:_KEY]) for acker, pair in message.message_id)
                    message.message_id = tuple((acker, root + number) for acker, root in roots)

    def tell(
        self,
        began: Sequence[Any],
        columns: Sequence[AddressedTuples],
        lost: Sequence[Tuple],
        acked: Sequence[MessageId],
        failed: Sequence[MessageId],
    ) -> list[AddressedTuples]:
        """See TupleTracker. A failure goes before what is done with, as a tree must not end without it."""
        edges: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for root in began:
            edges[self._acker_of(root)][root] = 0  # also where nobody subscribes
        for column in columns:
            ids = [message.message_id for message in column.tuples if message.message_id]
            _add(edges, ids, factor_of(column.task))
        _add(edges, acked, self._own_factor)
        _add(edges, failed, self._own_factor)
        fails: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for message_id in (*failed, *(message.message_id for message in lost)):
            for acker, pair in message_id:
                fails[acker][ID.unpack(pair)[0]] = None
        told = []
        for acker in dict.fromkeys((*fails, *edges)):
            tuples = []
            if acker in fails:
                tuples.append(Tuple([to_block(fails[acker])], self._fail_source))
            if acker in edges:
                sums = edges[acker]
                tuples.append(Tuple([to_block(sums), to_block(sums.values())], self._edges_source))
            told.append(AddressedTuples(acker, tuples))
        return told


def _add(edges: defaultdict[int, dict[int, int]], ids: Iterable[MessageId], factor: int) -> None:
    """Take in, for each root of each id, the edge that a tuple's number and a task's factor make."""
    unpack = ID.unpack
    for message_id in ids:
        for acker, pair in message_id:
            root, number = unpack(pair)
            sums = edges[acker]
            sums[root] = sums.get(root, 0) ^ (number * factor & EDGE_MASK)


def keys_of(fate: Tuple) -> Sequence[Any]:
    """Return the keys of the tuples whose fate is told; MalformedTupleError for what tells of none."""
    return from_block(fate.values[0]) if fate.source_component == ACKER_COMPONENT else fate.values
