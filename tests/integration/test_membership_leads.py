"""`tuplewire membership` as processes, of which one leads, by a lease that a stub of the API keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.lease_api import LeaseApi, lease_api
from helpers.topology import TOPOLOGY, status
from helpers.worker_process import environment_without_ours

from tuplewire import Client
from tuplewire_service.launching.local_workers import Endpoint, LocalWorkers
from tuplewire_service.testing import eventually

pytestmark = pytest.mark.long

SECONDS = 60.0
LEASE = "tuplewire-membership"


class Program:
    """A process that assigns, or waits for its turn."""

    def __init__(
        self, directory: Path, name: str, addresses: list[str], *flags: str, **variables: str
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        words = [sys.executable, "-m", "tuplewire_service", "membership", *addresses, "--tasks=1-6"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*words, f"--topology={TOPOLOGY}", *flags],
                env={**environment_without_ours(), "POD_NAME": name, **variables},
                stderr=log,
            )

    def has_said(self, event: str) -> bool:
        """Whether an event is in its log."""
        return f" {event}" in self.log.read_text()


@contextmanager
def programs(directory: Path, api: LeaseApi, addresses: list[str], *names: str) -> Iterator[list[Program]]:
    """Run some that share a lease; what is left of them is killed."""
    flags = [f"--lease={LEASE}", f"--account={api.account}"]
    running = [Program(directory, name, addresses, *flags, **api.environment) for name in names]
    try:
        yield running
    finally:
        for each in running:
            each.process.kill()
            each.process.wait(SECONDS)


@pytest.fixture
def workers() -> Iterator[list[Endpoint]]:
    """Run three workers without an assignment; at the end nobody takes what they hold."""
    with LocalWorkers(3, TOPOLOGY, flags=["--drain-seconds=0.2"]) as started:
        yield started.endpoints


def tasks_of(endpoint: Endpoint) -> int:
    """Return how many tasks a worker has."""
    return len(status(endpoint).tasks)


@pytest.mark.slow
def test_one_leads_and_the_other_takes_over(tmp_path: Path, workers: list[Endpoint]) -> None:
    """One of two assigns. It ends, or is killed: the other goes on, and the tasks stay where they are."""
    account = tmp_path / "account"
    account.mkdir()
    addresses = [each.address for each in workers[:2]]
    with lease_api(account) as api, programs(tmp_path, api, addresses, "one", "two") as running:
        eventually(lambda: [tasks_of(each) for each in workers[:2]] == [3, 3], SECONDS)
        leader = next(each for each in running if each.name == api.holder(LEASE))
        (other,) = (each for each in running if each is not leader)
        assert leader.has_said("membership.leads")
        assert not other.has_said("membership.leads")
        with Client(addresses[0], topology=TOPOLOGY) as client:
            for task in range(1, 7):
                client.send(task, b"kept")
            client.flush(SECONDS)
        # It ends in good order, and gives the lease back.
        leader.process.terminate()
        assert leader.process.wait(SECONDS) == 0
        eventually(lambda: other.has_said("membership.leads"), SECONDS)
        assert api.holder(LEASE) == other.name
        assert [tasks_of(each) for each in workers[:2]] == [3, 3]
        # The next one waits, and takes over once the one that was killed has not renewed for long enough.
        with programs(tmp_path, api, [each.address for each in workers], "three") as (third,):
            eventually(lambda: third.has_said("lease.held"), SECONDS)
            assert not third.has_said("membership.leads")
            other.process.kill()
            eventually(lambda: third.has_said("membership.leads"), SECONDS)
            eventually(lambda: [tasks_of(each) for each in workers] == [2, 2, 2], SECONDS, "it spreads them")
        held = sum(task.queued_messages for each in workers for task in status(each).tasks)
        assert held == 6, "nothing was lost, and nobody was restarted"


def test_without_its_lease_it_ends(tmp_path: Path, workers: list[Endpoint]) -> None:
    """A leader that cannot renew ends with 1, before another one may begin; workers keep their tasks."""
    account = tmp_path / "account"
    account.mkdir()
    addresses = [each.address for each in workers]
    with lease_api(account) as api, programs(tmp_path, api, addresses, "one") as (leader,):
        eventually(lambda: [tasks_of(each) for each in workers] == [2, 2, 2], SECONDS)
        api.down = True
        assert leader.process.wait(SECONDS) == 1
        assert leader.has_said("lease.unknown")
        assert "the lease is lost" in leader.log.read_text()
        assert [tasks_of(each) for each in workers] == [2, 2, 2]


def test_alone_it_takes_no_lease(tmp_path: Path, workers: list[Endpoint]) -> None:
    """Without --lease it leads at once, anywhere; with one, outside of Kubernetes it says what is missing."""
    program = Program(tmp_path, "alone", [each.address for each in workers])
    try:
        eventually(lambda: [tasks_of(each) for each in workers] == [2, 2, 2], SECONDS)
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(SECONDS) == 0
        assert program.has_said("membership.stopped reason=SIGINT")
    finally:
        program.process.kill()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    words = [sys.executable, "-m", "tuplewire_service", "membership", "a:1", "--tasks=1", "--lease=x"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 64
    assert "KUBERNETES_SERVICE_HOST" in done.stderr
