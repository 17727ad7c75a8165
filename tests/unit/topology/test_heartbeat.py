"""Heartbeats: executors' activity, the state file, and stuck executors."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from helpers.executors import Do, alone, pipeline, running, wait_idle
from helpers.logged import logged

from tuplewire_service.testing import eventually
from tuplewire_topology import Topology, TopologyBuilder, Tuple
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.statistics import ExecutorActivity, Pulse

SECONDS = 30.0


def test_a_call_is_timed_from_look_to_look() -> None:
    """A continuing user call is timed; another call or internal work restarts from zero."""
    now = 100.0
    pulse = Pulse(7, lambda: now)
    seen = []
    for doing, calls in (
        (ExecutorActivity.WAITING, 0),
        (ExecutorActivity.EXECUTE, 1),
        (ExecutorActivity.EXECUTE, 1),
        (ExecutorActivity.EXECUTE, 1),
        (ExecutorActivity.EXECUTE, 5),
        (ExecutorActivity.EXECUTE, 5),
        (ExecutorActivity.SENDING, 5),
        (ExecutorActivity.SENDING, 5),
        (ExecutorActivity.WAITING, 5),
        (ExecutorActivity.ACK, 6),
        (ExecutorActivity.ACK, 6),
    ):
        now += 1
        pulse.activity, pulse.step_count = doing, calls
        seen.append(pulse.call_seconds())
    assert seen == [0, 0, 1, 2, 0, 1, 0, 0, 0, 0, 1]


def fed(feeder: FeederSpout, function: Callable[[Tuple], Any]) -> Topology:
    """Return a bolt "b" (task 1) that is fed by a spout "s" (task 2)."""
    return pipeline({"s": feeder, "b": Do(function)})


def beating(
    topology: Topology, conf: Mapping[str, Any] | None = None, **more: Any
) -> AbstractContextManager[ExecutorGroup]:
    """Run a topology, with a heartbeat every twentieth of a second."""
    return running(topology, {"worker.heartbeat.frequency.secs": 0.05, **(conf or {})}, **more)


def beat_of(worker: ExecutorGroup, component: str) -> ExecutorHeartbeat:
    """Return the last heartbeat of a component's executor."""
    return next(beat for beat in worker.heartbeats.last if beat.component == component)


@pytest.fixture
def feeder() -> FeederSpout:
    """Return a spout that a test feeds."""
    return FeederSpout(["number"])


def test_a_stuck_executor_is_seen(feeder: FeederSpout, caplog: pytest.LogCaptureFixture) -> None:
    """A stuck executor is not ready, and is logged once with its stack until it continues."""
    caplog.set_level("INFO", "tuplewire_topology.running.heartbeat")
    go = threading.Event()

    def never_ending_lookup(_: Tuple) -> None:
        go.wait(SECONDS)

    with beating(fed(feeder, never_ending_lookup), conf={"nimbus.task.timeout.secs": 1}) as worker:
        eventually(lambda: not worker.heartbeats.not_ready_reason, SECONDS)
        feeder.feed([1])
        eventually(lambda: worker.heartbeats.not_ready_reason, SECONDS)
        assert re.fullmatch(
            r"task 1 of 'b' has been in execute\(\) for \d+ s", worker.heartbeats.not_ready_reason
        )
        before = beat_of(worker, "b").call_seconds
        eventually(lambda: beat_of(worker, "b").call_seconds > before + 0.2, SECONDS)
        go.set()
        eventually(lambda: not worker.heartbeats.not_ready_reason, SECONDS)
    (record,) = logged(caplog, "executor.stuck")
    assert (record["component"], record["task"], record["activity"]) == ("b", 1, "execute")
    assert record["seconds"] >= 1
    assert "never_ending_lookup" in record["stack"]
    assert len(logged(caplog, "executor.recovered")) == 1


def test_a_bolt_may_have_more_time(feeder: FeederSpout) -> None:
    """A component's setting overrides the time after which it counts as stuck."""
    go = threading.Event()
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    slow = builder.set_bolt("b", Do(lambda _: go.wait(SECONDS))).shuffle_grouping("s")
    slow.add_configuration("nimbus.task.timeout.secs", 600)
    with beating(builder.create_topology(), conf={"nimbus.task.timeout.secs": 1}) as worker:
        feeder.feed([1])
        eventually(lambda: beat_of(worker, "b").call_seconds > 1.2, SECONDS)
        assert not worker.heartbeats.not_ready_reason
        go.set()


def test_the_state_file(feeder: FeederSpout, tmp_path: Path) -> None:
    """The file is always complete, is updated repeatedly, and is removed with its worker."""
    file = tmp_path / "heartbeat.json"
    with beating(fed(feeder, lambda _: None), topology_id="words", state_file=file) as worker:
        eventually(lambda: not json.loads(file.read_text())["not_ready"], SECONDS)
        first = json.loads(file.read_text())
        assert first["topology_id"] == "words"
        assert first["process_id"] == os.getpid()
        assert abs(first["time"] - time.time()) < SECONDS
        assert [(each["component"], each["tasks"]) for each in first["executors"]] == [("b", [1]), ("s", [2])]
        eventually(lambda: json.loads(file.read_text())["time"] > first["time"], SECONDS)
        assert list(tmp_path.iterdir()) == [file]
    assert list(tmp_path.iterdir()) == [], "a worker that has ended well leaves no file"
    assert worker.heartbeats.not_ready_reason == "stopped"
    assert {each.activity for each in worker.heartbeats.last} == {"ended"}


def test_a_file_that_cannot_be_written(
    feeder: FeederSpout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed write is logged, and the worker continues."""
    done = threading.Event()
    with beating(fed(feeder, lambda _: done.set()), state_file=tmp_path / "none" / "file") as worker:
        feeder.feed([1])
        assert wait_idle(worker, SECONDS)
        assert not worker.heartbeats.not_ready_reason
    assert done.is_set()
    assert logged(caplog, "heartbeat.not_written")


def test_a_worker_that_cannot_start_says_why(feeder: FeederSpout) -> None:
    """A bolt's exception is the reason that the worker is not ready."""

    class Broken(Do):
        def prepare(self, *_: object) -> None:
            raise OSError("no such table")

    worker = alone(pipeline({"s": feeder, "b": Broken(print)}))
    assert worker.heartbeats.not_ready_reason == "starting"
    with pytest.raises(Exception, match="no such table"):
        worker.start()
    assert worker.heartbeats.not_ready_reason == "failed: task 1 of 'b': OSError: no such table"
    worker.close()
