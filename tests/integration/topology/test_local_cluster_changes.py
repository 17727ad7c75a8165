"""LocalCluster with changes at run time: killed workers, moved tasks and captured tuples."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from helpers.executors import Do, pipeline, waiting
from helpers.program import in_threads
from helpers.runtimes import COUNT, Notes, Numbers, Pass, passing

from tuplewire.errors import ClosedError, ConfigError, TopologyError, WaitTimeoutError
from tuplewire.grouping.grouping import FieldsGrouping
from tuplewire_service.testing import eventually
from tuplewire_topology import Bolt, OutputCollector, Topology, TopologyBuilder, TopologyContext, Tuple
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.clusters.capture import FeederSpout, FixedTupleSpout, with_sources
from tuplewire_topology.clusters.cluster import LocalCluster
from tuplewire_topology.clusters.local_topology import LocalTopology
from tuplewire_topology.running import executor_group
from tuplewire_topology.running.timer import TickScheduler

DOCS = Path(__file__).parents[3] / "docs"
SECONDS = 60.0
THREE = {"topology.workers": 3}


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes of the test."""
    return Notes(tmp_path)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Run a cluster."""
    with LocalCluster() as cluster:
        yield cluster


def endless(notes: Notes) -> Topology:
    """Return a topology whose spout does not end: task 1 is the spout, 2 and 3 are "pass"."""
    return passing(Numbers(notes, count=None), Pass(notes))


def while_tuples_flow(notes: Notes, change: Callable[[], None]) -> None:
    """Make a change while tuples flow, and wait until more tuples are acked."""
    for action in (change, lambda: None):
        seen = notes.count("acked")
        eventually(lambda: notes.count("acked") > seen + 200, SECONDS)  # noqa: B023 - called here
        action()


def place(number: int) -> int:
    """Return the index of the task, 0 or 1, that fields grouping chooses for a number."""
    (task,) = FieldsGrouping(range(2)).route([number])
    return task


def test_killed_workers_start_again(cluster: LocalCluster, notes: Notes) -> None:
    """The tasks of a killed worker, and nothing else, start again, without a cleanup or earlier tuples."""
    running = cluster.submit("t", THREE, endless(notes))
    for worker in range(3):
        killed = [str(task) for task in (2, 3) if running.worker_index(task) == worker]
        before = notes.count("prepared")
        while_tuples_flow(notes, partial(running.kill_worker, worker))
        assert sorted(notes.read("prepared")[before:]) == killed
    assert not notes.read("cleaned")
    running.deactivate()
    running.wait(SECONDS)
    acked = notes.read("acked")
    assert len(acked) > len(set(acked)), "the spout has started again"
    assert not [each.pending_tuples for each in running.status().executors if each.pending_tuples]


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
        running.kill_worker(running.worker_index(1))
        running.wait()
        assert (sorted(feeder.failed_ids), feeder.acked_ids) == (lost, [])
        for number in lost:
            feeder.feed([number], message_id=number)
        running.wait()
        cluster.advance(5)
        assert sorted(feeder.acked_ids) == list(range(20))


def test_what_a_bolt_keeps_does_not_move() -> None:
    """A bolt that moves leaves its unacked tuples behind, and only these tuples fail."""
    feeder = FeederSpout(["number"])
    with LocalCluster(simulated_time=True) as cluster:
        running = holding(cluster, feeder)
        running.move_task(2, running.worker_index(1))
        running.wait()
        assert sorted(feeder.failed_ids) == [number for number in range(20) if place(number) == 1]
        cluster.advance(5)
        assert sorted(feeder.acked_ids) == [number for number in range(20) if place(number) == 0]


def test_a_moved_bolt_gets_its_ticks() -> None:
    """Ticks follow a bolt to its new worker, without duplicates."""
    ticks: list[int] = []

    class Ticked(Hold):
        def execute(self, message: Tuple) -> None:
            ticks.append(self.context.task)
            super().execute(message)

    settings = {"topology.workers": 3, "topology.tick.tuple.freq.secs": 5}
    with LocalCluster(simulated_time=True) as cluster:
        ticked = pipeline({"s": FeederSpout(["number"]), "b": Ticked()}, tasks=2)
        running = cluster.submit("t", settings, ticked)
        cluster.advance(5)
        running.move_task(1, running.worker_index(2))
        cluster.advance(5)
        running.kill_worker(running.worker_index(2))
        cluster.advance(5)
        with pytest.raises(ConfigError, match="increment is a number of seconds above 0, not 0"):
            cluster.advance(5, 0)
    assert sorted(ticks) == [1] * 3 + [2] * 3


def test_unknown_workers_and_tasks(cluster: LocalCluster, notes: Notes) -> None:
    """An unknown worker or task raises an error with the valid range."""
    running = cluster.submit("t", {"topology.workers": 2}, endless(notes))
    with pytest.raises(TopologyError, match="no worker 2: topology 't' has the workers 0 to 1"):
        running.kill_worker(2)
    with pytest.raises(TopologyError, match="no worker 2"):
        running.move_task(1, 2)
    with pytest.raises(TopologyError, match="task 9 is not in this topology"):
        running.move_task(9, 0)
    running.close(0)
    with pytest.raises(ClosedError):
        running.kill_worker(0)


def test_a_change_that_cannot_begin_changes_nothing() -> None:
    """A move times out while a bolt does not return, and changes nothing."""
    go = threading.Event()
    feeder = FeederSpout(["number"])
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 2}, waiting(feeder, go))
        feeder.feed([1], message_id=1)
        eventually(lambda: running.captured.received_tuples("b"))
        before = running.worker_index(1)
        with pytest.raises(TimeoutError, match="has not finished after"):
            running.move_task(1, 1 - before, timeout=0.1)
        go.set()
        running.wait()
        assert (running.worker_index(1), feeder.acked_ids) == (before, [1])


@pytest.mark.parametrize("slow", ["cleanup", "prepare"])
def test_a_move_with_a_slow_bolt_is_completed(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bolt that closes or opens slowly has moved when the call times out, and gets its tuples."""
    go, blocking = threading.Event(), threading.Event()

    class Slow(Do):
        def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
            if slow == "prepare" and blocking.is_set():
                go.wait(SECONDS)

        def cleanup(self) -> None:
            if slow == "cleanup" and blocking.is_set():
                go.wait(SECONDS)

    feeder = FeederSpout(["number"])
    with LocalCluster() as cluster:
        running = cluster.submit("t", THREE, pipeline({"s": feeder, "b": Slow(lambda _: None)}, tasks=2))
        assert [running.worker_index(task) for task in (1, 2, 3)] == [0, 1, 2]
        monkeypatch.setattr(executor_group, "_OPEN_TIMEOUT_SECONDS", 1.0)
        blocking.set()
        with pytest.raises(WaitTimeoutError, match=r"Executor 'b' tasks 1-1> (did not end|has not been)"):
            running.move_task(1, 1, timeout=1.0)
        blocking.clear()
        for number in range(20):
            feeder.feed([number], message_id=number)
        if slow == "prepare":
            go.set()
        running.wait(20.0)
        assert (running.worker_index(1), sorted(feeder.acked_ids)) == (1, list(range(20)))
        go.set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("executor b")]


class Ticked(Bolt):
    """Calls a function with each final tick."""

    def __init__(self, on_final_tick: Callable[[int], object]) -> None:
        self.on_final_tick = on_final_tick

    def __deepcopy__(self, memo: object) -> Ticked:
        return Ticked(self.on_final_tick)

    def execute(self, message: Tuple) -> None:
        if message.is_final_tick:
            self.on_final_tick(self.context.task)


TICKS = {"topology.workers": 2, "topology.tick.tuple.freq.secs": 3600}


def test_a_bolt_that_moves_at_the_end_gets_its_final_tick(cluster: LocalCluster) -> None:
    """A task that another thread moves while finish() sends the final ticks gets exactly one."""
    ticks: list[int] = []
    moves: list[Future[None]] = []
    send_final = TickScheduler.send_final

    def send_and_move(scheduler: TickScheduler, tasks: Iterable[int]) -> None:
        send_final(scheduler, tasks)
        if not moves:  # the second worker, which has task 2, gets its order afterwards
            moves.append(pool.submit(running.move_task, 2, 0))
            wait(moves, 2.0)

    topology = pipeline({"s": FeederSpout(["number"]), "b": Ticked(ticks.append)}, tasks=2)
    running = cluster.submit("t", TICKS, topology)
    assert [running.worker_index(task) for task in (1, 2)] == [0, 1]
    with ThreadPoolExecutor(1) as pool, patch.object(TickScheduler, "send_final", send_and_move):
        running.finish(SECONDS)
        moves[0].result(SECONDS)
    assert (sorted(ticks), running.worker_index(2)) == ([1, 2], 0)


def test_two_calls_of_finish_send_one_final_tick(cluster: LocalCluster) -> None:
    """A finish() during another one waits for it, and sends no final ticks; a later one does."""
    ticks: list[int] = []
    others: list[Future[Any]] = []
    called = threading.Event()

    def finish() -> None:
        called.set()
        running.finish(SECONDS)

    def finish_again(task: int) -> None:
        ticks.append(task)
        if not others:
            others.append(pool.submit(finish))
            called.wait(SECONDS)
            time.sleep(0.2)  # the other thread is in finish()

    topology = pipeline({"s": FeederSpout(["number"]), "b": Ticked(finish_again)})
    running = cluster.submit("t", TICKS, topology)
    with ThreadPoolExecutor(1) as pool:
        running.finish(SECONDS)
        others[0].result(SECONDS)
    assert ticks == [1]
    running.finish(SECONDS)
    assert ticks == [1, 1]


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


def test_only_what_is_collected_is_kept(cluster: LocalCluster, notes: Notes) -> None:
    """If components to collect are named, only their tuples are stored."""
    running = cluster.submit("t", {}, passing(Numbers(notes), Pass(notes)), collect=["pass"])
    running.wait(SECONDS)
    assert sorted(running.captured.tuples("pass")) == [(number,) for number in range(COUNT)]
    assert (running.captured.tuples("numbers"), running.captured.received_tuples("pass")) == ([], [])


def test_ackers_move_too(cluster: LocalCluster, notes: Notes) -> None:
    """An acker task can move; the tuples that it tracked fail by timeout, and are emitted again."""
    topology = with_ackers(endless(notes), 1)
    settings = {**THREE, "topology.message.timeout.secs": 1, "topology.max.spout.pending": 20}
    running = cluster.submit("t", settings, topology)
    (acker,) = topology.tasks_of("__acker")
    target = (running.worker_index(acker) + 1) % 3
    while_tuples_flow(notes, partial(running.move_task, acker, target))
    assert running.worker_index(acker) == target
    changes = notes.count("inactive-after")
    running.deactivate()
    eventually(lambda: notes.count("inactive-after") > changes, SECONDS)
    emitted = int(notes.read("inactive-after")[-1])
    running.activate()  # failed tuples are emitted again
    eventually(lambda: {*range(emitted)} <= {*map(int, notes.read("acked"))}, SECONDS)


def test_wait_in_another_thread_covers_a_kill(cluster: LocalCluster) -> None:
    """While a worker is killed and started again, a wait() in another thread does not return."""
    spout, slow = FixedTupleSpout([[number] for number in range(4)]), Do(lambda _: time.sleep(0.3))
    spout.outputs = ("number",)
    topology = pipeline({"s": spout, "a": slow, "b": Do(lambda _: None)})
    running = cluster.submit("t", {"topology.workers": 2}, topology)  # the first worker has "a" and "s"
    with in_threads(partial(running.wait, SECONDS)) as (waited,):
        eventually(lambda: running.captured.received_tuples("a"), SECONDS)
        running.kill_worker(0)
        assert not waited.done()
    assert len(running.captured.received_tuples("a")) > 4
