"""LocalCluster with changes at run time: killed workers, moved tasks and captured tuples."""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tuplewire.errors import TopologyError
from tuplewire.grouping.grouping import Fields
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.clusters.capture import FeederSpout, with_sources
from tuplewire_topology.clusters.cluster import LocalCluster
from tuplewire_topology.clusters.local_topology import LocalTopology

DOCS = Path(__file__).parents[3] / "docs"
SECONDS = 60.0
TRANSPORTS = pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])


class Shared:
    """State that all copies of a spout or bolt share: a copy of this object is the object itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lives: list[str] = []
        self.acked: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.most = 1 << 30
        self.numbers: defaultdict[int, int] = defaultdict(int)

    def __deepcopy__(self, memo: object) -> Shared:
        return self

    def note(self, what: str) -> None:
        with self.lock:
            self.lives.append(what)


class Numbers(Spout):
    """Each task emits 0, 1, 2, ... up to a limit that a test sets, and emits failed numbers again."""

    outputs = ("source", "number")

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.again: list[int] = []

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self.shared.note(f"open {context.task}")

    def next_tuple(self) -> None:
        task = self.context.task
        if self.again:
            number = self.again.pop()
        elif self.shared.numbers[task] < self.shared.most:
            number = self.shared.numbers[task]
            self.shared.numbers[task] += 1
        else:
            return
        self.collector.emit([task, number], message_id=number)

    @property
    def exhausted(self) -> bool:
        return not self.again and self.shared.numbers[self.context.task] >= self.shared.most

    def ack(self, message_id: int) -> None:
        self.shared.acked[message_id] += 1

    def fail(self, message_id: int) -> None:
        self.shared.failed[message_id] += 1
        self.again.append(message_id)


class Pass(BasicBolt):
    """Emits each tuple unchanged."""

    outputs = ("source", "number")

    def __init__(self, shared: Shared, what: str) -> None:
        self.shared = shared
        self.what = what

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        del conf
        self.task = context.task
        self.shared.note(f"prepare {self.what} {self.task}")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(message.values)

    def cleanup(self) -> None:
        self.shared.note(f"cleanup {self.what} {self.task}")


def numbers(shared: Shared, spouts: int = 1) -> Topology:
    """Return bolt "a" (tasks 1 and 2), bolt "b" (tasks 3 and 4) after it, and spout "s" from task 5 on."""
    builder = TopologyBuilder()
    builder.set_spout("s", Numbers(shared), spouts)
    builder.set_bolt("a", Pass(shared, "a"), 2).fields_grouping("s", "number")
    builder.set_bolt("b", Pass(shared, "b"), 2).fields_grouping("a", "number")
    return builder.create_topology()


def conf(transport: str, **more: Any) -> dict[str, Any]:
    """Return settings for three workers."""
    return {
        "topology.workers": 3,
        "storm.messaging.transport": transport,
        "topology.max.spout.pending": 200,
        **more,
    }


def while_numbers_flow(shared: Shared, task: int, change: Callable[[], None]) -> None:
    """Make a change while a task emits numbers, and wait until the task has emitted more numbers."""
    seen = shared.numbers[task]
    eventually(lambda: shared.numbers[task] > seen + 500, SECONDS)
    change()
    seen = shared.numbers[task]
    eventually(lambda: shared.numbers[task] > seen + 500, SECONDS)


@TRANSPORTS
def test_tasks_move_while_tuples_flow(transport: str) -> None:
    """Each tuple arrives once, and in order per source and task, while its bolts move."""
    shared = Shared()
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf(transport), numbers(shared, spouts=2))
        for task, worker in ((1, 1), (3, 1), (1, 2), (1, 0), (4, 2)):
            while_numbers_flow(shared, 5, partial(running.move_task, task, worker))
            assert running.worker_of(task) == worker
        shared.most = 0
        running.wait(SECONDS)
        for component in ("a", "b"):
            check_order(running.captured.received(component), shared)
        assert not shared.failed
        moved = ["a 1", "b 3", "a 1", "a 1", "b 4"]
        assert shared.lives[6:] == [f"{what} {task}" for task in moved for what in ("cleanup", "prepare")]
    assert shared.lives.count("open 5") == 1


def check_order(received: list[Tuple], shared: Shared) -> None:
    """Fail unless each spout's numbers arrived once, and in order per emitter and receiver."""
    by_source: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for message in received:
        by_source[message["source"], message.source_task, place(message["number"])].append(message["number"])
    for numbers_seen in by_source.values():
        assert numbers_seen == sorted(numbers_seen)
    for source in (5, 6):
        seen = sorted(message["number"] for message in received if message["source"] == source)
        assert seen == list(range(shared.numbers[source]))


def place(number: int) -> int:
    """Return the index of the task, 0 or 1, that fields grouping chooses for a number."""
    (task,) = Fields(range(2)).route([number])
    return task


@TRANSPORTS
def test_a_killed_workers_tuples_fail_and_come_again(transport: str) -> None:
    """Tuples lost with killed workers fail, are emitted again, and are all acked in the end.

    The bolts of a killed worker start again, without a cleanup; other bolts are not affected.
    """
    shared = Shared()
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf(transport), numbers(shared))
        spout = running.worker_of(5)
        others = [worker for worker in range(3) if worker != spout]
        for worker in (*others, others[0]):
            killed = [task for task in range(1, 5) if running.worker_of(task) == worker]
            before = len(shared.lives)
            while_numbers_flow(shared, 5, partial(running.kill_worker, worker))
            lives = [f"prepare {'a' if task < 3 else 'b'} {task}" for task in killed]
            assert sorted(shared.lives[before:]) == lives
        shared.most = 0
        running.wait(SECONDS)
        count = shared.numbers[5]
        assert shared.acked == Counter(range(count))
        received = running.captured.received("b")
        assert {message["number"] for message in received} == set(range(count))
        assert {message.source_component for message in received} == {"a"}
        assert not [life for life in shared.lives if life.startswith("cleanup")]
    assert shared.lives.count("open 5") == 1


class Hold(Bolt):
    """Acks its received tuples at each tick."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.held: list[Tuple] = []

    def execute(self, message: Tuple) -> None:
        if not message.is_tick:
            self.held.append(message)
            return
        for each in self.held:
            self.collector.ack(each)
        self.held.clear()


def holding(cluster: LocalCluster, feeder: FeederSpout) -> LocalTopology:
    """Run a bolt of two tasks that stores the numbers to 19; fields grouping chooses the task."""
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    bolt = builder.set_bolt("hold", Hold(), 2).fields_grouping("s", "number")
    bolt.add_configuration("topology.tick.tuple.freq.secs", 5)
    running = cluster.submit("t", {"topology.workers": 3}, builder.create_topology())
    for number in range(20):
        feeder.feed([number], message_id=number)
    running.wait()
    return running


def test_what_a_bolt_keeps_is_lost_with_it() -> None:
    """The unacked tuples of a killed bolt fail immediately; another bolt acks its tuples later."""
    feeder = FeederSpout(["number"])
    with LocalCluster(simulated_time=True) as cluster:
        running = holding(cluster, feeder)
        lost = [number for number in range(20) if place(number) == 0]
        running.kill_worker(running.worker_of(1))
        running.wait()
        assert (sorted(feeder.failed), feeder.acked) == (lost, [])
        for number in lost:
            feeder.feed([number], message_id=number)
        running.wait()
        cluster.advance(5)
        assert sorted(feeder.acked) == list(range(20))


def test_what_a_bolt_keeps_does_not_move() -> None:
    """A bolt that moves leaves its unacked tuples behind, and only these tuples fail."""
    feeder = FeederSpout(["number"])
    with LocalCluster(simulated_time=True) as cluster:
        running = holding(cluster, feeder)
        running.move_task(2, running.worker_of(1))
        running.wait()
        assert sorted(feeder.failed) == [number for number in range(20) if place(number) == 1]
        cluster.advance(5)
        assert sorted(feeder.acked) == [number for number in range(20) if place(number) == 0]


def test_a_killed_worker_with_its_spout() -> None:
    """A killed spout starts again, and nothing waits for its earlier tuples."""
    shared = Shared()
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf("local"), numbers(shared))
        while_numbers_flow(shared, 5, partial(running.kill_worker, running.worker_of(5)))
        shared.most = 0
        running.wait(SECONDS)
        assert shared.lives.count("open 5") == 2
        assert not [each.pending for each in running.status().executors if each.pending]


def test_a_moved_bolt_gets_its_ticks() -> None:
    """Ticks follow a bolt to its new worker, without duplicates."""
    feeder = FeederSpout(["number"])
    ticks: list[int] = []

    class Ticked(Hold):
        def execute(self, message: Tuple) -> None:
            ticks.append(self.context.task)
            super().execute(message)

    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Ticked(), 2).shuffle_grouping("s")
    settings = {"topology.workers": 3, "topology.tick.tuple.freq.secs": 5}
    with LocalCluster(simulated_time=True) as cluster:
        running = cluster.submit("t", settings, builder.create_topology())
        cluster.advance(5)
        running.move_task(1, running.worker_of(2))
        cluster.advance(5)
        running.kill_worker(running.worker_of(2))
        cluster.advance(5)
    assert sorted(ticks) == [1] * 3 + [2] * 3


def test_unknown_workers_and_tasks() -> None:
    """An unknown worker or task raises an error with the valid range."""
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 2}, numbers(Shared()))
        with pytest.raises(TopologyError, match="no worker 2: topology 't' has 2, from 0"):
            running.kill_worker(2)
        with pytest.raises(TopologyError, match="no worker 2"):
            running.move_task(1, 2)
        with pytest.raises(TopologyError, match="task 9 is none of this topology's"):
            running.move_task(9, 0)


def test_a_change_that_cannot_begin_changes_nothing() -> None:
    """A move times out while a bolt does not return, and changes nothing."""
    go = threading.Event()
    feeder = FeederSpout(["number"])

    class Wait(BasicBolt):
        def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
            go.wait(SECONDS)

    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Wait()).shuffle_grouping("s")
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 2}, builder.create_topology())
        feeder.feed([1], message_id=1)
        eventually(lambda: running.captured.received("b"))
        before = running.worker_of(1)
        with pytest.raises(TimeoutError, match="has not finished after"):
            running.move_task(1, 1 - before, timeout=0.1)
        go.set()
        running.wait()
        assert (running.worker_of(1), feeder.acked) == (before, [1])


def test_the_example_of_the_docs() -> None:
    """The documented test of a killed worker and a moved task has under ten lines, and passes."""
    pages = [DOCS / "tutorial" / "first-topology.md", DOCS / "how-to" / "topology.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    whole, *blocks = re.findall(r"```py\w*\n(.*?)```", text, re.DOTALL)
    (test,) = (block for block in blocks if "kill_worker" in block)
    assert len([line for line in test.splitlines() if line.strip()]) < 10
    namespace: dict[str, Any] = {"__name__": "example", "with_sources": with_sources}
    exec(compile(whole, str(pages[0]), "exec"), namespace)  # noqa: S102 - our own docs
    exec(compile(test, str(pages[1]), "exec"), namespace)  # noqa: S102 - our own docs
    namespace["WORDS"] = {word for line in namespace["LINES"] for word in line.split()}
    namespace["test_no_word_is_lost"](namespace["builder"].create_topology())


def test_only_what_is_collected_is_kept() -> None:
    """If components to collect are named, only their tuples are stored."""
    feeder = FeederSpout(["source", "number"])
    shared = Shared()
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("a", Pass(shared, "a")).shuffle_grouping("s")
    with LocalCluster() as cluster:
        running = cluster.submit("t", {}, builder.create_topology(), collect=["a"])
        feeder.feed([1, 2])
        running.wait()
        assert running.captured.tuples("a") == [(1, 2)]
        assert (running.captured.tuples("s"), running.captured.received("a")) == ([], [])


def test_ackers_move_too() -> None:
    """An acker task can move; the tuples that it tracked fail by timeout, and are emitted again."""
    shared = Shared()
    topology = with_ackers(numbers(shared), 1)
    with LocalCluster() as cluster:
        settings = conf("local", **{"topology.message.timeout.secs": 0.5})
        running = cluster.submit("t", settings, topology)
        (acker,) = topology.tasks_of("__acker")
        target = (running.worker_of(acker) + 1) % 3
        while_numbers_flow(shared, 5, partial(running.move_task, acker, target))
        assert running.worker_of(acker) == target
        shared.most = 0
        count = shared.numbers[5]
        eventually(lambda: len(shared.acked) == count, SECONDS)
