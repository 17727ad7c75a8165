"""One worker for one program: `tuplewire.local()`, and `tuplewire worker --tasks`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers import eventually
from helpers.traffic import deliver

import tuplewire
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, ConfigError, UnknownTaskError, UnreachableError


def test_a_program_has_a_worker_of_its_own() -> None:
    """The worker has the given tasks, serves its clients, and stops at the end of the block."""
    with tuplewire.local("1,7-8") as worker:
        with worker.client() as client:
            client.send(8, b"eight")
            deliver(client, 1, b"one")
            with client.recv([1, 8], timeout=10) as batches:
                found = {(m.task, m.message) for m in next(batches)}
        assert found <= {(8, b"eight"), (1, b"one")}
        with worker.client() as client, pytest.raises(UnknownTaskError):
            next(client.recv([2], timeout=10))
        assert worker.address in repr(worker)
        address = worker.address
    with ControlClient(address, timeout=1) as control, pytest.raises(UnreachableError):
        control.status()
    with pytest.raises(ClosedError, match="use it in a with statement"):
        worker.client()


def test_a_wrong_list_is_refused_at_once() -> None:
    """Invalid task ids are an error before a process is started."""
    with pytest.raises(ConfigError, match="task ids are written like"):
        tuplewire.local("a-b")


def test_its_worker_does_not_outlive_a_killed_program() -> None:
    """When a program is killed, its worker stops, too."""
    program = (
        "import tuplewire, time\nworker = tuplewire.local()\nworker.start()\n"
        "print(worker.address, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with ControlClient(address) as control:
            worker_process = control.status().worker_id
            assert worker_process == "local"
            process.kill()

            def gone() -> bool:
                try:
                    control.status()
                except UnreachableError:
                    return True
                return False

            eventually(gone, 20, "the worker outlives its program")


def test_a_newer_assignment_takes_the_place_of_its_tasks() -> None:
    """A local worker applies a newer assignment like any other worker, and can join a cluster."""
    with tuplewire.local("1-3") as worker, ControlClient(worker.address) as control:
        before = control.assignment()
        assert before is not None
        before.version += 1
        before.workers[0].tasks.append(9)
        assert control.update_assignment(before)
        assert {each.task for each in control.status().tasks} >= {9}


def test_tasks_and_an_assignment_contradict_each_other() -> None:
    """A worker gets its tasks from one source: the flags exclude each other."""
    ran = subprocess.run(
        [sys.executable, "-m", "tuplewire", "worker", "--tasks", "0-9", "--assignment-file", "a.json"],
        capture_output=True,
        text=True,
        env={**os.environ, "TUPLEWIRE_ADMIN": "127.0.0.1:0"},
        check=False,
        timeout=30,
    )
    assert ran.returncode == 64
    assert "tasks are for a worker that is alone" in ran.stderr
