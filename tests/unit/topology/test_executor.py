"""Executors: a user's spouts and bolts, run in threads by a worker in one process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import PropertyMock

import pytest
from helpers.executors import Do, alone, bolts_of, pipeline, running, wait_idle

from tuplewire.errors import ClosedError, TopologyError
from tuplewire.values.group import TaskGroup
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    Bolt,
    CustomStreamGrouping,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    TupleWindow,
    Window,
    WindowedBolt,
)
from tuplewire_topology.authoring.component import DeadLetter, TaskError
from tuplewire_topology.clusters.capture import FixedTupleSpout
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.running.statistics import Counts
from tuplewire_topology.running.timer import SimulatedTimer, TickScheduler

SECONDS = 30.0
"""The timeout of a test's waits."""


class Log:
    """A list shared by the copies of a spout or bolt: a copy of a Log is the same Log."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __deepcopy__(self, memo: object) -> Log:
        return self

    def __call__(self, value: Any) -> None:
        self.seen.append(value)


class Numbers(FixedTupleSpout):
    """Emits this number of integers once, and records their outcomes."""

    outputs = ("number",)

    def __init__(self, count: int, log: Log) -> None:
        super().__init__([[number] for number in range(count)])
        self.log = log

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.log(("open", conf.get("mine"), threading.current_thread().name))

    def ack(self, message_id: Any) -> None:
        self.log(("ack", message_id))

    def fail(self, message_id: Any) -> None:
        self.log(("fail", message_id))

    def activate(self) -> None:
        self.log("activate")

    def deactivate(self) -> None:
        self.log("deactivate")

    def close(self) -> None:
        self.log("close")


def chain(spout: Spout, *bolts: Bolt | BasicBolt, **more: int) -> Topology:
    """Return a spout "s" followed by bolts "b0", "b1", ... in a row. more: see pipeline()."""
    return pipeline({"s": spout, **{f"b{number}": bolt for number, bolt in enumerate(bolts)}}, **more)


def run(topology: Topology, conf: Mapping[str, Any] | None = None, **more: Any) -> list[Counts]:
    """Run a topology to its end, and return the counts of its bolts."""
    with running(topology, conf, **more) as worker:
        assert wait_idle(worker, SECONDS)
        return [bolt.tally.snapshot() for bolt in bolts_of(worker)]


def test_tasks_of_an_executor_share_a_thread() -> None:
    """Four tasks in two executors run in two threads, and each task receives tuples."""
    threads: dict[int, set[str]] = {}

    class Place(Bolt):
        def execute(self, message: Tuple) -> None:  # noqa: ARG002
            threads.setdefault(self.context.task, set()).add(threading.current_thread().name)

    run(chain(Numbers(100, Log()), Place(), executors=2, tasks=4))
    assert threads == {
        1: {"executor b0 1-2"},
        2: {"executor b0 1-2"},
        3: {"executor b0 3-4"},
        4: {"executor b0 3-4"},
    }


def test_life_of_a_spout() -> None:
    """A spout is opened with its settings, activated, deactivated and closed, all in its own thread."""
    log = Log()
    builder = TopologyBuilder()
    builder.set_spout("s", Numbers(0, log)).add_configuration("mine", 2)
    run(builder.create_topology(), {"mine": 1})
    assert log.seen == [("open", 2, "executor s 1-1"), "activate", "deactivate", "close"]


def test_max_spout_pending() -> None:
    """A spout has at most this number of tuples pending; an ack lets the next one follow."""
    held = Log()

    class Hold(Bolt):
        def execute(self, message: Tuple) -> None:
            held((self, message))
            if message[0] >= 10:
                self.collector.ack(message)

    with running(chain(Numbers(20, Log()), Hold()), {"topology.max.spout.pending": 11}) as worker:
        assert wait_idle(worker, SECONDS)
        assert len(held.seen) == 20
        assert worker.spouts[0].pending_tuples == 10
    held.seen.clear()
    with running(chain(Numbers(20, Log()), Hold()), {"topology.max.spout.pending": 5}) as worker:
        eventually(lambda: len(held.seen) >= 5, SECONDS)
        worker.set_active(active=False)
        assert wait_idle(worker, SECONDS)
        assert [message[0] for _, message in held.seen] == [0, 1, 2, 3, 4]


def test_backpressure_holds_a_spout() -> None:
    """The full queue of a slow bolt blocks its spout, so memory is bounded."""
    go = threading.Event()
    spout = Numbers(10_000, Log())
    log = Log()

    def wait(message: Tuple) -> None:
        go.wait(SECONDS)
        log(message[0])

    with running(chain(spout, Do(wait)), {"topology.executor.receive.buffer.size": 16}) as worker:
        queue = bolts_of(worker)[0].queue
        eventually(lambda: queue.statistics().population == 16)
        counts = worker.spouts[0].tally.snapshot()
        # In the queue, in the bolt, and in the column that waits for space: at most a spout's batch.
        assert counts.emitted <= 16 + 16 + 2 * 1024
        go.set()
        assert wait_idle(worker, SECONDS)
        assert queue.statistics().overflow == 0
    assert log.seen == list(range(10_000))


def test_a_bolt_may_send_to_itself() -> None:
    """A bolt that sends itself more tuples than its queue holds does not block."""
    seen = Log()

    class Again(Bolt):
        outputs = ("number",)

        def execute(self, message: Tuple) -> None:
            seen(message[0])
            for _ in range(message[0]):
                self.collector.emit([message[0] - 1], anchors=message)
            self.collector.ack(message)

    builder = TopologyBuilder()
    builder.set_spout("s", Numbers(5, Log()))
    builder.set_bolt("b", Again()).shuffle_grouping("s").shuffle_grouping("b")
    run(builder.create_topology(), {"topology.executor.receive.buffer.size": 2})
    assert len(seen.seen) == 1 + 2 + 5 + 16 + 65


def test_ticks_by_a_simulated_clock() -> None:
    """A bolt gets one tick per period, before later tuples; other bolts get none."""
    seen, timer = Log(), SimulatedTimer()
    builder = TopologyBuilder()
    builder.set_spout("s", Numbers(2, Log()))
    bolt = builder.set_bolt("b", Do(lambda t: seen("tick" if t.is_tick else t[0]))).shuffle_grouping("s")
    bolt.add_configuration("topology.tick.tuple.freq.secs", 5)
    builder.set_bolt("other", Do(lambda t: seen("wrong") if t.is_tick else None)).shuffle_grouping("s")
    with running(builder.create_topology(), timer=timer) as worker:
        assert wait_idle(worker, SECONDS)
        timer.advance(4)
        assert wait_idle(worker, SECONDS)
        assert seen.seen == [0, 1]
        for _ in range(2):
            timer.advance(5)
            assert wait_idle(worker, SECONDS)
    assert seen.seen == [0, 1, "tick", "tick"]


def test_ticks_do_not_pile_up() -> None:
    """A slow bolt gets one tick, even after several periods."""
    seen, timer, go = Log(), SimulatedTimer(), threading.Event()

    def slow(message: Tuple) -> None:
        seen(message.is_tick)
        go.wait(SECONDS)

    conf = {"topology.tick.tuple.freq.secs": 1}
    with running(chain(Numbers(1, Log()), Do(slow)), conf, timer=timer) as worker:
        eventually(lambda: seen.seen)
        timer.advance(100)
        go.set()
        assert wait_idle(worker, SECONDS)
    assert seen.seen == [False, True]


def broken(message: Tuple) -> None:
    """Raise at every third number."""
    if message[0] % 3 == 0:
        raise ZeroDivisionError("by three")


def test_policy_fail_names_the_task() -> None:
    """By default, an error stops the worker and names component, task, tuple and cause."""
    with running(chain(Numbers(10, Log()), Do(broken))) as worker:
        with pytest.raises(
            TaskError, match=r"task 1 of 'b0': ZeroDivisionError: by three, at <Tuple 2:s:"
        ) as raised:
            wait_idle(worker, SECONDS)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_policy_skip_counts_and_goes_on() -> None:
    """With `skip`, an error fails the tuple, is counted and reported, and the bolt continues."""
    log, told = Log(), Log()

    topology = chain(Numbers(10, log), Do(broken))
    (counts,) = run(topology, {"topology.error.policy": "skip"}, on_error=told)
    assert (counts.errors, counts.failed, counts.acked) == (4, 4, 6)
    assert [(error.component, error.task, error.tuple.values) for error in told.seen] == [
        ("b0", 1, (number,)) for number in (0, 3, 6, 9)
    ]
    assert [entry[1] for entry in log.seen if entry[0] == "fail"] == [0, 3, 6, 9]


@pytest.mark.parametrize("taken", [True, False])
def test_policy_dead_letter_keeps_the_tuple(*, taken: bool) -> None:
    """A dead letter contains the tuple and its error; if it is not accepted, the tuple fails."""
    letters: list[DeadLetter] = []
    log = Log()

    def take(letter: DeadLetter) -> bool:
        letters.append(letter)
        return taken

    conf = {"topology.error.policy": "dead_letter"}
    (counts,) = run(chain(Numbers(10, log), Do(broken)), conf, on_dead_letter=take)
    assert (counts.errors, counts.failed, counts.acked) == (4, 4, 6)
    assert [letter.tuple["number"] for letter in letters] == [0, 3, 6, 9]
    assert letters[0].reason.startswith("ZeroDivisionError: ")
    failed = [entry[1] for entry in log.seen if entry[0] == "fail"]
    acked = {entry[1] for entry in log.seen if entry[0] == "ack"}
    assert failed == ([] if taken else [0, 3, 6, 9])
    assert acked == set(range(10)).difference(failed)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_tuple_is_tried_as_often_as_it_says(tries: int) -> None:
    """A failed tuple is retried up to the limit; then the policy applies, with the number of tries."""
    letters: list[DeadLetter] = []
    given: Counter[int] = Counter()

    def twice(message: Tuple) -> None:
        given[message["number"]] += 1
        if message["number"] == 5 or given[message["number"]] < 2:
            raise ZeroDivisionError(message["number"])

    conf = {"topology.error.policy": "dead_letter", "topology.error.tries": tries}
    (counts,) = run(chain(Numbers(10, Log()), Do(twice)), conf, on_dead_letter=letters.append)
    lost = range(10) if tries == 1 else [5]
    assert [(letter.tuple["number"], letter.tries) for letter in letters] == [(each, tries) for each in lost]
    assert counts.acked == 10 - len(lost)
    assert given[5] == tries


def test_error_in_a_grouping_loses_one_tuple() -> None:
    """An error in a custom grouping fails only the tuple that caused it."""
    log, seen = Log(), Log()

    class NoSevens(CustomStreamGrouping):
        def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
            if values[0] == 7:
                raise KeyError(values[0])
            return [1]

    builder = TopologyBuilder()
    builder.set_spout("s", Numbers(10, log))
    builder.set_bolt("b", Do(lambda t: seen(t[0]))).custom_grouping("s", NoSevens())
    run(builder.create_topology(), {"topology.error.policy": "skip"})
    assert sorted(seen.seen) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [entry for entry in log.seen if entry[0] == "fail"] == [("fail", 7)]


def test_always_serialize_finds_what_does_not_travel() -> None:
    """With the test setting, an unserializable value is an error within a process as well."""
    log, seen = Log(), Log()
    spout = Numbers(3, log)
    spout._tuples = [[0], [object()], [2]]
    conf = {"topology.testing.always.try.serialize": True, "topology.error.policy": "skip"}
    run(chain(spout, Do(lambda t: seen(t[0]))), conf)
    assert seen.seen == [0, 2]
    outcomes = sorted(entry for entry in log.seen if entry[0] in {"ack", "fail"})
    assert outcomes == [("ack", 0), ("ack", 2), ("fail", 1)]


def test_executor_is_not_split() -> None:
    """A worker refuses a part of an executor's tasks."""
    topology = chain(Numbers(1, Log()), Do(lambda _: None), executors=1, tasks=2)
    with pytest.raises(TopologyError, match="tasks 1 to 2 share an executor"):
        alone(topology, tasks=[1])


@pytest.mark.parametrize("window", [Window.count(3), Window.seconds(1)])
def test_a_retry_repeats_the_window(window: Window) -> None:
    """If a bolt with windows raises, its next try gets the same window, and no tuple or tick counts twice."""
    seen, timer = Log(), SimulatedTimer()

    class Windows(WindowedBolt):
        def execute_window(self, window: TupleWindow) -> None:
            seen([message["number"] for message in window])
            if len(seen.seen) % 2:
                raise ValueError("at the first try")

    Windows.window = window
    with running(chain(Numbers(6, Log()), Windows()), {"topology.error.tries": 2}, timer=timer) as worker:
        assert wait_idle(worker, SECONDS)
        for _ in range(3):
            timer.advance(1)
            assert wait_idle(worker, SECONDS)
    expected = [[0, 1, 2], [3, 4, 5]] if window.by_count else [[0, 1, 2, 3, 4, 5]]
    assert seen.seen == [each for each in expected for _ in range(2)]


def test_an_acked_tuple_is_not_tried_again() -> None:
    """A bolt that raises after it has acked a tuple does not get the tuple again."""
    seen = Log()

    class Early(Bolt):
        def execute(self, message: Tuple) -> None:
            seen(message[0])
            self.collector.ack(message)
            raise ValueError

    run(chain(Numbers(2, Log()), Early()), {"topology.error.tries": 3, "topology.error.policy": "skip"})
    assert seen.seen == [0, 1]


def test_last_tuples_of_deactivate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples that a spout emits in deactivate() are sent."""
    seen = Log()
    monkeypatch.setattr(Numbers, "deactivate", lambda spout: spout.collector.emit(["last"]))
    with running(chain(Numbers(1, Log()), Do(lambda message: seen(message[0])))) as worker:
        assert wait_idle(worker, SECONDS)
        worker.set_active(active=False)
        assert wait_idle(worker, SECONDS)
        assert seen.seen == [0, "last"]


def test_an_error_of_exhausted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If `exhausted` raises, the executor fails with this error, also for one that Tuplewire raises."""
    values = PropertyMock(side_effect=[True, ClosedError("of the spout's client")])
    monkeypatch.setattr(Numbers, "exhausted", values)
    with running(chain(Numbers(0, Log()))) as worker, pytest.raises(TaskError, match="of the spout's client"):
        wait_idle(worker, SECONDS)


def test_close_while_a_task_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends while a task is being opened closes the task, and subscribes to nothing."""
    go, log = threading.Event(), Log()
    monkeypatch.setattr(Numbers, "open", lambda *_: go.wait(SECONDS))
    worker = alone(chain(Numbers(0, log)))
    monkeypatch.setattr(worker.link, "subscribe", lambda *_: pytest.fail("it is closed"))
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(worker.start)
        eventually(lambda: worker.executors[0].pulse.activity == "open")
        closed = pool.submit(worker.close, SECONDS)
        eventually(lambda: worker.not_ready_reason == "stopped")
        go.set()
        started.result(SECONDS)
        closed.result(SECONDS)
    assert log.seen == ["close"]


def test_tuples_for_a_task_that_leaves_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks, and tuples from elsewhere, that arrive while an executor is removed do not count as held."""
    transfer, timer = alone(chain(Numbers(0, Log()), Do(lambda _: None))).transfer, SimulatedTimer()
    TickScheduler(timer, transfer.counter, transfer.enqueue).add(1, 5)
    transfer.queues[1].close()
    add = ReceiveQueue._add
    monkeypatch.setattr(ReceiveQueue, "_add", lambda *args: (transfer.queues.pop(1, None), add(*args)))
    payload = transfer.serializer.serialize(Tuple([1], transfer.topology.source(2, "default")))
    with pytest.raises(ClosedError):
        transfer.receive(TaskGroup.of(1, [payload], 2), lambda: None)
    timer.advance(5)
    assert transfer.counter.snapshot(lambda: True) == (True, 0, 0)
