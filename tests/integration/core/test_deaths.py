"""A worker fails: clients, its peers and its successor report the number of lost messages, if any."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.logged import logged
from helpers.restartable import Hops, RestartableWorker, restartable
from helpers.sinks import publish
from helpers.topology import (
    assign,
    assignment_file,
    drained_ledger,
    ledger,
    metric,
    numbered,
    queued,
    status,
    workers_with,
)
from helpers.traffic import client_of, take

from tuplewire import TaskGroup
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

TASK, CONSUMED, OTHER, DEAD = 0, 1, 2, 9
SENT = 5000
PREDECESSOR = "tuplewire_predecessor_possibly_lost_messages"
PEER = 'tuplewire_peer_possibly_lost_messages_total{peer="far"}'


def noted(hops: Hops) -> int:
    """Return the number of messages that would be lost with `far`, according to its state file."""
    state = json.loads((hops.directory / "far.state").read_text(encoding="utf-8"))
    assert not state["ended"]
    return int(state["unretained_messages"])


def restart(hops: Hops) -> None:
    """Start `far` again, and wait until `near` has a session with it."""
    hops.far.start()
    hops.far.wait_ready()
    eventually(lambda: metric(hops.near.endpoint, 'tuplewire_reconnects_total{peer="far"}') > 0)


def told(hops: Hops) -> tuple[float, float]:
    """Return the number of messages lost with `far`, as reported by `near` and by the restarted `far`."""
    return metric(hops.near.endpoint, PEER), metric(hops.far.endpoint, PREDECESSOR)


def lines(log: str, event: str) -> list[int]:
    """Return the number of messages in each log line that reports a failed worker."""
    return [int(found) for found in re.findall(rf"WARNING {event} .*messages=(\d+)", log)]


def test_what_a_killed_worker_had_queued_is_told(hops: Hops) -> None:
    """Only the peer and the successor report a killed worker's messages, in a metric and a log line each."""
    with client_of(hops.near.endpoint.address) as client:
        client.send(numbered(TASK, range(SENT)))
        eventually(lambda: ledger(hops.near.endpoint).acknowledged == SENT)
        eventually(lambda: noted(hops) == SENT)
        assert told(hops) == (0, 0)
        hops.far.kill()
        restart(hops)
        assert told(hops) == (SENT, SENT)
        assert lines(hops.near.log, "messages.possibly_lost") == [SENT]
        assert lines(hops.far.log, "worker.predecessor_failed") == [SENT]
        assert client.possibly_lost == 0
    assert metric(hops.near.endpoint, PREDECESSOR) == 0
    assert ledger(hops.near.endpoint).acknowledged == SENT


@pytest.mark.parametrize("hops", ["grpc"], indirect=True)
def test_a_client_is_told_what_died_with_its_worker(hops: Hops, caplog: pytest.LogCaptureFixture) -> None:
    """A client reports and logs the number of messages lost with its worker, without consumed messages."""
    far = hops.far.endpoint
    with client_of(far.address) as client:
        for task in (TASK, CONSUMED):
            client.send(numbered(task, range(SENT)))
        client.flush(20)
        take(far, CONSUMED, SENT)
        eventually(lambda: noted(hops) == SENT)
        hops.far.kill()
        with caplog.at_level(logging.WARNING, "tuplewire"):
            restart(hops)
            eventually(lambda: logged(caplog, "messages.possibly_lost"))
        assert client.possibly_lost == SENT
        assert client.ledger().acknowledged == 2 * SENT
        died = [(each["address"], each["messages"]) for each in logged(caplog, "messages.possibly_lost")]
        assert died == [(far.address, SENT)]
    assert told(hops) == (0, SENT)


@pytest.mark.parametrize("hops", ["zmq"], indirect=True)
def test_a_worker_that_does_not_come_back_is_told(hops: Hops) -> None:
    """After its tasks have another owner, the connection to a failed worker closes; the count remains."""
    near = hops.near.endpoint
    with client_of(near.address) as client:
        client.send(numbered(TASK, range(SENT)))
        eventually(lambda: ledger(near).acknowledged == SENT)
        hops.far.kill()
        assign(near, 2, {near: [TASK, CONSUMED]})
        eventually(lambda: metric(near, PEER) == SENT)
        eventually(lambda: not status(near).peers)
        assert metric(near, PEER) == SENT
    assert lines(hops.near.log, "messages.possibly_lost") == [SENT]


@pytest.mark.parametrize("hops", ["grpc"], indirect=True)
def test_nothing_dies_that_is_kept_until_it_is_processed(hops: Hops) -> None:
    """Messages in the mode `processed` are resent; only a message in the mode `queued` is lost."""
    near, far = hops.near.endpoint, hops.far.endpoint
    with (
        client_of(near.address, ack_mode="processed") as over_near,
        client_of(far.address, ack_mode="processed") as direct,
        client_of(near.address) as beside,
    ):
        for client in (over_near, direct):
            client.send(numbered(TASK, range(SENT)))
        eventually(lambda: queued(far, TASK) == 2 * SENT)
        beside.send(CONSUMED, b"x")
        eventually(lambda: ledger(near).acknowledged == 1)
        eventually(lambda: noted(hops) == 1)
        hops.far.kill()
        restart(hops)
        eventually(lambda: queued(hops.far.endpoint, TASK) == 2 * SENT)
        assert (direct.possibly_lost, over_near.possibly_lost) == (0, 0)
        assert told(hops) == (1, 1)
        take(far, TASK, 2 * SENT)
        for client in (over_near, direct):
            client.flush(20)


@pytest.mark.parametrize(
    "content",
    [b"\xff\x00", b"[]", b"{}", b'{"worker_id": "near", "incarnation": 1, "ended": false}', b"[" * 4000],
)
def test_a_garbage_state_file_is_a_named_warning(tmp_path: Path, content: bytes) -> None:
    """The worker starts, and replaces the file with a valid one."""
    file = tmp_path / "near.state"
    file.write_bytes(content)
    flags = [f"--state-file={file}"]
    with RestartableWorker("near", tmp_path, tmp_path / "assignment.json", flags) as worker:
        assert len(re.findall("WARNING state_file.not_used path=", worker.log)) == 1
        eventually(lambda: file.read_bytes() != content)
        assert metric(worker.endpoint, PREDECESSOR) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["ended"]


LONG = 3600.0


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[RestartableWorker]:
    """Run a worker that owns the task and restarts with a state file."""
    assignment = tmp_path / "assignment.json"
    flags = [f"--state-file={tmp_path / 'state'}", "--drain-seconds=1"]
    worker = RestartableWorker("a", tmp_path, assignment, flags)
    assignment_file(tmp_path, 1, {worker.reached: [TASK]})
    with worker:
        worker.wait_ready()
        yield worker


def reject_first(endpoint: Endpoint, after: float = 0.0, **settings: Any) -> None:
    """Reject the first message of the task, and return when the worker has counted the rejection."""
    before = status(endpoint).rejections
    with client_of(endpoint.address, **settings) as client, client.recv([TASK], timeout=10) as subscription:
        next(subscription)
        subscription.reject(0, delay=after)
        subscription.acknowledge()
        eventually(lambda: status(endpoint).rejections == before + 1)


def test_where_others_wait_no_death_loses_it(mortal: RestartableWorker, tmp_path: Path) -> None:
    """With reject_order="wait", a sender in mode `processed` resends the messages; only the count is lost."""
    with client_of(mortal.endpoint.address, ack_mode="processed") as sender:
        sender.send(numbered(TASK, range(3)))
        reject_first(mortal.endpoint, LONG, reject_order="wait")
        mortal.kill()
        mortal.start()
        mortal.wait_ready()
        with client_of(mortal.endpoint.address) as client, client.recv([TASK], timeout=20) as subscription:
            found = [(int(each.message), each.headers) for each in subscription.messages(3)]
        sender.flush(20)
        assert sender.ledger().acknowledged == 3
    assert found == [(0, ()), (1, ()), (2, ())]
    assert metric(mortal.endpoint, PREDECESSOR) == 0
    assert (tmp_path / "state").exists()


def test_where_others_go_on_a_death_is_told(mortal: RestartableWorker, tmp_path: Path) -> None:
    """By default, a rejected message is lost when its worker is killed; the next worker reports the loss."""
    state = tmp_path / "state"
    with client_of(mortal.endpoint.address, ack_mode="processed") as sender:
        sender.send(TASK, b"0")
        reject_first(mortal.endpoint, LONG)
        sender.flush(20)
        assert sender.ledger().acknowledged == 1
        assert status(mortal.endpoint).rejected_waiting_messages == 1
        eventually(lambda: json.loads(state.read_text(encoding="utf-8"))["unretained_messages"] == 1)
        mortal.kill()
        mortal.start()
        mortal.wait_ready()
    assert metric(mortal.endpoint, PREDECESSOR) == 1
    assert queued(mortal.endpoint, TASK) == 0


def test_committed_rows_are_told(tmp_path: Path) -> None:
    """The next worker reports committed rows of a sink, in the queue and waiting for space in it."""
    state = tmp_path / "state"
    flags = f"--state-file={state}", "--receive-queue-messages=2"
    with restartable(tmp_path, [TASK], *flags) as worker:
        with ControlClient(worker.endpoint.address) as control:
            assert publish(control, "s", 1, [TaskGroup.of(TASK, [b"row"])] * 5) == 5
        assert queued(worker.endpoint, TASK) == 2
        assert metric(worker.endpoint, "tuplewire_published_waiting_messages") == 3
        eventually(lambda: json.loads(state.read_text(encoding="utf-8"))["unretained_messages"] == 5)
        worker.kill()
        worker.start()
        worker.wait_ready()
        assert metric(worker.endpoint, PREDECESSOR) == 5


def test_letters_go_with_their_task_and_end_with_the_last_worker(tmp_path: Path) -> None:
    """Dead letters move with their task, and a drain drops them at its deadline if there is no consumer."""
    flags = [f"--dead-letter-task={DEAD}", "--reject-limit=1", "--drain-seconds=1"]
    with workers_with([TASK, DEAD], [OTHER], directory=tmp_path, flags=flags) as workers:
        here, there = workers.endpoints
        with client_of(here.address) as sender:
            sender.send(TASK, b"0")
            reject_first(here)
        eventually(lambda: queued(here, DEAD) == 1)
        assign((here, there), 2, {here: [TASK], there: [OTHER, DEAD]})
        eventually(lambda: queued(there, DEAD) == 1)
        eventually(lambda: not ledger(here).pending)
        assert workers.stop() == [0, 1]  # the second one drops the letter
        gone, last = (drained_ledger(workers.log_path(index)) for index in (0, 1))
    assert (gone.dropped, last.dropped) == ({"dead_lettered": 1}, {"shutdown": 1})
