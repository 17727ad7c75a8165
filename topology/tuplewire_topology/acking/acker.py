"""Telling what has become of tuples: to acker tasks, or to the acker of the process, which is here.

An acker finds out when a spout's tuple, and all that descends from it, is processed. This one serves
executors of one process, which tell it of every copy before that is on its way; so it can count, and needs no
ids for the edges of a tree. A spout hears only once nothing of a tree is left on the way: when it sends a
failed tuple again, under the same message id, nothing of the first attempt comes between. There is no time
limit, as nothing gets lost within a process. Source: the purpose of Storm's `Acker`.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from tuplewire_topology.acking.acker_tasks import EDGE_MASK, ID, factor_of, from_block, to_block
from tuplewire_topology.authoring.collector import Emitted
from tuplewire_topology.authoring.description import ACKER_COMPONENT, ComponentKind, Topology
from tuplewire_topology.authoring.tuples import (
    ACK_STREAM,
    FAIL_STREAM,
    INIT_STREAM,
    AddressedTuples,
    MessageId,
    Tuple,
    fate,
)

_message_id = attrgetter("message_id")
_flat = chain.from_iterable

Root = tuple[int, Any]
"""A spout's task and the message id that it gave."""


@dataclass(slots=True)
class _Tree:
    copies: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """What a task has done since the last time.

    began: the keys that begin() returned. columns: what goes to each task. lost: tuples that go to none, by
    an error. acked, failed: the ids of copies that are done with.
    """

    task: int
    began: Sequence[Any]
    columns: Sequence[AddressedTuples]
    lost: Sequence[Tuple]
    acked: Sequence[MessageId]
    failed: Sequence[MessageId]


class Acker:
    """Counts the copies on the way of each tree; thread-safe. Keys are the spouts' own message ids.

    tell: gets, for a spout's task, what has become of its tuples; called in the thread that finds out.
    """

    def __init__(self, tell: Callable[[AddressedTuples], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._trees: dict[Root, _Tree] = {}

    def __len__(self) -> int:
        """Return the number of trees that are not processed yet."""
        return len(self._trees)

    def update(
        self,
        began: Iterable[Root] = (),
        copies: Mapping[Root, int] | None = None,
        acked: Iterable[MessageId] = (),
        failed: Iterable[MessageId] = (),
    ) -> None:
        """Take in what an executor has done, before any of the copies is on its way.

        began: what a spout has emitted. copies: how many tuples now carry each root. acked, failed: the ids
        of copies that are done with. A root that is over is left alone.
        """
        finished: dict[int, list[tuple[Any, bool]]] = {}
        acked_copies, failed_copies = Counter(_flat(acked)), Counter(_flat(failed))
        with self._lock:
            trees = self._trees
            touched: dict[Root, None] = {}
            for root in began:
                trees.setdefault(root, _Tree())
                touched[root] = None
            for root, count in (copies or {}).items():
                if root in trees:
                    trees[root].copies += count
            for done, fails in ((acked_copies, False), (failed_copies, True)):
                for root, count in done.items():
                    if root in trees:
                        tree = trees[root]
                        tree.copies -= count
                        tree.failed |= fails
                        touched[root] = None
            for root in touched:
                if root in trees and trees[root].copies <= 0:
                    tree = trees.pop(root)
                    finished.setdefault(root[0], []).append((root[1], not tree.failed))
        self._tell_all(finished)

    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """Take in what a spout has emitted, before it is sent.

        Returns, for each tuple with a message id, the key under which its fate is told, and that id.
        """
        return [
            (message_id, message_id)
            for run in runs
            for message in run.tuples
            for _, message_id in message.message_id
        ]

    def derive(self, runs: Sequence[Emitted]) -> None:
        """Take in what a bolt has emitted, before it is sent; nothing is to be done."""

    def tell(self, news: News) -> list[AddressedTuples]:
        """Take in the rest, before any of the columns is on its way; return what is to be sent as well."""
        tuples = chain(news.lost, *(column.tuples for column in news.columns))
        copies = Counter(_flat(map(_message_id, tuples)))
        failed = [*news.failed, *(message.message_id for message in news.lost)]
        if news.began or copies or news.acked or failed:
            self.update([(news.task, key) for key in news.began], copies, news.acked, failed)
        return []

    def lose(self, left: Mapping[Root, int], gone: Collection[int] = ()) -> None:
        """Fail what has lost copies, as a worker has died; nothing is on the way meanwhile.

        left: how many copies of each root bolts still hold; a tree that has had more has failed, and its
        spout hears that once these are done with. gone: tasks of spouts that have nothing on the way any
        more, as far as anybody remembers.
        """
        finished: dict[int, list[tuple[Any, bool]]] = {}
        with self._lock:
            for root, tree in list(self._trees.items()):
                remaining = left.get(root, 0)
                if root[0] in gone:
                    del self._trees[root]
                elif tree.copies > remaining:
                    tree.copies, tree.failed = remaining, True
                    if not remaining:
                        del self._trees[root]
                        finished.setdefault(root[0], []).append((root[1], False))
        self._tell_all(finished)

    def _tell_all(self, finished: Mapping[int, Sequence[tuple[Any, bool]]]) -> None:
        for task, fates in finished.items():
            self._tell(
                AddressedTuples(task, [fate(message_id, processed=done) for message_id, done in fates])
            )


_KEY = 8
"""The bytes of a message id that hold its root."""


class AckerTracker:
    """Tells acker tasks what a task does, by tuples that go with the others. Keys are random, one an emit.

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
        """See Acker."""
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
        """See Acker. Each tuple gets a number of its own, in place of those of its anchors."""
        for run in runs:
            for message in run.tuples:
                if message.message_id:
                    number = (self._bits(64) | 1).to_bytes(8, "little")
                    roots = dict.fromkeys((acker, pair[:_KEY]) for acker, pair in message.message_id)
                    message.message_id = tuple((acker, root + number) for acker, root in roots)

    def tell(self, news: News) -> list[AddressedTuples]:
        """See Acker. A failure goes before what is done with, as a tree must not end without it."""
        edges: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for root in news.began:
            edges[self._acker_of(root)][root] = 0  # also where nobody subscribes
        for column in news.columns:
            ids = [message.message_id for message in column.tuples if message.message_id]
            _add(edges, ids, factor_of(column.task))
        _add(edges, news.acked, self._own_factor)
        _add(edges, news.failed, self._own_factor)
        fails: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for message_id in (*news.failed, *(message.message_id for message in news.lost)):
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


TupleTracker = Acker | AckerTracker


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
