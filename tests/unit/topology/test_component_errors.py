"""Errors of components: BaseExceptions end the topology, and strict mode reports changed values."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from helpers.executors import alone, pipeline, running, wait_idle

from tuplewire.connection.loop import EventLoopThread
from tuplewire.errors import MessageError
from tuplewire_topology import (
    Bolt,
    CustomStreamGrouping,
    OutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.authoring.component import TaskError
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.timer import SystemTimer

SECONDS = 30.0


class Leave(BaseException):
    """An exception that a program defines for its own control flow."""


ERRORS = (SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Leave("x"))
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


class Raises:
    """Raises the given error when it is called with the given place."""

    def __init__(self, place: str = "", error: BaseException | None = None) -> None:
        self.place, self.error = place, error

    def __deepcopy__(self, memo: object) -> Raises:
        return self

    def __call__(self, place: str) -> None:
        if place == self.place and self.error is not None:
            raise self.error


class One(Spout):
    """Emits one number, and raises at the configured place."""

    outputs = ("number",)

    def __init__(self, raises: Raises) -> None:
        self.raises, self.done = raises, False

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.raises("open")

    def next_tuple(self) -> None:
        self.raises("next_tuple")
        self.done = True
        self.collector.emit([1], message_id=1)

    @property
    def exhausted(self) -> bool:
        return self.done

    def ack(self, _message_id: Any) -> None:
        self.raises("ack")

    def fail(self, _message_id: Any) -> None:
        self.raises("fail")

    def close(self) -> None:
        self.raises("close")


class Sink(Bolt):
    """Acks or fails each tuple, and raises at the configured place."""

    def __init__(self, raises: Raises, *, fails: bool = False) -> None:
        self.raises, self.fails = raises, fails

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.raises("prepare")

    def execute(self, message: Tuple) -> None:
        self.raises("execute")
        (self.collector.fail if self.fails else self.collector.ack)(message)

    def cleanup(self) -> None:
        self.raises("cleanup")


class To(CustomStreamGrouping):
    """A user-defined grouping that raises."""

    def __init__(self, raises: Raises) -> None:
        self.raises = raises

    def choose_tasks(self, _values: tuple[Any, ...]) -> Sequence[int]:
        self.raises("grouping")
        return []


def worker_of(raises: Raises) -> ExecutorGroup:
    """Return a worker with a spout, a grouping and a bolt; its policy skips tuples on an Exception."""
    builder = TopologyBuilder()
    builder.set_spout("spout", One(raises))
    sink = builder.set_bolt("bolt", Sink(raises, fails=raises.place == "fail"))
    if raises.place == "grouping":
        sink.custom_grouping("spout", To(raises))
    else:
        sink.shuffle_grouping("spout")
    return alone(builder.create_topology(), conf={"topology.error.policy": "skip"})


@each_error
@pytest.mark.parametrize(
    ("component", "place"),
    [
        *(("spout", place) for place in ("open", "next_tuple", "ack", "fail", "close", "grouping")),
        *(("bolt", place) for place in ("prepare", "execute", "cleanup")),
    ],
)
def test_it_ends_the_topology(component: str, place: str, error: BaseException) -> None:
    """The topology ends despite the policy; the error names component and task, and has the cause."""
    worker = worker_of(Raises(place, error))
    with contextlib.suppress(TaskError):
        worker.start()
        worker.set_active(active=True)
        wait_idle(worker, SECONDS)
    worker.close(SECONDS)
    with pytest.raises(TaskError, match=f"task . of '{component}': {type(error).__name__}") as raised:
        worker.raise_if_failed()
    assert raised.value.__cause__ is error


@each_error
def test_a_timer_tells_its_owner(error: BaseException) -> None:
    """A timer reports the exception that ended its thread."""
    told: list[BaseException] = []
    heard = threading.Event()

    def failed(raised: BaseException) -> None:
        told.append(raised)
        heard.set()

    timer = SystemTimer(failed)
    timer.every(0.01, lambda: Raises("here", error)("here"))
    assert heard.wait(SECONDS)
    timer.close()
    assert told == [error]


@each_error
def test_the_loop_goes_on(error: BaseException) -> None:
    """The event loop continues after any BaseException; otherwise all clients would wait indefinitely."""
    thread = EventLoopThread()
    told: list[Any] = []
    thread.loop.call_soon_threadsafe(
        thread.loop.set_exception_handler, lambda _loop, context: told.append(context["exception"])
    )
    thread.loop.call_soon_threadsafe(Raises("here", error), "here")
    assert thread.call(lambda: 5, SECONDS) == 5
    assert told == [error]


STRICT = {"topology.testing.always.try.serialize": True}


class Same(Spout):
    """Emits the same dictionary repeatedly, or a copy of it."""

    outputs = ("state",)

    def __init__(self, copy: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.copy, self.state = copy, {"count": 0}

    def next_tuple(self) -> None:
        for _ in range(10):
            self.state["count"] += 1
            self.collector.emit([self.copy(self.state)])

    @property
    def exhausted(self) -> bool:
        return self.state["count"] >= 100


def run(spout: Spout) -> None:
    """Run a spout in this process in strict mode."""
    with running(pipeline({"spout": spout}), STRICT) as worker:
        wait_idle(worker, SECONDS)


def test_a_spout_that_changes_what_it_has_emitted() -> None:
    """A spout that changes an emitted value fails, with an error that recommends a copy."""
    with pytest.raises(TaskError, match="has changed since 'spout' emitted it: emit a copy") as raised:
        run(Same(lambda state: state))
    assert isinstance(raised.value.__cause__, MessageError)


def test_copies_may_change() -> None:
    """A spout may change a value after it emitted a copy."""
    run(Same(dict))
