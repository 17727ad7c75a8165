"""Collectors: emitting, anchoring, acking and failing tuples; and the bolts that use collectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tuplewire.errors import MessageError
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    FailedError,
    OutputCollector,
    SpoutOutputCollector,
    Stream,
    Topology,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.authoring.collector import Outbox
from tuplewire_topology.authoring.component import BasicBoltExecutor
from tuplewire_topology.authoring.description import Component, ComponentKind, GroupingType, Input

STREAMS = (Stream("word", "count"), Stream("line", name="bad"), Stream("line", name="to", direct=True))
INPUTS = tuple(Input(name, "to", GroupingType.DIRECT) for name in ("bolt", "spout"))
TOPOLOGY = Topology(
    [
        Component("bolt", ComponentKind.BOLT, STREAMS),
        Component("sink", ComponentKind.BOLT, (), INPUTS, 1, 2),
        Component("spout", ComponentKind.SPOUT, STREAMS),
    ]
)
BOLT, SINK, SPOUT = (TOPOLOGY.tasks_of(name)[0] for name in ("bolt", "sink", "spout"))


class Told:
    """Records the calls to an executor."""

    def __init__(self) -> None:
        self.acked: list[Tuple] = []
        self.failed: list[Tuple] = []
        self.errors: list[Exception] = []
        self.outbox = Outbox(TOPOLOGY, BOLT)
        self.collector = OutputCollector(
            self.outbox, self.acked.append, self.failed.append, self.errors.append
        )

    def taken(self) -> list[tuple[str, int | None, list[tuple[Any, ...]]]]:
        """Return the emitted tuples, as stream, task and values."""
        return [
            (run.source.stream.name, run.target_task, [message.values for message in run.tuples])
            for run in self.outbox.take_all()
        ]


@pytest.fixture
def told() -> Told:
    """Return an outbox, and a bolt's collector for it."""
    return Told()


def received(*roots: tuple[int, Any]) -> Tuple:
    """Return a received tuple with these message ids."""
    return Tuple(["x"], TOPOLOGY.source(SPOUT, "bad"), roots)


def test_emitted_in_order_and_in_runs(told: Told) -> None:
    """Consecutive tuples of a stream form a run, and runs of all streams keep their order."""
    told.collector.emit(["a", 1])
    told.collector.emit(("b", 2))
    told.collector.emit(["c"], stream="bad")
    told.collector.emit(["d", 4])
    assert len(told.outbox) == 4
    assert told.taken() == [
        ("default", None, [("a", 1), ("b", 2)]),
        ("bad", None, [("c",)]),
        ("default", None, [("d", 4)]),
    ]
    assert (told.taken(), len(told.outbox)) == ([], 0)


def test_values_are_those_of_the_moment(told: Told) -> None:
    """Changing a list after it was emitted does not change the tuple."""
    values = ["a", 1]
    told.collector.emit(values)
    values[0] = "b"
    assert told.taken() == [("default", None, [("a", 1)])]


def test_anchors_are_kept_as_message_ids(told: Told) -> None:
    """An emitted tuple has the message ids of all its anchors, each once."""
    one, other = received((7, "a"), (7, "b")), received((7, "b"), (8, "a"))
    told.collector.emit(["x"], stream="bad", anchors=one)
    told.collector.emit(["x"], stream="bad", anchors=[one, other])
    told.collector.emit(["x"], stream="bad")
    (run,) = told.outbox.take_all()
    both = ((7, "a"), (7, "b"))
    assert [message.roots for message in run.tuples] == [both, (*both, (8, "a")), ()]


def test_spout_gives_message_ids() -> None:
    """A message id is sent with its spout's task, which gets ack and fail; 0 is a valid id."""
    outbox = Outbox(TOPOLOGY, SPOUT)
    collector = SpoutOutputCollector(outbox, print)
    collector.emit(["x"], stream="bad", message_id=0)
    collector.emit(["x"], stream="bad")
    collector.emit_direct(SINK, ["x"], stream="to", message_id=("part", 5))
    ids = [message.roots for run in outbox.take_all() for message in run.tuples]
    assert ids == [((SPOUT, 0),), (), ((SPOUT, ("part", 5)),)]


def test_message_ids_are_hashable() -> None:
    """A message id that cannot be hashed, or that contains such a value, is refused by name."""
    outbox = Outbox(TOPOLOGY, SPOUT)
    ids: tuple[Any, ...] = ([1], ("part", {}))
    for message_id in ids:
        with pytest.raises(MessageError, match=re.escape(f"the message id {message_id!r} cannot be used: ")):
            SpoutOutputCollector(outbox, print).emit(["x"], stream="bad", message_id=message_id)
    assert not len(outbox)


def test_direct_streams_name_the_task(told: Told) -> None:
    """On a direct stream, each tuple goes to the given task, and a run has one task."""
    told.collector.emit_direct(SINK, ["a"], stream="to")
    told.collector.emit_direct(SINK, ["b"], stream="to")
    told.collector.emit_direct(SINK + 1, ["c"], stream="to")
    assert told.taken() == [("to", SINK, [("a",), ("b",)]), ("to", SINK + 1, [("c",)])]


WRONG: list[tuple[Callable[[OutputCollector], None], str]] = [
    (lambda c: c.emit(["a"]), "stream 'default' of 'bolt' has the fields word, count; this is 1 value"),
    (lambda c: c.emit("ab"), "this is a single str: write [value]"),
    (lambda c: c.emit({"word": "a", "count": 1}), "this is a single dict: write [value], with a value for"),  # type: ignore[arg-type]
    (lambda c: c.emit({"a", "b"}), "this is a single set: write [value], with a value for each field"),  # type: ignore[arg-type]
    (
        lambda c: c.emit(["a"], stream="bda"),
        "'bolt' declares no stream 'bda'; it declares 'default', 'bad', 'to'",
    ),
    (lambda c: c.emit(["a"], stream="to"), "is direct: use emit_direct"),
    (lambda c: c.emit_direct(SINK, ["a"], stream="bad"), "is not direct: use emit"),
    (
        lambda c: c.emit_direct(SPOUT, ["a"], stream="to"),
        f"task {SPOUT} does not subscribe to stream 'to' of 'bolt'; its subscribers are {SINK}, {SINK + 1}",
    ),
]


@pytest.mark.parametrize(("emit", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_what_does_not_fit(told: Told, emit: Callable[[OutputCollector], None], problem: str) -> None:
    """A tuple that does not fit its stream is an error with the fix, and nothing is emitted."""
    with pytest.raises(MessageError) as raised:
        emit(told.collector)
    assert problem in str(raised.value)
    assert told.taken() == []


def test_acks_fails_and_errors_go_to_the_executor(told: Told) -> None:
    """Acks, failures and errors are passed to the executor."""
    one, other, error = received(), received(), ValueError("bad")
    told.collector.ack(one)
    told.collector.fail(other)
    told.collector.report_error(error)
    assert (told.acked, told.failed, told.errors) == ([one], [other], [error])


class Count(BasicBolt):
    """Counts tuples, and fails or raises on request."""

    outputs = STREAMS

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self.calls.append(f"prepare {conf['a']} {context.task}")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([message[0], 1])
        collector.emit_direct(SINK, ["x"], stream="to")
        if message.roots == ((7, "fail"),):
            raise FailedError("not this one")

    def cleanup(self) -> None:
        self.calls.append("cleanup")


def run_basic(told: Told, message: Tuple) -> Count:
    """Process a tuple with a basic bolt through its executor."""
    bolt = Count()
    executor = BasicBoltExecutor(bolt)
    assert executor.outputs == STREAMS
    executor.prepare({"a": 5}, TopologyContext("t", TOPOLOGY, BOLT), told.collector)
    executor.execute(message)
    executor.cleanup()
    return bolt


def test_basic_bolt_acks_and_anchors(told: Told) -> None:
    """A basic bolt acks its tuple afterwards and anchors all emitted tuples to it."""
    message = received((7, "a"))
    assert run_basic(told, message).calls == [f"prepare 5 {BOLT}", "cleanup"]
    assert (told.acked, told.failed) == ([message], [])
    assert [item.roots for run in told.outbox.take_all() for item in run.tuples] == [((7, "a"),)] * 2


def test_basic_bolt_fails_on_purpose(told: Told) -> None:
    """FailedError fails the tuple and is not reported as an error."""
    message = received((7, "fail"))
    run_basic(told, message)
    assert (told.acked, told.failed, told.errors) == ([], [message], [])
