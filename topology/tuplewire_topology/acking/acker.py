"""Trackers of tuple trees: by counts in one process (Acker), or by acker tasks (AckerTracker and Trees).

Used by executors, which report each copy before it is in flight, so the count of a tree is never 0 too early.
Owns the trees of a process or of an acker task. Not thread-safe. Exception: Acker. Source: Storm's `Acker`.
Design: docs/design/acking.md.

Acker reports a failure only once no copy is in flight, because the spout may emit the tuple again with the
same message id. It has no time limit, because a process does not lose tuples.

For acker tasks, an edge is a tuple in flight to one task. Its number is XORed into the tree when it is sent,
and again when it is processed. The result is 0 once no edge is pending, in any order of reports. The number
is the tuple's random number times the task's factor, so a tuple for several tasks is serialized once.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

from tuplewire.errors import MalformedTupleError
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

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

PARTS = 2
"""The number of rotations that an entry survives. The next rotation removes it."""


class RotatingMap(Generic[_Key, _Value]):
    """A map with generations of entries. A rotation removes the oldest one. Not thread-safe."""

    def __init__(self) -> None:
        self._generations: list[dict[_Key, _Value]] = [{} for _ in range(PARTS + 1)]

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def put(self, key: _Key, value: _Value) -> None:
        """Add an entry. The key must be new."""
        self._generations[0][key] = value

    def get(self, key: _Key) -> _Value | None:
        """Return a value, or None for an unknown key."""
        for generation in self._generations:
            if key in generation:
                return generation[key]
        return None

    def pop(self, key: _Key) -> _Value | None:
        """Remove an entry and return its value, or None for an unknown key."""
        for generation in self._generations:
            if key in generation:
                return generation.pop(key)
        return None

    def rotate(self) -> dict[_Key, _Value]:
        """Start a generation, and return the removed entries."""
        self._generations.insert(0, {})
        return self._generations.pop()


EDGE_MASK = (1 << 64) - 1
ID = struct.Struct("<QQ")
"""The bytes of a tracked tuple's message id, for each root: the root and the tuple's number."""


# --- numbers -----------------------------------------------------------------------------------------


@cache
def factor_of(task: int) -> int:
    """Return the factor of edges to a task: odd, in practice unique. Source: SplitMix64's finalizer."""
    mixed = (task + 1) * 0x9E3779B97F4A7C15 & EDGE_MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & EDGE_MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & EDGE_MASK
    return mixed ^ mixed >> 31 | 1


def to_block(numbers: Iterable[int]) -> bytes:
    """Return numbers of 64 bits as a column of bytes."""
    column = list(numbers)
    return struct.pack(f"<{len(column)}Q", *column)


def from_block(block: Any) -> Sequence[int]:
    """Return the numbers of a column. Raises MalformedTupleError for an invalid one."""
    if not isinstance(block, bytes) or len(block) % 8:
        raise MalformedTupleError("a tuple to or from an acker holds no column of 64-bit numbers")
    return struct.unpack(f"<{len(block) // 8}Q", block)


def check_id(message_id: MessageId, ackers: range) -> None:
    """Raise MalformedTupleError if no executor of this topology can have set a message id."""
    for acker, pair in message_id:
        if acker not in ackers or not isinstance(pair, bytes) or len(pair) != ID.size:
            raise MalformedTupleError(f"{message_id!r} is not a message id of a topology with acker tasks")


# --- trees -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _TaskTree:
    """`spout` is None until its report arrives. `told` is True once the outcome was reported to it."""

    edges: int = 0
    spout: int | None = None
    failed: bool = False
    told: bool = False


Fate = tuple[int, int, bool]
"""The spout's task, the root, and True if the tree was processed."""


class Trees(RotatingMap[int, _TaskTree]):
    """The trees of one acker task, by root, as pure state. Not thread-safe. Source: Storm's `Acker`.

    A failure is reported immediately, as in Storm: each emit starts a new tree, so late acks of a failed one
    do not count for another. Call rotate() each half of the message timeout, to drop old trees.
    """

    def take(self, message: Tuple) -> list[Fate]:
        """Apply a report, and return the outcomes. Raises MalformedTupleError, without effect, if invalid."""
        roots = from_block(message.values[0])
        failed = message.source_stream == FAIL_STREAM
        edges = (0,) * len(roots) if failed else from_block(message.values[1])
        if len(roots) != len(edges):
            raise MalformedTupleError(f"{len(edges)} edges for {len(roots)} roots")
        spout = message.source_task if message.source_stream == INIT_STREAM else None
        return [
            fate
            for root, edge in zip(roots, edges, strict=True)
            for fate in self._update(root, edge, spout, failed=failed)
        ]

    def _update(self, root: int, edge: int, spout: int | None, *, failed: bool) -> list[Fate]:
        tree = self.get(root)
        if tree is None:
            tree = _TaskTree()
            self.put(root, tree)
        tree.edges ^= edge
        tree.failed |= failed
        if tree.spout is None:
            tree.spout = spout
        if tree.spout is None:
            return []  # a bolt's report arrived before the spout's
        tell = not tree.told and (tree.failed or not tree.edges)
        tree.told |= tell
        if not tree.edges and not failed:  # after a failure, its edges follow in the next tuple
            self.pop(root)
        return [(tree.spout, root, not tree.failed)] if tell else []


_message_id = attrgetter("message_id")
_flat = chain.from_iterable

Root = tuple[int, Any]
"""A spout's task and a message id of this task."""


@dataclass(slots=True)
class _Tree:
    copies: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TupleUpdates:
    """The changes of one task since its previous report.

    `began` are the keys returned by begin(), and `columns` the tuples for each task. `lost` tuples are not
    sent, because of an error. `acked` and `failed` are the ids of processed copies.
    """

    task: int
    began: Sequence[Any]
    columns: Sequence[AddressedTuples]
    lost: Sequence[Tuple]
    acked: Sequence[MessageId]
    failed: Sequence[MessageId]


class Acker:
    """Counts the pending copies of each tree. Thread-safe. Keys are the spouts' own message ids.

    `tell` is called with the outcomes of a spout task's tuples, in the thread that ends their trees.
    """

    def __init__(self, tell: Callable[[AddressedTuples], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._trees: dict[Root, _Tree] = {}

    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """Return (key, message id) of each tuple with an id. Outcomes are reported under these keys."""
        return [
            (message_id, message_id)
            for run in runs
            for message in run.tuples
            for _, message_id in message.message_id
        ]

    def derive(self, runs: Sequence[Emitted]) -> None:
        """Prepare tuples that a bolt emitted, before they are sent. Does nothing here."""

    def report(self, updates: TupleUpdates) -> list[AddressedTuples]:
        """Report changes before the columns are sent; return tuples to send: none. Ignores finished trees."""
        tuples = chain(updates.lost, *(column.tuples for column in updates.columns))
        copies = Counter(_flat(map(_message_id, tuples)))
        failed = [*updates.failed, *(message.message_id for message in updates.lost)]
        if not (updates.began or copies or updates.acked or failed):
            return []
        finished: dict[int, list[Tuple]] = {}
        # Counted in C, without the lock. Design: docs/design/acking.md (tuples in sequence).
        acked_copies, failed_copies = Counter(_flat(updates.acked)), Counter(_flat(failed))
        with self._lock:
            trees = self._trees
            touched: dict[Root, None] = {}
            for key in updates.began:
                root = updates.task, key
                trees.setdefault(root, _Tree())  # a message id that is still pending shares its tree
                touched[root] = None  # a tree without subscribers ends below
            for root, count in copies.items():
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
                    finished.setdefault(root[0], []).append(fate(root[1], processed=not tree.failed))
        self._tell_all(finished)
        return []

    def lose(self, left: Mapping[Root, int], gone: Collection[int] = ()) -> None:
        """Fail the trees that lost copies with a worker. No tuple may be in flight during the call.

        `left` has the number of copies by root that bolts still hold. A tree with more copies fails; its
        spout is notified after the remaining ones are processed. Trees of the spout tasks `gone` are removed.
        """
        finished: dict[int, list[Tuple]] = {}
        with self._lock:
            for root, tree in list(self._trees.items()):
                remaining = left.get(root, 0)
                if root[0] in gone:  # no spout remembers the tuple
                    del self._trees[root]
                elif tree.copies > remaining:
                    tree.copies, tree.failed = remaining, True
                    if not remaining:
                        del self._trees[root]
                        finished.setdefault(root[0], []).append(fate(root[1], processed=False))
        self._tell_all(finished)

    def _tell_all(self, finished: Mapping[int, Sequence[Tuple]]) -> None:
        for task, fates in finished.items():
            self._tell(AddressedTuples(task, fates))


_KEY = 8
"""The number of bytes of a message id that contain its root."""


class AckerTracker:
    """Reports the changes of one task to acker tasks, with its other tuples. Each emit has a random key.

    `seed` is for tests: random numbers must differ between tasks. Not thread-safe.
    Source: the messages of Storm's `SpoutOutputCollectorImpl` and `BoltOutputCollectorImpl` to the acker.
    """

    def __init__(self, topology: Topology, task: int, seed: int | None = None) -> None:
        kind = topology.component_of(task).kind
        self._ackers = topology.tasks_of(ACKER_COMPONENT)
        self._edges_source = topology.source(task, INIT_STREAM if kind is ComponentKind.SPOUT else ACK_STREAM)
        self._fail_source = topology.source(task, FAIL_STREAM)
        self._own_factor = factor_of(task)
        self._bits = random.Random(seed).getrandbits  # noqa: S311 - ids, not secrets

    def begin(self, runs: Sequence[Emitted]) -> list[tuple[Any, Any]]:
        """Replace the message ids by random roots, and return (root, message id) of each. See Acker."""
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
        """Replace the anchors' numbers in each message id by a random number of the tuple. See Acker."""
        for run in runs:
            for message in run.tuples:
                if message.message_id:
                    number = (self._bits(64) | 1).to_bytes(8, "little")  # odd, so no edge is 0
                    roots = dict.fromkeys((acker, pair[:_KEY]) for acker, pair in message.message_id)
                    message.message_id = tuple((acker, root + number) for acker, root in roots)

    def report(self, updates: TupleUpdates) -> list[AddressedTuples]:
        """Return reports for acker tasks. Failures precede edges, which may end the tree. See Acker."""
        edges: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for root in updates.began:
            edges[self._acker_of(root)][root] = 0  # so that a tree without subscribers ends
        for column in updates.columns:
            ids = [message.message_id for message in column.tuples if message.message_id]
            _add(edges, ids, factor_of(column.task))
        _add(edges, updates.acked, self._own_factor)
        _add(edges, updates.failed, self._own_factor)
        fails: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for message_id in (*updates.failed, *(message.message_id for message in updates.lost)):
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
    """XOR the edges of tuples into the sums of their roots: a tuple's number times the task's factor."""
    unpack = ID.unpack
    for message_id in ids:
        for acker, pair in message_id:
            root, number = unpack(pair)
            sums = edges[acker]
            sums[root] = sums.get(root, 0) ^ (number * factor & EDGE_MASK)


def keys_of(fate: Tuple) -> Sequence[Any]:
    """Return the keys in an ack or fail. Raises MalformedTupleError for invalid bytes."""
    return from_block(fate.values[0]) if fate.source_component == ACKER_COMPONENT else fate.values
