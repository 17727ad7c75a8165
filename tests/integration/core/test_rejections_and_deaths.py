"""Rejected messages and dead letters when their worker is killed, drains or loses a task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.restartable import RestartableWorker, drained_ledger
from helpers.topology import TOPOLOGY, assign, assignment_file, ledger, metric, numbered, queued, status
from helpers.traffic import client_of

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually

TASK, OTHER, DEAD = 1, 2, 9
LONG = 3600.0
PREDECESSOR = "tuplewire_predecessor_possibly_lost_messages"


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
        subscription.reject(0, after=after)
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
        assert status(mortal.endpoint).rejected_waiting == 1
        eventually(lambda: json.loads(state.read_text(encoding="utf-8"))["unretained_messages"] == 1)
        mortal.kill()
        mortal.start()
        mortal.wait_ready()
    assert metric(mortal.endpoint, PREDECESSOR) == 1
    assert queued(mortal.endpoint, TASK) == 0


def test_letters_go_with_their_task_and_end_with_the_last_worker(tmp_path: Path) -> None:
    """Dead letters move with their task, and a drain drops them at its deadline if there is no consumer."""
    flags = [f"--dead-letter-task={DEAD}", "--reject-limit=1", "--drain-seconds=1"]
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path, flags=flags) as workers:
        workers.assign({0: [TASK, DEAD], 1: [OTHER]})
        here, there = workers.endpoints
        with client_of(here.address) as sender:
            sender.send(TASK, b"0")
            reject_first(here)
        eventually(lambda: queued(here, DEAD) == 1)
        assign((here, there), 2, {here: [TASK], there: [OTHER, DEAD]})
        eventually(lambda: queued(there, DEAD) == 1)
        eventually(lambda: not ledger(here).pending)
        assert workers.stop() == [0, 0]
        gone, last = (drained_ledger(workers.log_of(index)) for index in (0, 1))
    assert (gone.dropped, last.dropped) == ({"dead_lettered": 1}, {"shutdown": 1})
