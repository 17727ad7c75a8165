"""Values that change after emit: the strict mode tells of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from helpers.idle import wait_idle

from tuplewire.errors import MessageError
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.authoring.component import TaskError
from tuplewire_topology.running.executor_worker import ExecutorWorker

SECONDS = 30.0
STRICT = {"topology.testing.always.try.serialize": True}


class Same(Spout):
    """Emits one dictionary again and again, or a copy of it."""

    outputs = ("state",)

    def __init__(self, copy: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.copy, self.state = copy, {"count": 0}

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)

    def next_tuple(self) -> None:
        for _ in range(10):
            self.state["count"] += 1
            self.collector.emit([self.copy(self.state)])

    @property
    def exhausted(self) -> bool:
        return self.state["count"] >= 100


class ChangesWhatItGets(BasicBolt):
    """Emits the value that it has got, and changes it then."""

    outputs = ("state",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([message[0]])
        message[0]["count"] = -1


def run(spout: Spout, bolt: BasicBolt | None = None) -> None:
    """Run a spout and a bolt in this process, strictly."""
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    if bolt is not None:
        builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    worker = ExecutorWorker(builder.create_topology(), conf=STRICT)
    try:
        worker.start()
        worker.switch(active=True)
        wait_idle(worker, SECONDS)
    finally:
        worker.close(SECONDS)


def test_a_spout_that_changes_what_it_has_emitted() -> None:
    """Every tuple but the last would have the last state; the error says what to do."""
    with pytest.raises(TaskError, match="has changed since 'spout' emitted it: emit a copy") as raised:
        run(Same(lambda state: state))
    assert isinstance(raised.value.__cause__, MessageError)


def test_a_bolt_that_changes_what_it_has_emitted() -> None:
    """The same for a value that only passes through."""
    with pytest.raises(TaskError, match="has changed since 'bolt' emitted it"):
        run(Same(dict), ChangesWhatItGets())


def test_copies_may_change() -> None:
    """What is emitted as a copy stays as it was."""
    run(Same(dict))
