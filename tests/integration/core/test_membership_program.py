"""`tuplewire membership` as a process: it stops, is killed and replaced, or runs twice."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.topology import TOPOLOGY, status
from helpers.worker_process import COMMAND, environment_without_ours

from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually

pytestmark = pytest.mark.long

SECONDS = 60.0


@contextmanager
def running(log: Path, addresses: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tuplewire membership` with its log in a file, and kill it at the end if it is still running."""
    words = [
        *COMMAND,
        "membership",
        "--address",
        ",".join(addresses),
        "--tasks=1-6",
        f"--topology={TOPOLOGY}",
    ]
    with (
        log.open("w") as errors,
        subprocess.Popen(words, env=environment_without_ours(), stderr=errors) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def workers() -> Iterator[list[Endpoint]]:
    """Run three workers without an assignment, with short drains because no consumer takes their messages."""
    with WorkerProcesses(3, TOPOLOGY, flags=["--drain-seconds=0.2"]) as started:
        yield started.endpoints


def tasks_of(endpoint: Endpoint) -> int:
    """Return the number of tasks of a worker."""
    return len(status(endpoint).tasks)


@pytest.mark.slow
def test_a_program_that_was_killed_is_replaced(tmp_path: Path, workers: list[Endpoint]) -> None:
    """Workers keep tasks and messages without a program; the next one spreads the tasks over more workers."""
    addresses = [each.address for each in workers[:2]]
    with running(tmp_path / "one", addresses) as first:
        eventually(lambda: [tasks_of(each) for each in workers[:2]] == [3, 3], SECONDS)
        with Client(addresses[0], topology=TOPOLOGY) as client:
            for task in range(1, 7):
                client.send(task, b"kept")
            client.flush(SECONDS)
        first.kill()
        first.wait(SECONDS)
        assert [tasks_of(each) for each in workers[:2]] == [3, 3]
    with running(tmp_path / "two", [each.address for each in workers]) as second:
        eventually(lambda: [tasks_of(each) for each in workers] == [2, 2, 2], SECONDS, "it spreads them")
        held = sum(task.queued_messages for each in workers for task in status(each).tasks)
        assert held == 6, "nothing was lost, and nobody was restarted"
        second.send_signal(signal.SIGINT)
        assert second.wait(SECONDS) == 0
    assert " membership.stopped reason=SIGINT" in (tmp_path / "two").read_text()


@pytest.mark.slow
def test_two_at_once_do_no_harm(tmp_path: Path, workers: list[Endpoint]) -> None:
    """If a lost node returns with its pod, two programs run: tasks stay spread, and no message is lost."""
    addresses = [each.address for each in workers]
    with running(tmp_path / "one", addresses), running(tmp_path / "two", addresses):
        eventually(lambda: [tasks_of(each) for each in workers] == [2, 2, 2], SECONDS)
        with Client(addresses[0], topology=TOPOLOGY) as client:
            for number in range(600):
                client.send(1 + number % 6, b"%d" % number)
            client.flush(SECONDS)
        held = sum(task.queued_messages for each in workers for task in status(each).tasks)
        assert held == 600
        assert [tasks_of(each) for each in workers] == [2, 2, 2]
