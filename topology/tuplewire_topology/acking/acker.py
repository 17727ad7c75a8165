"""Trackers of tuple trees: by counts in one process (LocalTracker), or by acker tasks.

Used by executors, which report each copy before it is in flight, so the count of a tree is never 0 too early.
Owns the trees of a process or of an acker task. Not thread-safe, except LocalTracker. Source: Storm's
`Acker`. Design: docs/design/acking.md.

LocalTracker reports a failure only once no copy is in flight, because the spout may emit the tuple again
with the same message id. It has no time limit, because a process does not lose tuples.

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
from tuplewire_topology.authoring.collector import EmittedTuples
from tuplewire_topology.authoring.description import ACKER_COMPONENT, ComponentKind, Topology
from tuplewire_topology.authoring.tuples import (
    ACK_STREAM,
    FAIL_STREAM,
    INIT_STREAM,
    AddressedTuples,
    Roots,
    Tuple,
    outcome_tuple,
)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

RETAINED_ROTATIONS = 2
"""The number of rotations that an entry survives. The next rotation removes it."""


class RotatingMap(Generic[_Key, _Value]):
    """A map with generations of entries. A rotation removes the oldest one. Not thread-safe."""

    def __init__(self) -> None:
        self._generations: list[dict[_Key, _Value]] = [{} for _ in range(RETAINED_ROTATIONS + 1)]

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
ID_STRUCT = struct.Struct("<QQ")
"""The bytes of a tracked tuple's message id, for each root: the root and the tuple's number."""


# --- numbers -----------------------------------------------------------------------------------------


@cache
def factor_of(task: int) -> int:
    """Return the factor of edges to a task: odd, in practice unique. Source: SplitMix64's finalizer."""
    mixed = (task + 1) * 0x9E3779B97F4A7C15 & EDGE_MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & EDGE_MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & EDGE_MASK
    return mixed ^ mixed >> 31 | 1


_MAX_ROOTS = 4096
"""The maximum number of roots in a tuple of a report, because a tuple must not be too large for a message."""


def pack_uint64(numbers: Iterable[int]) -> bytes:
    """Return numbers of 64 bits as a column of bytes."""
    column = list(numbers)
    return struct.pack(f"<{len(column)}Q", *column)


def unpack_uint64(block: Any) -> Sequence[int]:
    """Return the numbers of a column. Raises MalformedTupleError for an invalid one."""
    if not isinstance(block, bytes) or len(block) % 8:
        raise MalformedTupleError("a tuple to or from an acker holds no column of 64-bit numbers")
    return struct.unpack(f"<{len(block) // 8}Q", block)


def check_roots(roots: Roots, acker_tasks: range) -> None:
    """Raise MalformedTupleError if no acker task of this topology can have these roots."""
    for acker, id_bytes in roots:
        if acker not in acker_tasks or not isinstance(id_bytes, bytes) or len(id_bytes) != ID_STRUCT.size:
            raise MalformedTupleError(f"{roots!r} is not a message id of a topology with acker tasks")


# --- trees -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _XorTree:
    """`spout` is None until the spout reports the root. `is_reported`: the spout has got the outcome."""

    edge_xor: int = 0
    spout: int | None = None
    has_failed: bool = False
    is_reported: bool = False


TreeOutcome = tuple[int, int, bool]
"""The spout's task, the root, and True if the tree was processed."""


class AckerTrees(RotatingMap[int, _XorTree]):
    """The trees of one acker task, by root, as pure state. Not thread-safe. Source: Storm's `Acker`.

    A failure is reported immediately, as in Storm: each emit starts a new tree, so late acks of a failed one
    do not count for another. Call rotate() each half of the message timeout, to drop old trees.
    """

    def apply_report(self, message: Tuple) -> list[TreeOutcome]:
        """Apply a report, and return the outcomes. Raises MalformedTupleError, without effect, if invalid."""
        roots = unpack_uint64(message.values[0])
        failed = message.source_stream == FAIL_STREAM
        edges = (0,) * len(roots) if failed else unpack_uint64(message.values[1])
        if len(roots) != len(edges):
            raise MalformedTupleError(f"{len(edges)} edges for {len(roots)} roots")
        spout = message.source_task if message.source_stream == INIT_STREAM else None
        pairs = zip(roots, edges, strict=True)
        return list(_flatten(self._update(root, edge, spout, failed=failed) for root, edge in pairs))

    def _update(self, root: int, edge: int, spout: int | None, *, failed: bool) -> list[TreeOutcome]:
        if (tree := self.get(root)) is None:
            tree = _XorTree()
            self.put(root, tree)
        tree.edge_xor ^= edge
        tree.has_failed |= failed
        if tree.spout is None:
            tree.spout = spout
        if tree.spout is None:
            return []  # a bolt's report arrived before the spout's
        report_now = not tree.is_reported and (tree.has_failed or not tree.edge_xor)
        tree.is_reported |= report_now
        if not tree.edge_xor and not failed:  # after a failure, its edges follow in the next tuple
            self.pop(root)
        return [(tree.spout, root, not tree.has_failed)] if report_now else []


_roots = attrgetter("roots")
_flatten = chain.from_iterable

TreeKey = tuple[int, Any]
"""A spout's task and a message id of this task."""


@dataclass(slots=True)
class _CountedTree:
    copies: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TupleUpdates:
    """The changes of one task since its previous report.

    `started_keys` comes from start_tracking(), and `columns` the tuples for each task. `unsent`
    tuples are not sent, because of an error. `acked_roots` and `failed_roots`: of acked and failed copies.
    """

    task: int
    started_keys: Sequence[Any]
    columns: Sequence[AddressedTuples]
    unsent: Sequence[Tuple]
    acked_roots: Sequence[Roots]
    failed_roots: Sequence[Roots]


class LocalTracker:
    """Counts the pending copies of each tree. Thread-safe. Keys are the spouts' own message ids.

    `on_outcomes` is called with the outcomes of a spout task's tuples, in the thread that ends their trees.
    """

    def __init__(self, on_outcomes: Callable[[AddressedTuples], None]) -> None:
        self._on_outcomes = on_outcomes
        self._lock = threading.Lock()
        self._trees: dict[TreeKey, _CountedTree] = {}

    def start_tracking(self, emitted: Sequence[EmittedTuples]) -> list[tuple[Any, Any]]:
        """Return (key, message id) of each tuple with an id. Outcomes are reported under these keys."""
        return [(key, key) for batch in emitted for message in batch.tuples for _, key in message.roots]

    def renumber(self, emitted: Sequence[EmittedTuples]) -> None:
        """Prepare tuples that a bolt emitted, before they are sent. Does nothing here."""

    def report(self, updates: TupleUpdates) -> list[AddressedTuples]:
        """Apply changes, before the columns are sent. Ignores finished trees. Always returns no tuples."""
        tuples = chain(updates.unsent, *(column.tuples for column in updates.columns))
        copies = Counter(_flatten(map(_roots, tuples)))
        failed = [*updates.failed_roots, *(message.roots for message in updates.unsent)]
        if not (updates.started_keys or copies or updates.acked_roots or failed):
            return []
        finished: dict[int, list[Tuple]] = {}
        # Counted in C, without the lock. Design: docs/design/acking.md (tuples in sequence).
        acked_copies, failed_copies = Counter(_flatten(updates.acked_roots)), Counter(_flatten(failed))
        with self._lock:
            trees = self._trees
            touched: dict[TreeKey, None] = {}
            for key in updates.started_keys:
                root = updates.task, key
                trees.setdefault(root, _CountedTree())  # a message id that is still pending shares its tree
                touched[root] = None  # a tree without subscribers ends below
            for root, count in copies.items():
                if root in trees:
                    trees[root].copies += count
            for counts, has_failed in ((acked_copies, False), (failed_copies, True)):
                for root, count in counts.items():
                    if root in trees:
                        tree = trees[root]
                        tree.copies -= count
                        tree.failed |= has_failed
                        touched[root] = None
            for root in touched:
                if root in trees and trees[root].copies <= 0:
                    tree = trees.pop(root)
                    finished.setdefault(root[0], []).append(outcome_tuple(root[1], processed=not tree.failed))
        self._send_outcomes(finished)
        return []

    def fail_lost(self, held_copies: Mapping[TreeKey, int], removed_spouts: Collection[int] = ()) -> None:
        """Fail the trees that lost copies with a worker. No tuple may be in flight during the call.

        `held_copies` is the number of copies by root that bolts hold. A tree with more copies fails; its
        spout is notified after the remaining ones are processed. Trees of `removed_spouts` are removed.
        """
        finished: dict[int, list[Tuple]] = {}
        with self._lock:
            for root, tree in list(self._trees.items()):
                remaining = held_copies.get(root, 0)
                if root[0] in removed_spouts:  # no spout remembers the tuple
                    del self._trees[root]
                elif tree.copies > remaining:
                    tree.copies, tree.failed = remaining, True
                    if not remaining:
                        del self._trees[root]
                        finished.setdefault(root[0], []).append(outcome_tuple(root[1], processed=False))
        self._send_outcomes(finished)

    def _send_outcomes(self, finished: Mapping[int, Sequence[Tuple]]) -> None:
        for task, outcomes in finished.items():
            self._on_outcomes(AddressedTuples(task, outcomes))


_ROOT_BYTES = 8
"""The number of bytes of a message id that contain its root."""


class AckerClient:
    """Reports the changes of one task to acker tasks, with its other tuples. Each emit has a random key.

    `seed` is for tests: random numbers must differ between tasks. Not thread-safe.
    Source: the messages of Storm's `SpoutOutputCollectorImpl` and `BoltOutputCollectorImpl` to the acker.
    """

    def __init__(self, topology: Topology, task: int, seed: int | None = None) -> None:
        kind = topology.component_of(task).kind
        self._ackers = topology.tasks_of(ACKER_COMPONENT)
        self._edges_source = topology.source(task, INIT_STREAM if kind is ComponentKind.SPOUT else ACK_STREAM)
        self._fail_source = topology.source(task, FAIL_STREAM)
        self._task_factor = factor_of(task)
        self._random_bits = random.Random(seed).getrandbits  # noqa: S311 - ids, not secrets

    def start_tracking(self, emitted: Sequence[EmittedTuples]) -> list[tuple[Any, Any]]:
        """Replace the message ids by random roots, and return (root, message id) of each."""
        started = []
        for batch in emitted:
            for message in batch.tuples:
                for _, message_id in message.roots:
                    root = self._random_bits(64)
                    message.roots = ((self._acker_of(root), ID_STRUCT.pack(root, self._random_bits(64) | 1)),)
                    started.append((root, message_id))
        return started

    def _acker_of(self, root: int) -> int:
        return self._ackers[root % len(self._ackers)]

    def renumber(self, emitted: Sequence[EmittedTuples]) -> None:
        """Replace the anchors' numbers in each message id by a random number of the tuple."""
        for batch in emitted:
            for message in batch.tuples:
                if message.roots:
                    number = (self._random_bits(64) | 1).to_bytes(8, "little")  # odd, so no edge is 0
                    acker_roots = dict.fromkeys((acker, pair[:_ROOT_BYTES]) for acker, pair in message.roots)
                    message.roots = tuple((acker, root + number) for acker, root in acker_roots)

    def report(self, updates: TupleUpdates) -> list[AddressedTuples]:
        """Return reports for acker tasks. Failures precede edges, which may end the tree."""
        edges: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for root in updates.started_keys:
            edges[self._acker_of(root)][root] = 0  # so that a tree without subscribers ends
        for column in updates.columns:
            _xor_edges(edges, map(_roots, column.tuples), factor_of(column.task))
        _xor_edges(edges, updates.acked_roots, self._task_factor)
        _xor_edges(edges, updates.failed_roots, self._task_factor)
        failures: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for roots in (*updates.failed_roots, *(message.roots for message in updates.unsent)):
            for acker, pair in roots:
                failures[acker][ID_STRUCT.unpack(pair)[0]] = None
        reports = []
        for acker in dict.fromkeys((*failures, *edges)):
            tuples = [Tuple([block], self._fail_source) for block in _blocks(failures[acker])]
            blocks = zip(_blocks(edges[acker]), _blocks(edges[acker].values()), strict=True)
            tuples += [Tuple([*each], self._edges_source) for each in blocks]
            reports.append(AddressedTuples(acker, tuples))
        return reports


def _blocks(numbers: Iterable[int]) -> list[bytes]:
    column = list(numbers)
    return [pack_uint64(column[at : at + _MAX_ROOTS]) for at in range(0, len(column), _MAX_ROOTS)]


TupleTracker = LocalTracker | AckerClient


def _xor_edges(edges: defaultdict[int, dict[int, int]], ids: Iterable[Roots], factor: int) -> None:
    """XOR each tuple's edge (its number times the task's factor) into the values of its roots."""
    unpack = ID_STRUCT.unpack
    for roots in ids:
        for acker, pair in roots:
            root, number = unpack(pair)
            xors = edges[acker]
            xors[root] = xors.get(root, 0) ^ (number * factor & EDGE_MASK)


def tracking_keys(outcome: Tuple) -> Sequence[Any]:
    """Return the keys in an ack or fail. Raises MalformedTupleError for invalid bytes."""
    return unpack_uint64(outcome.values[0]) if outcome.source_component == ACKER_COMPONENT else outcome.values
