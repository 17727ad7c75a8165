"""Commands with closed standard streams, as from cron or a daemon: they work as if with /dev/null."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.ports import free_port
from helpers.topology import TOPOLOGY, one_worker, queued

from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

COMMAND = f"{shlex.quote(sys.executable)} -m tuplewire"
ALL_CLOSED = "<&- >&- 2>&-"
each_closed = pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ALL_CLOSED])


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Run a worker with task 1."""
    with one_worker("w", directory=tmp_path_factory.mktemp("closed"), tasks=[1]) as endpoint:
        yield endpoint


def run(words: str, closed: str, timeout: float = 60) -> int:
    """Run a command in a shell that closes its streams; return its exit code."""
    line = f"exec {COMMAND} {words} {closed}"
    return subprocess.run(["sh", "-c", line], timeout=timeout, check=False).returncode


@each_closed
def test_asking(worker: Endpoint, closed: str) -> None:
    """A command exits with its usual code if it cannot print its result."""
    at = worker.address
    assert run(f"status --address {at}", closed) == 0
    assert run("status --address 127.0.0.1:1", closed) == 1


def test_commands_without_streams(worker: Endpoint) -> None:
    """Commands with each kind of output exit with their usual code if all streams are closed."""
    at = worker.address
    for words in ("--version", "--help", f"top --once --address {at}", f"top --once --json --address {at}"):
        assert run(words, ALL_CLOSED) == 0, words
    assert run("nothing", ALL_CLOSED) == 64


@each_closed
def test_sending_and_receiving(worker: Endpoint, closed: str) -> None:
    """Messages are sent and received; with standard input closed, there are no messages to send."""
    at = f"--topology {TOPOLOGY} --address {worker.address}"
    assert run(f"send {at} 1 hello", closed) == 0
    assert queued(worker, 1) == 1
    if "<&-" in closed:
        assert run(f"send {at} 1 -", closed) == 0
        assert queued(worker, 1) == 1
    assert run(f"recv {at} 1 --count 1", closed) == 0
    eventually(lambda: queued(worker, 1) == 0)


@each_closed
def test_a_worker(tmp_path: Path, closed: str) -> None:
    """A worker starts, serves messages and shuts down cleanly."""
    address = f"127.0.0.1:{free_port()}"
    words = f"worker --listen {address} --tasks 0-9 --admin 127.0.0.1:0 --drain-seconds 1"
    worker = subprocess.Popen(["sh", "-c", f"exec {COMMAND} {words} {closed}"], cwd=tmp_path)
    with Client(address, topology="default") as client:
        client.send(1, b"x")
        assert len(list(client.recv([1]).messages(1, seconds=60))) == 1
    worker.terminate()
    assert worker.wait(60) == 0
