"""Fixtures for workers, an unused address and a message recorder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.topology import Pair, pair_of_workers
from helpers.worker_process import Running, running

from tuplewire_service.testing.harness import Recorder


@pytest.fixture(scope="module", params=["grpc", "zmq"])
def transport(request: pytest.FixtureRequest) -> str:
    """Run a test once for each transport between the workers."""
    return str(request.param)


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers with a file's FLAGS for all tests of the file."""
    with pair_of_workers(*getattr(request.module, "FLAGS", ())) as pair:
        yield pair


@pytest.fixture
def pair(workers: Pair) -> Iterator[Pair]:
    """Provide the two workers, and check afterwards that their ledgers balance."""
    yield workers
    workers.check_balance()


@pytest.fixture
def task(workers: Pair) -> int:
    """Return an unused task of the worker `near`."""
    return workers.near_task()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Reserve an address on which no process listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Running]:
    """Run a worker without an assignment."""
    with running(tmp_path) as started:
        yield started


@pytest.fixture
def recorder() -> Recorder:
    """Return a recorder of the messages that a server receives."""
    return Recorder()
