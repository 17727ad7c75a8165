"""Values that change after emit: strict mode reports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from helpers.hosted import local_worker
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

SECONDS = 30.0
STRICT = {"topology.testing.always.try.serialize": True}


class Same(Spout):
    """Emits the same dictionary repeatedly, or a copy of it."""

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
    """Emits the value that it received, and then changes the value."""

    outputs = ("state",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([message[0]])
        message[0]["count"] = -1


def run(spout: Spout, bolt: BasicBolt | None = None) -> None:
    """Run a spout and a bolt in this process in strict mode."""
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    if bolt is not None:
        builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    worker = local_worker(builder.create_topology(), STRICT)
    try:
        worker.start()
        worker.switch(active=True)
        wait_idle(worker, SECONDS)
    finally:
        worker.close(SECONDS)


def test_a_spout_that_changes_what_it_has_emitted() -> None:
    """A spout that changes an emitted value fails, with an error that recommends a copy."""
    with pytest.raises(TaskError, match="has changed since 'spout' emitted it: emit a copy") as raised:
        run(Same(lambda state: state))
    assert isinstance(raised.value.__cause__, MessageError)


def test_a_bolt_that_changes_what_it_has_emitted() -> None:
    """A bolt that changes a received value after emitting it fails in the same way."""
    with pytest.raises(TaskError, match="has changed since 'bolt' emitted it"):
        run(Same(dict), ChangesWhatItGets())


def test_copies_may_change() -> None:
    """A spout may change a value after it emitted a copy."""
    run(Same(dict))
