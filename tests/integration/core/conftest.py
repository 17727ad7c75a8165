"""Fixtures for workers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.restartable import Hops
from helpers.topology import ledger, one_worker
from helpers.worker_process import Running, running

from tuplewire.processes.worker_processes import Endpoint


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run one worker without an assignment for the tests of a file that leave it as it is."""
    with running(tmp_path_factory.mktemp("shared")) as started:
        yield started


@pytest.fixture(scope="module")
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Run one worker with tasks 0 to 99 and a file's FLAGS; at the end, its ledger is balanced."""
    flags = getattr(request.module, "FLAGS", ())
    with one_worker("w", *flags, directory=tmp_path_factory.mktemp("w"), tasks=range(100)) as worker:
        yield worker
        assert ledger(worker).balanced


@pytest.fixture(params=["grpc", "zmq"])
def hops(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hops]:
    """Run two workers that can restart: `near`, and `far` with the tasks 0 and 1."""
    workers = Hops(tmp_path, request.param, [0, 1])
    yield workers
    workers.close()
