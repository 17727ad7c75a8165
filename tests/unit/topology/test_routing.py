"""Routing of a task's tuples: every grouping, from the builder's method to the task ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from helpers.executors import Sink

from tuplewire.errors import TopologyError
from tuplewire_topology import CustomStreamGrouping, GroupingContext, Locality, Stream, TopologyBuilder, Tuple
from tuplewire_topology.authoring.builder import BoltDeclarer
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.running.task_router import TaskRouter

STREAMS = (Stream("number", "word"), Stream("word", name="to", direct=True))
WORDS = ["the", "quick", "fox", "the", "lazy", "the", "dog", "the"]


class ByFirstLetter(CustomStreamGrouping):
    """Sends a word by its first letter, and counts its calls; a copy must not share the count."""

    def __init__(self) -> None:
        self.asked = 0

    def prepare(self, context: GroupingContext, stream: Stream) -> None:
        self.tasks = context.tasks
        (self.position,) = stream.positions(["word"])

    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
        self.asked += 1
        return [self.tasks[ord(values[self.position][0]) % len(self.tasks)]]


def routed(
    subscribe: Callable[[BoltDeclarer], BoltDeclarer],
    locality: dict[int, Locality] | None = None,
    loads: dict[int, float] | None = None,
) -> dict[int, list[int]]:
    """Return the positions of WORDS for each of a bolt's tasks, 1 to 4."""
    builder = TopologyBuilder()
    subscribe(builder.set_bolt("sink", Sink(), 4))
    builder.set_spout("words", FeederSpout(STREAMS))
    topology = builder.create_topology()
    outgoing = TaskRouter(topology, 5, lambda: locality or {}, lambda: loads or {})
    for _ in range(50):
        outgoing.refresh()
    source = topology.source(5, "default")
    tuples = [Tuple([number, word], source) for number, word in enumerate(WORDS)]
    return {task: list(positions) for task, positions in outgoing.route("default", tuples).items()}


@pytest.mark.parametrize("grouping", ["shuffle", "none", "load_aware_shuffle", "local_or_shuffle"])
def test_even_groupings(grouping: str) -> None:
    """Even groupings give two of eight messages to each of four tasks."""
    routes = routed(lambda bolt: getattr(bolt, f"{grouping}_grouping")("words"))
    assert {task: len(positions) for task, positions in routes.items()} == {1: 2, 2: 2, 3: 2, 4: 2}


@pytest.mark.parametrize("fields", ["word", ["word"]])
def test_fields_grouping_looks_at_its_field(fields: str | list[str]) -> None:
    """Equal words go to one task, regardless of the other field."""
    routes = routed(lambda bolt: bolt.fields_grouping("words", fields))
    assert sum(set(positions) >= {0, 3, 5, 7} for positions in routes.values()) == 1
    assert sorted(position for positions in routes.values() for position in positions) == list(range(8))


def test_partial_key_grouping_uses_two_tasks() -> None:
    """Equal words go to two tasks, half to each."""
    routes = routed(lambda bolt: bolt.partial_key_grouping("words", "word"))
    the = Counter({task: len({0, 3, 5, 7} & set(positions)) for task, positions in routes.items()})
    assert len(+the) == 2


def test_all_and_global_grouping() -> None:
    """Every task, or the first one, gets all messages."""
    everything = list(range(8))
    assert routed(lambda bolt: bolt.all_grouping("words")) == dict.fromkeys(range(1, 5), everything)
    assert routed(lambda bolt: bolt.global_grouping("words")) == {1: everything}


def test_locality_and_loads_reach_the_groupings() -> None:
    """Near tasks get all messages, and a loaded task gets none."""
    near = {2: Locality.WORKER, 3: Locality.WORKER}
    assert set(routed(lambda bolt: bolt.local_or_shuffle_grouping("words"), near)) == {2, 3}
    assert set(routed(lambda bolt: bolt.load_aware_shuffle_grouping("words"), near)) == {2, 3}
    loads = {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.9}
    assert set(routed(lambda bolt: bolt.load_aware_shuffle_grouping("words"), loads=loads)) == {1, 2, 3}


def test_custom_grouping_is_copied_and_asked() -> None:
    """A custom grouping is a template: its copy receives tasks and fields, and chooses."""
    template = ByFirstLetter()
    routes = routed(lambda bolt: bolt.custom_grouping("words", template))
    wanted: dict[int, list[int]] = {}
    for position, word in enumerate(WORDS):
        wanted.setdefault(1 + ord(word[0]) % 4, []).append(position)
    assert routes == wanted
    assert template.asked == 0


def test_direct_stream_routes_nothing() -> None:
    """A direct stream needs no routing, because the emitter chooses the task."""
    builder = TopologyBuilder()
    builder.set_bolt("sink", Sink(), 4).direct_grouping("words", "to")
    builder.set_spout("words", FeederSpout(STREAMS))
    topology = builder.create_topology()
    assert TaskRouter(topology, 5).route("to", [Tuple(["x"], topology.source(5, "to"))]) == {}


@pytest.mark.parametrize("value", [frozenset("a"), {"a"}, ["a"]])
def test_field_that_cannot_decide(value: Any) -> None:
    """A key without a portable form is an error that names the bolt and the stream."""
    builder = TopologyBuilder()
    builder.set_bolt("sink", Sink()).fields_grouping("words", "word")
    builder.set_spout("words", FeederSpout(STREAMS))
    topology = builder.create_topology()
    with pytest.raises(
        TopologyError, match=r"'sink' subscribes to stream 'default' of 'words': a grouping's key"
    ):
        TaskRouter(topology, 2).route("default", [Tuple([1, value], topology.source(2, "default"))])
