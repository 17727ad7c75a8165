"""Test support for topologies: spouts that emit fixed tuples, and records of emitted and received tuples.

Used by clusters and tests. Owns the tuples. Not thread-safe, except CapturedTuples and FeederSpout.feed().
Source: Storm's `Testing`, `FeederSpout`, `FixedTupleSpout`, `MockedSources`, `CapturedTopology`.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

from tuplewire.errors import TopologyError
from tuplewire_topology.authoring.collector import EmittedTuples, SpoutOutputCollector
from tuplewire_topology.authoring.component import Spout, TopologyContext
from tuplewire_topology.authoring.description import ComponentKind, Topology
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, Stream, Tuple


class FeederSpout(Spout):
    """Emits the tuples of feed(), which all tasks share. `acked_ids` and `failed_ids` are message IDs."""

    def __init__(self, outputs: Sequence[str] | Sequence[Stream]) -> None:
        self.outputs = outputs
        self.acked_ids: list[Any] = []
        self.failed_ids: list[Any] = []
        self._feed: deque[tuple[str, Sequence[Any], Any]] = deque()
        self._collectors: list[SpoutOutputCollector] = []

    def __deepcopy__(self, memo: object) -> Self:
        return copy(self)  # tasks are deep copies, and must share the feed

    def feed(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None) -> None:
        """Add a tuple to emit. Thread-safe."""
        self._feed.append((stream, values, message_id))
        for collector in self._collectors:  # their executors may wait after an empty next_tuple()
            collector.wake()

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self._collectors.append(collector)

    def next_tuple(self) -> None:
        try:
            stream, values, message_id = self._feed.popleft()
        except IndexError:
            return
        self.collector.emit(values, stream=stream, message_id=message_id)

    @property
    def exhausted(self) -> bool:
        """True if all fed tuples have been emitted; more can follow."""
        return not self._feed

    def ack(self, message_id: Any) -> None:
        self.acked_ids.append(message_id)

    def fail(self, message_id: Any) -> None:
        self.failed_ids.append(message_id)


class FixedTupleSpout(Spout):
    """Emits given tuples on the stream "default" in its first task, and again if they fail."""

    def __init__(self, tuples: Sequence[Sequence[Any]]) -> None:
        self._tuples = tuples
        self._remaining = deque(range(len(tuples)))

    def next_tuple(self) -> None:
        number = self._remaining.popleft()
        self.collector.emit(self._tuples[number], message_id=number)

    @property
    def exhausted(self) -> bool:
        return self.context.task_index > 0 or not self._remaining

    def fail(self, message_id: Any) -> None:
        self._remaining.append(message_id)


def with_sources(topology: Topology, sources: Mapping[str, Sequence[Sequence[Any]]]) -> Topology:
    """Return a topology with given tuples in place of the named spouts. Source: Storm's `MockedSources`."""
    components = dict(topology.components)
    for name, tuples in sources.items():
        component = topology.component(name)
        if component.kind is not ComponentKind.SPOUT:
            raise TopologyError(f"{name!r} is a {component.kind}; given tuples can only replace a spout")
        components[name] = replace(component, prototype=FixedTupleSpout(tuples))
    return Topology(components.values(), topology.worker_hooks)


class CapturedTuples:
    """Tuples that components emitted and received. Thread-safe. Grows as long as the topology runs.

    `components` limits the record of emitted tuples to these; None: all.
    """

    def __init__(self, components: Collection[str] | None = None) -> None:
        self._components = components
        self._lock = threading.Lock()
        self._emitted: defaultdict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
        self._received: defaultdict[str, list[Tuple]] = defaultdict(list)

    def record_emitted(self, emitted: Sequence[EmittedTuples]) -> None:
        """Record tuples that a task has emitted."""
        with self._lock:
            for batch in emitted:
                if self._components is None or batch.source.component in self._components:
                    self._emitted[batch.source.stream_id] += [message.values for message in batch.tuples]

    def record_received(self, component: str, tuples: Sequence[Tuple]) -> None:
        """Record tuples that a bolt has received."""
        with self._lock:
            self._received[component] += tuples

    def record_values(self, component: str, stream: str, values: Iterable[Sequence[Any]]) -> None:
        """Record the values of tuples that a component emitted in another process."""
        with self._lock:
            self._emitted[component, stream] += map(tuple, values)

    def streams(self) -> list[tuple[str, str]]:
        """Return the components and streams with recorded tuples."""
        with self._lock:
            return list(self._emitted)

    def tuples(self, component: str, stream: str = DEFAULT_STREAM) -> list[tuple[Any, ...]]:
        """Return the values emitted on a stream, in order per task. Source: Storm's `Testing.readTuples`."""
        with self._lock:
            return list(self._emitted[component, stream])

    def received_tuples(self, component: str) -> list[Tuple]:
        """Return the tuples that a bolt has received, in order for each of its tasks, without ticks."""
        with self._lock:
            return [message for message in self._received[component] if not message.is_tick]

    def clear(self) -> None:
        """Delete all records."""
        with self._lock:
            self._emitted.clear()
            self._received.clear()
