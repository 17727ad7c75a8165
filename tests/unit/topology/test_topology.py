"""Building a topology, its queries and its description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.executors import Sink

from tuplewire.errors import ConfigError, TopologyError
from tuplewire_topology import (
    Bolt,
    CustomStreamGrouping,
    Spout,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.authoring.description import (
    Component,
    ComponentKind,
    GroupingType,
    Input,
    with_ackers,
)

TICKS = "topology.tick.tuple.freq.secs"


class Lines(Spout):
    """Emits lines, and the problems of some."""

    outputs = (Stream("line"), Stream("line", "why", name="bad"), Stream("line", name="to", direct=True))

    def next_tuple(self) -> None:
        self.collector.emit(["a line"])


class Split(Bolt):
    """Emits words."""

    outputs = ("word", "count")

    def execute(self, message: Tuple) -> None:
        self.collector.ack(message)


class First(CustomStreamGrouping):
    """Chooses the first task."""

    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:  # noqa: ARG002 - for any values
        return [1]


def wordcount() -> TopologyBuilder:
    """Return a builder of Storm's classic example."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(), 2).set_num_tasks(4)
    builder.set_bolt("split", Split(), 3).shuffle_grouping("lines").add_configuration("a.setting", 5)
    builder.set_bolt("count", Sink()).fields_grouping("split", "word")
    return builder


def test_targets_and_sources() -> None:
    """A stream lists its subscribers with their groupings."""
    topology = wordcount().create_topology()
    assert topology.subscribers_of("split") == [
        ("count", Input("split", "default", GroupingType.FIELDS, ("word",)))
    ]
    assert topology.subscribers_of("lines", "bad") == []
    with pytest.raises(
        TopologyError, match="'lines' has no stream 'baad'; it declares 'default', 'bad', 'to'"
    ):
        topology.subscribers_of("lines", "baad")


def test_context() -> None:
    """A context contains the task's component, and its index among the component's tasks."""
    context = TopologyContext("wordcount-1", wordcount().create_topology(), 7)
    assert (context.component.id, context.component_tasks, context.task_index) == ("split", range(6, 9), 1)


def test_tick_levels() -> None:
    """Ticks reach a diamond's sides before its end, a cycle's bolts together, and no bolt without ticks."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    builder.set_bolt("last", Split()).shuffle_grouping("there").shuffle_grouping("lines")
    builder.set_bolt("there", Split()).shuffle_grouping("end").shuffle_grouping("back")
    builder.set_bolt("back", Split()).shuffle_grouping("there")
    builder.set_bolt("end", Split()).shuffle_grouping("left").shuffle_grouping("right")
    builder.set_bolt("left", Split()).shuffle_grouping("lines")
    builder.set_bolt("right", Split()).shuffle_grouping("lines")
    builder.set_bolt("silent", Split()).shuffle_grouping("lines").add_configuration(TICKS, 0)
    topology = with_ackers(builder.create_topology(), 2)
    assert topology.tick_levels({TICKS: 5}) == [["left", "right"], ["end"], ["back", "there"], ["last"]]
    assert topology.tick_levels({}) == []


Change = Callable[[TopologyBuilder], object]
WRONG: list[tuple[Change, str]] = [
    (lambda b: b.set_bolt("x", Sink()).shuffle_grouping("slpit"),
     "'x' subscribes to 'slpit', which is not a component; known are 'count', 'lines', 'split', 'x'"),
    (lambda b: b.set_bolt("x", Sink()).shuffle_grouping("split", "bad"),
     "'split' has no stream 'bad'; it declares 'default'"),
    (lambda b: b.set_bolt("x", Sink()).shuffle_grouping("count"),
     "'count' has no stream 'default'; it declares none"),
    (lambda b: b.set_bolt("x", Sink()).fields_grouping("split", ["word", "wrod"]),
     "stream 'default' has no field 'wrod'; it declares word, count"),
    (lambda b: b.set_bolt("x", Sink()).fields_grouping("split", []), "fields grouping and 0 field"),
    (lambda b: b.set_bolt("x", Sink()).shuffle_grouping("split").all_grouping("split"),
     "'x' subscribes to stream 'default' of 'split' twice"),
    (lambda b: b.set_bolt("x", Sink()).direct_grouping("split"), "but the stream is not direct"),
    (lambda b: b.set_bolt("x", Sink()).all_grouping("lines", "to"), "but the stream is direct"),
    (lambda b: b.set_bolt("split", Sink()), "the id 'split' is taken"),
    (lambda b: b.set_bolt("", Sink()), "a component's id is text of at least one character, not ''"),
    (lambda b: b.set_bolt("\udcff", Sink()), "a component's id is text that UTF-8 can encode"),
    (lambda b: b.set_bolt("__acker", Sink()), "the name '__acker' is reserved"),
    (lambda b: b.set_bolt("x", Sink(), 0), "bolt 'x' has the parallelism 0"),
    (lambda b: b.set_bolt("x", Sink(), True), "bolt 'x' has the parallelism True"),
    (lambda b: b.set_bolt("x", Sink(), 3).set_num_tasks(2), "3 executors for 2 task"),
    (lambda b: b.set_bolt("x", Sink()).set_num_tasks(2**31), "exceed the number of task ids"),
    (lambda b: b.set_bolt("x", Lines()), "bolt 'x' is of type Lines, not a Bolt or BasicBolt"),  # type: ignore[arg-type]
    (lambda b: b.set_spout("x", Sink()), "spout 'x' is of type Sink, which is not a Spout"),  # type: ignore[arg-type]
    (lambda b: b.set_bolt("x", Sink()).custom_grouping("split", First),  # type: ignore[arg-type]
     "is of type ABCMeta, which is not a CustomStreamGrouping"),
]  # fmt: skip


def create_changed(builder: TopologyBuilder, change: Change) -> Topology:
    """Return the topology after a change; either may be refused."""
    change(builder)
    return builder.create_topology()


@pytest.mark.parametrize(("change", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_what_does_not_hold_together(change: Change, problem: str) -> None:
    """An error names the problem and the valid values."""
    builder = wordcount()
    with pytest.raises(TopologyError) as raised:
        create_changed(builder, change)
    assert problem in str(raised.value)
    assert isinstance(raised.value, ConfigError)


def test_topology_needs_a_spout() -> None:
    """A topology without a spout is refused, because its bolts would receive nothing."""
    builder = TopologyBuilder()
    builder.set_bolt("sink", Sink())
    with pytest.raises(TopologyError, match="at least one spout"):
        builder.create_topology()


def test_only_bolts_subscribe() -> None:
    """A spout with a subscription is refused."""
    spout = Component("a", ComponentKind.SPOUT, (Stream("x"),), (Input("a"),))
    with pytest.raises(TopologyError, match=r"spout 'a' subscribes to .*; only bolts do"):
        Topology([spout])


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ("word", "the outputs of bolt 'x' must be a tuple of field names, or of Streams"),
        (("word", Stream("line")), "must be a tuple of field names"),
        (("word", "word"), "stream 'default' declares the field 'word' twice"),
        ((Stream("a"), Stream("b")), "bolt 'x' declares the stream 'default' twice"),
        ((Stream("a", name="__tick"),), "the name '__tick' is reserved"),
        (("",), "a field's name in stream 'default' is text"),
    ],
)
def test_wrong_outputs(outputs: Any, problem: str) -> None:
    """An invalid declaration is named with its component."""
    bolt = Sink()
    bolt.outputs = outputs
    with pytest.raises(TopologyError) as raised:
        create_changed(wordcount(), lambda builder: builder.set_bolt("x", bolt))
    assert problem in str(raised.value)
