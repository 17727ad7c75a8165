"""Tracking of tuples across processes: the component `__acker`, and its trees as pure state.

Used by AckerExecutor and the clusters. Owns the trees of one acker task. Not thread-safe. An edge is a tuple
in flight to one task. Its number is XORed into the tree when it is sent, and again when it is processed. The
result is 0 once no edge is pending, in any order of reports. The number is the tuple's random number times
the task's factor, so a tuple for several tasks is serialized once. Source: Storm's `Acker`, and `addAcker`
of `StormCommon`. Design: docs/design/acking.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

from tuplewire.errors import MalformedTupleError, TopologyError
from tuplewire_topology.authoring.description import (
    ACKER_COMPONENT,
    Component,
    ComponentKind,
    GroupingType,
    Input,
    Topology,
)
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, INIT_STREAM, MessageId, Stream, Tuple

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


def with_ackers(topology: Topology, executors: int) -> Topology:
    """Return a topology with acker tasks and their streams, or the given one if `executors` is 0.

    All processes must use the same number. The ids of other tasks do not change. Raises TopologyError if the
    topology already has acker tasks.
    """
    if ACKER_COMPONENT in topology.components:
        raise TopologyError("the topology has acker tasks already; give it as its program builds it")
    if not executors:
        return topology
    components = [_reporting(component) for component in topology.components.values()]
    inputs = [
        Input(component.id, stream.name, GroupingType.DIRECT)
        for component in components
        for stream in component.streams
        if stream.name in {INIT_STREAM, ACK_STREAM, FAIL_STREAM}
    ]
    acker = Component(ACKER_COMPONENT, ComponentKind.BOLT, _FATES, tuple(inputs), executors, executors)
    return Topology([*components, acker], topology.worker_hooks)


_FATES = tuple(Stream("roots", name=name, direct=True) for name in (ACK_STREAM, FAIL_STREAM))


def _reporting(component: Component) -> Component:
    """Return a component with streams to the acker and, for a spout, inputs from it."""
    is_spout = component.kind is ComponentKind.SPOUT
    edges = Stream("roots", "edges", name=INIT_STREAM if is_spout else ACK_STREAM, direct=True)
    fates = [Input(ACKER_COMPONENT, stream.name, GroupingType.DIRECT) for stream in _FATES if is_spout]
    streams = (*component.streams, edges, _FATES[1])
    return replace(component, streams=streams, inputs=(*component.inputs, *fates))


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
            raise MalformedTupleError(f"{message_id!r} is no message id of a topology with acker tasks")


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


class Trees:
    """The trees of one acker task, as pure state. Not thread-safe. Source: Storm's `Acker`.

    A failure is reported immediately, as in Storm: each emit starts a new tree, so late acks of a failed one
    do not count for another. rotate() drops old trees.
    """

    def __init__(self) -> None:
        self._trees: RotatingMap[int, _TaskTree] = RotatingMap()

    def __len__(self) -> int:
        return len(self._trees)

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
        tree = self._trees.get(root)
        if tree is None:
            tree = _TaskTree()
            self._trees.put(root, tree)
        tree.edges ^= edge
        tree.failed |= failed
        if tree.spout is None:
            tree.spout = spout
        if tree.spout is None:
            return []  # a bolt's report arrived before the spout's
        tell = not tree.told and (tree.failed or not tree.edges)
        tree.told |= tell
        if not tree.edges and not failed:  # after a failure, its edges follow in the next tuple
            self._trees.pop(root)
        return [(tree.spout, root, not tree.failed)] if tell else []

    def rotate(self) -> None:
        """Drop the oldest trees. Called each half of the message timeout."""
        self._trees.rotate()
