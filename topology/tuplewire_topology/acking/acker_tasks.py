"""Following tuples over several processes: the component `__acker`, and its trees as pure state.

An edge is a tuple on its way to one task. A tree is the XOR of its edges' numbers, each taken in once when it
is sent and once when it is done with. So it is 0 once nothing is left, in whatever order that is heard.
A tuple carries one random number; the edge to a task is that times a factor of the task, so that a tuple for
several tasks is serialized once. Source: Storm's `Acker`, and `addAcker` of its `StormCommon`.
Design: docs/design/acking.md.
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
"""An entry lives for more than so many rotations, and at most one more."""


class RotatingMap(Generic[_Key, _Value]):
    """Entries in generations; each rotation begins one and gives up the oldest. Not thread-safe."""

    def __init__(self) -> None:
        self._generations: list[dict[_Key, _Value]] = [{} for _ in range(PARTS + 1)]

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def put(self, key: _Key, value: _Value) -> None:
        """Add an entry that is not there yet."""
        self._generations[0][key] = value

    def get(self, key: _Key) -> _Value | None:
        """Return a value; None where there is none."""
        for generation in self._generations:
            if key in generation:
                return generation[key]
        return None

    def pop(self, key: _Key) -> _Value | None:
        """Take an entry out, and return its value; None where there is none."""
        for generation in self._generations:
            if key in generation:
                return generation.pop(key)
        return None

    def rotate(self) -> dict[_Key, _Value]:
        """Begin a generation, and return the entries that are given up."""
        self._generations.insert(0, {})
        return self._generations.pop()


EDGE_MASK = (1 << 64) - 1
ID = struct.Struct("<QQ")
"""How a followed tuple's message id holds its root and its number, for each root, beside the acker's task."""


def with_ackers(topology: Topology, executors: int) -> Topology:
    """Return a topology with so many acker tasks, and the streams to and from them; itself for 0.

    Every process of a topology must do the same. The ids of its own tasks stay as they are.
    Raises TopologyError for one that has ackers already.
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
    """Return a component with the streams to the acker and, for a spout, those from it."""
    is_spout = component.kind is ComponentKind.SPOUT
    edges = Stream("roots", "edges", name=INIT_STREAM if is_spout else ACK_STREAM, direct=True)
    fates = [Input(ACKER_COMPONENT, stream.name, GroupingType.DIRECT) for stream in _FATES if is_spout]
    streams = (*component.streams, edges, _FATES[1])
    return replace(component, streams=streams, inputs=(*component.inputs, *fates))


# --- numbers -----------------------------------------------------------------------------------------


@cache
def factor_of(task: int) -> int:
    """Return what a tuple's number is multiplied by for the edge to a task: odd, and unlike any other's.

    Source: the finalizer of SplitMix64.
    """
    mixed = (task + 1) * 0x9E3779B97F4A7C15 & EDGE_MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & EDGE_MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & EDGE_MASK
    return mixed ^ mixed >> 31 | 1


def to_block(numbers: Iterable[int]) -> bytes:
    """Return numbers of 64 bits as a column of bytes."""
    column = list(numbers)
    return struct.pack(f"<{len(column)}Q", *column)


def from_block(block: Any) -> Sequence[int]:
    """Return the numbers of a column; MalformedTupleError for what is none."""
    if not isinstance(block, bytes) or len(block) % 8:
        raise MalformedTupleError("a tuple to or from an acker holds no column of 64-bit numbers")
    return struct.unpack(f"<{len(block) // 8}Q", block)


def check_id(message_id: MessageId, ackers: range) -> None:
    """Raise MalformedTupleError for a message id that no executor of this topology has given."""
    for acker, pair in message_id:
        if acker not in ackers or not isinstance(pair, bytes) or len(pair) != ID.size:
            raise MalformedTupleError(f"{message_id!r} is no message id of a topology with acker tasks")


# --- trees -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _TaskTree:
    """spout: the task that began it; None before that is heard. told: whether that knows of a failure."""

    edges: int = 0
    spout: int | None = None
    failed: bool = False
    told: bool = False


Fate = tuple[int, int, bool]
"""The spout's task, the root, and whether it is processed."""


class Trees:
    """The trees that one acker task follows; pure. Source: Storm's `Acker`.

    A failure is told at once, as Storm's: every emit begins a tree of its own, so that late acks of a failed
    one count for no other. A tree of which nothing becomes is given up by rotate().
    """

    def __init__(self) -> None:
        self._trees: RotatingMap[int, _TaskTree] = RotatingMap()

    def __len__(self) -> int:
        """Return the number of trees that are not over."""
        return len(self._trees)

    def take(self, message: Tuple) -> list[Fate]:
        """Take in what an executor tells, and return what has become of trees by it.

        Raises MalformedTupleError for a tuple that is none of an executor's; nothing of it is taken in.
        """
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
            return []
        tell = not tree.told and (tree.failed or not tree.edges)
        tree.told |= tell
        if not tree.edges and not failed:  # what has failed is done with by the tuple after this one
            self._trees.pop(root)
        return [(tree.spout, root, not tree.failed)] if tell else []

    def rotate(self) -> None:
        """Let half of the time that a tree has pass, and give up what is older."""
        self._trees.rotate()
