"""LocalCluster, as users run and test topologies, with load-aware shuffle and bolts that work on windows."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import words
from helpers.executors import pipeline

from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import ConfigError, TopologyError
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    TupleWindow,
    Window,
    WindowedBolt,
)
from tuplewire_topology.authoring.component import TaskError
from tuplewire_topology.clusters.capture import FeederSpout, FixedTupleSpout
from tuplewire_topology.clusters.cluster import LocalCluster, complete_topology

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "first-topology.md"


@pytest.fixture
def feeder() -> FeederSpout:
    """Return a spout that a test feeds with lines."""
    return FeederSpout(["line"])


@pytest.mark.parametrize(
    "conf",
    [{}, {"topology.workers": 3}, {"topology.workers": 3, "storm.messaging.transport": "grpc"}],
    ids=["one worker", "local", "grpc"],
)
def test_the_example_of_the_docs(conf: dict[str, Any]) -> None:
    """The word count of the tutorial has under 40 lines of code, and counts the same as a Counter."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) < 40
    setting = '{"topology.workers": 2}'
    assert setting in code[1]
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(code[1].replace(setting, repr(conf)), str(PAGE), "exec"), namespace)  # noqa: S102 - our own docs
    assert namespace["counts"] == Counter(word for line in namespace["LINES"] for word in line.split())


@pytest.mark.parametrize(("transport", "mode"), [("local", None), ("grpc", None), ("zmq", "local")])
def test_fed_tuples_are_followed_across_workers(
    feeder: FeederSpout, transport: str, mode: str | None
) -> None:
    """The spout gets the outcome of each tuple, although its bolts are in other workers."""
    conf: dict[str, Any] = {"topology.workers": 5, "storm.messaging.transport": transport}
    if mode is not None:
        conf["storm.cluster.mode"] = mode
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf, words.topology_of(feeder))
        for number in range(100):
            feeder.feed([words.FAILED if number % 10 == 0 else "a b"], message_id=number)
        running.wait()
        assert sorted(feeder.failed_ids) == list(range(0, 100, 10))
        assert sorted(feeder.failed_ids + feeder.acked_ids) == list(range(100))
        assert sorted(running.captured.tuples("split")) == [("a",)] * 90 + [("b",)] * 90
        feeder.feed(["c"], message_id="more")
        cluster.wait("t")
        assert feeder.acked_ids[-1] == "more"


def test_time_passes_when_told(feeder: FeederSpout) -> None:
    """With simulated time, ticks follow fed tuples, once per period and only when time is advanced."""
    with LocalCluster(simulated_time=True) as cluster:
        running = cluster.submit("t", {"topology.workers": 2}, words.topology_of(feeder, tick_seconds=10))
        feeder.feed(["a b a"])
        cluster.wait("t")
        cluster.advance(9.5)
        assert running.captured.tuples("count") == []
        cluster.advance(0.5)
        assert sorted(values[:2] for values in running.captured.tuples("count")) == [("a", 2), ("b", 1)]
        running.captured.clear()
        feeder.feed(["b"])
        cluster.wait("t")
        cluster.advance(30)
        counted = Counter(values[:2] for values in running.captured.tuples("count"))
        assert counted == {("a", 2): 3, ("b", 2): 3}


def test_complete_topology() -> None:
    """complete_topology() feeds given tuples to a topology, and returns all emitted tuples."""
    captured = complete_topology(words.topology_of(FeederSpout(["line"])), {"lines": [["a b"], ["c"]]})
    assert sorted(captured.tuples("split")) == [("a",), ("b",), ("c",)]
    assert captured.tuples("lines") == [("a b",), ("c",)]


def test_complete_topology_wants_a_spout() -> None:
    """Tuples can be given only to a spout, not to a bolt."""
    with pytest.raises(TopologyError, match="'split' is a bolt; given tuples can only replace a spout"):
        complete_topology(words.topology_of(FeederSpout(["line"])), {"split": [["a"]]})


def test_an_error_ends_the_topology(feeder: FeederSpout) -> None:
    """An error of a bolt in any worker ends the wait, and the status shows it."""
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 4}, words.topology_of(feeder))
        assert cluster.status()["t"].state == "ACTIVE"
        feeder.feed([words.POISON])
        with pytest.raises(TaskError, match="of 'split': ValueError"):
            cluster.wait("t")
        assert cluster.status()["t"].state == "FAILED"
        assert [error.component for error in running.errors] == ["split"]


def test_kill_finishes_what_is_on_the_way(feeder: FeederSpout) -> None:
    """A killed topology ends after its emitted tuples are processed, and leaves no thread."""
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 3}, words.topology_of(feeder))
        for _ in range(500):
            feeder.feed(["a b"])
        cluster.kill("t")
        emitted = len(running.captured.tuples("lines"))
        assert len(running.captured.tuples("split")) == 2 * emitted
        assert cluster.status() == {}
        with pytest.raises(TopologyError, match="no topology 't' runs here; there are none"):
            cluster.wait("t")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("executor ")]


def test_two_topologies_and_their_names(feeder: FeederSpout) -> None:
    """Two topologies run at the same time under different names; a name cannot be used again."""
    other = FeederSpout(["line"])
    with LocalCluster() as cluster:
        one = cluster.submit("one", {"topology.workers": 2}, words.topology_of(feeder))
        two = cluster.submit("two", {"topology.workers": 2}, words.topology_of(other))
        with pytest.raises(ConfigError, match="'one' runs already"):
            cluster.submit("one", {}, words.topology_of(feeder))
        feeder.feed(["a"])
        other.feed(["b"])
        one.wait()
        two.wait()
        assert (one.captured.tuples("split"), two.captured.tuples("split")) == ([("a",)], [("b",)])


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ({"topology.workres": 2}, "unknown setting 'topology.workres'"),
        ({"topology.error.policy": "ignore"}, "topology.error.policy must be one of fail, skip, dead_letter"),
        ({"topology.workers": 2, "storm.messaging.transport": "pigeon"}, "unknown transport 'pigeon'"),
        ({"tuplewire.session.overflw": "fail"}, "did you mean tuplewire.session.overflow"),
    ],
)
def test_wrong_settings(feeder: FeederSpout, conf: dict[str, Any], problem: str) -> None:
    """submit() raises an error that names the wrong setting, and starts nothing."""
    with LocalCluster() as cluster:
        with pytest.raises(ConfigError, match=problem):
            cluster.submit("t", conf, words.topology_of(feeder))
        assert cluster.status() == {}


def test_real_time_passes_by_itself(feeder: FeederSpout) -> None:
    """Real time cannot be advanced."""
    with LocalCluster() as cluster:
        cluster.submit("t", {}, words.topology_of(feeder))
        with pytest.raises(ConfigError, match="simulated_time=True"):
            cluster.advance(1)


def test_a_components_wrong_setting_leaves_nothing(feeder: FeederSpout) -> None:
    """submit() raises an error for a wrong setting of a component, and leaves no thread."""
    builder = TopologyBuilder()
    builder.set_bolt("a", words.Split()).shuffle_grouping("z")
    builder.set_spout("z", feeder).add_configuration("topology.max.spout.pending", "many")
    messaging_thread()  # starts the shared thread of the process, which remains
    before = set(threading.enumerate())
    with LocalCluster() as cluster:
        with pytest.raises(
            ConfigError, match=r"topology.max.spout.pending must be a whole number from 0, not 'many'"
        ):
            cluster.submit("t", {"topology.workers": 2}, builder.create_topology())

        def left() -> list[threading.Thread]:
            started = set(threading.enumerate()) - before
            return [each for each in started if not each.name.startswith("asyncio")]  # the loop's thread pool

        eventually(lambda: not left(), what="its threads have ended")


SECONDS = 60.0
PER_SECOND = 1500
LATEST = 500
MOST = 12_000


class Steady(Spout):
    """Emits a constant number of tuples per second, indefinitely."""

    outputs = ("number",)

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.began = time.monotonic()
        self.next = 0

    def next_tuple(self) -> None:
        due = (time.monotonic() - self.began) * PER_SECOND
        while self.next < due:
            self.collector.emit([self.next])
            self.next += 1


class Work(BasicBolt):
    """Takes 0.5 ms for a tuple, but 6 ms in one of its tasks."""

    def __init__(self, slow: int) -> None:
        self.slow = slow

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.seconds = 0.006 if context.task_index == self.slow else 0.0005

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        time.sleep(self.seconds)


@pytest.mark.parametrize(("workers", "slow"), [(1, 0), (2, 0)], ids=["alone", "far"])
def test_a_slow_task_gets_little(workers: int, slow: int) -> None:
    """Senders learn that tuples wait longer at the slow task, although no queue is full."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Steady())
    builder.set_bolt("work", Work(slow), 4).load_aware_shuffle_grouping("numbers")
    conf = {"topology.workers": workers, "storm.messaging.transport": "grpc"}
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf, builder.create_topology(), collect=[])
        tasks = running.topology.tasks_of("work")
        assert len({running.worker_index(task) for task in tasks}) == workers
        before: Counter[int] = Counter()

        def share() -> float | None:
            """Return the slow task's share of the tuples since the last call, or None if they are few."""
            executors = [each for each in running.status().executors if each.component == "work"]
            latest = Counter({each.tasks[0]: each.queue.arrived for each in executors}) - before
            if latest.total() < LATEST:
                return None
            before.update(latest)
            return latest[tasks[slow]] / latest.total()

        eventually(lambda: share() is not None, SECONDS, "the first tuples arrive")
        eventually(lambda: (now := share()) is not None and now < 0.1, SECONDS, "the slow task gets little")
        assert before.total() < MOST, "by how full its queue is, that takes longer"


class Sums(WindowedBolt):
    """Emits the sum and the end of each window."""

    outputs = (Stream("sum", "end"), Stream("number", "at", name="late"))

    def __init__(self, window: Window) -> None:
        self.window = window

    def execute_window(self, window: TupleWindow) -> None:
        self.collector.emit([sum(each["number"] for each in window), window.end])


class Numbers(FixedTupleSpout):
    """Emits given numbers with their timestamps."""

    outputs = ("number", "at")


def windowed(spout: Spout, window: Window) -> Topology:
    """Return a topology that adds up the numbers of each window."""
    return pipeline({"numbers": spout, "sums": Sums(window)})


COUNTED = Numbers([[number, 0.0] for number in range(10)])


def test_by_count() -> None:
    """Windows of four over ten numbers: two full windows, and a last one when the topology ends."""
    topology = windowed(COUNTED, Window.count(4, 4))
    with LocalCluster() as cluster:
        sums = cluster.submit("counted", {"topology.workers": 2}, topology).finish(SECONDS).tuples("sums")
    assert [values[0] for values in sums] == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 6 + 7 + 8 + 9]


def test_by_a_time_of_their_own() -> None:
    """Windows of ten seconds by the tuples' time: tuples beyond the lag go to the stream of late tuples."""
    rows = [[1, 1.0], [2, 9.0], [4, 13.0], [8, 8.5], [16, 31.0], [32, 9.5], [64, 44.0]]
    window = Window.seconds(10, timestamp="at", lag=5, late_stream="late")
    with LocalCluster() as cluster:
        captured = cluster.submit("timed", {}, windowed(Numbers(rows), window)).finish(SECONDS)
        assert captured.tuples("sums") == [(11, 10.0), (4, 20.0), (16, 40.0), (64, 50.0)]
        assert captured.tuples("sums", "late") == [(32, 9.5)]


def test_by_arrival() -> None:
    """A window of three seconds is executed each second, by the cluster's time."""
    feeder = FeederSpout(["number", "at"])
    with LocalCluster(simulated_time=True) as cluster:
        running = cluster.submit("arriving", {}, windowed(feeder, Window.seconds(3, 1)))
        for number in (1, 2, 4, 8):
            feeder.feed([number, 0.0])
            running.wait(SECONDS)
            cluster.advance(1)
            running.wait(SECONDS)
        feeder.feed([16, 0.0])
        sums = [values[0] for values in running.finish(SECONDS).tuples("sums")]
    assert sums == [1, 1 + 2, 1 + 2 + 4, 2 + 4 + 8, 4 + 8 + 16]


def test_a_bolt_without_windows_is_refused() -> None:
    """A WindowedBolt without windows is refused by name when the topology is built."""

    class Forgotten(WindowedBolt):
        def execute_window(self, window: TupleWindow) -> None:
            """Do nothing."""

    with pytest.raises(TopologyError, match=r"bolt 'sums' is a WindowedBolt without windows: set window"):
        TopologyBuilder().set_bolt("sums", Forgotten())


def test_configuration_is_kept() -> None:
    """A windowed bolt's own tick setting overrides the topology's setting."""
    topology = windowed(COUNTED, Window.seconds(2))
    configuration: Mapping[str, Any] = topology.component("sums").configuration
    assert configuration["topology.tick.tuple.freq.secs"] == 2
