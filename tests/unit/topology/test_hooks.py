"""Hooks of workers and tasks, and the resources that a worker's tasks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from helpers.executors import NoLink, wait_idle

from tuplewire.errors import TopologyError
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    FailedError,
    SpoutOutputCollector,
    TaskHook,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    WorkerContext,
    WorkerHook,
)
from tuplewire_topology.clusters.capture import FixedTupleSpout
from tuplewire_topology.clusters.cluster import LocalCluster
from tuplewire_topology.running.executor_group import ExecutorGroup

SECONDS = 30.0

seen: list[Any] = []
"""The events that hooks have recorded. Hooks are copied, so they share a module's list."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    yield
    seen.clear()


class Shares(WorkerHook):
    """Provides a counter to the tasks."""

    def start(self, conf: Mapping[str, Any], context: WorkerContext) -> None:
        seen.append(("start", conf["greeting"], context.topology_id, len(context.tasks)))
        context.resources["counter"] = Counter()

    def shutdown(self) -> None:
        seen.append("shutdown")


class Fails(WorkerHook):
    """Fails when it starts, or when it shuts down."""

    def __init__(self, *, at_start: bool) -> None:
        self.at_start = at_start

    def start(self, conf: Mapping[str, Any], context: WorkerContext) -> None:
        del conf, context
        if self.at_start:
            raise ValueError("no database")

    def shutdown(self) -> None:
        raise ValueError("the database is down")


class Observer(TaskHook):
    """Records the events of a task."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_emit(self, tuples: Sequence[Tuple]) -> None:
        seen.append((self.name, "emitted", len(tuples)))

    def on_execute(self, tuples: Sequence[Tuple], seconds: float) -> None:
        assert seconds >= 0.0
        seen.append((self.name, "executed", len(tuples)))

    def on_ack(self, message: Any) -> None:
        seen.append((self.name, "acked", message["number"] if isinstance(message, Tuple) else message))

    def on_fail(self, message: Any) -> None:
        seen.append((self.name, "failed", message["number"] if isinstance(message, Tuple) else message))

    def cleanup(self) -> None:
        seen.append((self.name, "cleanup"))


class Numbers(FixedTupleSpout):
    """Emits each number once."""

    outputs = ("number",)

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        context.add_task_hook(Observer("spout"))

    def fail(self, message_id: Any) -> None:
        """Do nothing."""


class Odd(BasicBolt):
    """Fails odd numbers, and counts the others in a resource."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        del conf
        context.add_task_hook(Observer("bolt"))
        self.counter = context.resource("counter")
        with pytest.raises(TopologyError, match="no worker hook has a resource 'other'; there are 'counter'"):
            context.resource("other")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        del collector
        if message["number"] % 2:
            raise FailedError
        self.counter["even"] += 1
        seen.append(dict(self.counter))


def builder(*hooks: WorkerHook) -> TopologyBuilder:
    """Return a builder with both components and these hooks."""
    made = TopologyBuilder()
    made.set_spout("numbers", Numbers([[0], [1]]))
    made.set_bolt("odd", Odd()).shuffle_grouping("numbers")
    for hook in hooks:
        made.add_worker_hook(hook)
    return made


def test_hooks_see_a_worker_and_its_tasks() -> None:
    """A worker hook starts before the tasks and stops after them; task hooks see their events."""
    with LocalCluster() as cluster:
        cluster.submit("t", {"greeting": "hello"}, builder(Shares()).create_topology()).wait()
    assert seen[0] == ("start", "hello", "t", 2)
    assert seen[-1] == "shutdown"
    notes = [each for each in seen if isinstance(each, tuple)]
    assert sum(each[2] for each in notes if each[:2] == ("spout", "emitted")) == 2
    assert sum(each[2] for each in notes if each[:2] == ("bolt", "executed")) == 2
    for name in ("spout", "bolt"):
        assert (name, "cleanup") in notes
        assert (name, "acked", 0) in notes
        assert (name, "failed", 1) in notes
    assert {"even": 1} in seen


def test_a_spout_hook_sees_acks_without_ackers() -> None:
    """Without ackers, a tuple counts as acked once it is sent."""
    group = ExecutorGroup(builder(Shares()).create_topology(), conf={"greeting": ""}, link=NoLink())
    group.start()
    group.set_active(active=True)
    assert wait_idle(group, SECONDS)
    group.close()
    acked = [each for each in seen if isinstance(each, tuple) and each[:2] == ("spout", "acked")]
    assert acked == [("spout", "acked", 0), ("spout", "acked", 1)]


def test_a_link_that_cannot_be_closed_skips_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker hooks shut down even if the link fails to close."""
    monkeypatch.setattr(NoLink, "close", lambda *_: 1 / 0)
    group = ExecutorGroup(builder(Shares()).create_topology(), conf={"greeting": ""}, link=NoLink())
    group.start()
    with pytest.raises(ZeroDivisionError):
        group.close()
    assert seen[-1] == "shutdown"


def test_a_hook_that_fails_at_the_start_ends_the_worker() -> None:
    """A failing worker hook stops the worker with an error that names the hook."""
    with LocalCluster() as cluster, pytest.raises(TopologyError, match="worker hook Fails: no database"):
        cluster.submit("t", {"greeting": ""}, builder(Shares(), Fails(at_start=True)).create_topology())
    assert seen[-1] == "shutdown"


def test_a_hook_that_fails_at_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If a hook fails at shutdown, the other hooks are still shut down."""
    with LocalCluster() as cluster:
        hooks = builder(Shares(), Fails(at_start=False))
        cluster.submit("t", {"greeting": ""}, hooks.create_topology()).wait()
    assert "worker_hook.shutdown_failed" in caplog.text
    assert seen[-1] == "shutdown"


def test_what_is_no_hook_is_refused() -> None:
    """An object of another type is refused immediately."""
    hook: Any = object()
    with pytest.raises(TopologyError, match="of type object, which is not a WorkerHook"):
        builder(hook)


def test_errors_of_a_hook_and_of_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error policy applies to errors of on_fail(); all hooks are released after an error in cleanup()."""

    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(Observer, "on_fail", fail)
    monkeypatch.setattr(Odd, "cleanup", fail)
    conf = {"greeting": "", "topology.error.policy": "skip"}
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf, builder(Shares()).create_topology())
        running.wait()
        assert len(running.errors) == 3, "twice of the bolt, and of the spout"
    assert ("bolt", "cleanup") in seen
