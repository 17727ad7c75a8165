"""Certificates, authorities and tokens are replaced under load while connections break, without loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers.secured import Authority, files_of, secret_file, tls_flags, variables_of
from helpers.topology import TOPOLOGY, assign, ledger, metric, numbers, proxy_before, status, through
from helpers.traffic import Feeder, Reader, client_of

from tuplewire import Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

WORKER, PROGRAM = "worker.example", "etl.example"
_TASK = 7


@dataclass
class Deployment:
    """Two workers and a program, each with the files of a Secret; connections pass through proxies."""

    near: Endpoint
    far: Endpoint
    to_near: FaultProxy
    to_far: FaultProxy
    worker_files: Path
    program_files: Path
    worker_tokens: Path
    program_token: Path

    def give(self, signed_by: Authority, *trusted: Authority) -> None:
        """Replace the certificates of the workers and then of the program, and cut connections after each."""
        ca = b"".join(each.pem for each in trusted)
        for name, folder in ((WORKER, self.worker_files), (PROGRAM, self.program_files)):
            replace(signed_by.issue(name), ca=ca).write(folder)
            self.cut()

    def cut(self) -> None:
        """Cut the connections of the program and between the workers; wait until both are restored."""
        before = _reconnects(self.near)
        eventually(self.to_near.cut, 60)
        eventually(self.to_far.cut, 60)
        eventually(lambda: _reconnects(self.near) > before and _connected(self.near), 60)

    @contextmanager
    def load(self) -> Iterator[Feeder]:
        """Send messages through both workers during the block; all must arrive, once and in order.

        Messages read while the sending worker reconnects may be marked redelivered: that worker
        could have failed.
        """
        with (
            client_of(self.to_near.address) as client,
            client_of(self.far.unix_address) as consumer,
            consumer.recv([_TASK], timeout=1) as subscription,
            Reader(subscription) as reader,
        ):
            with Feeder(client, _TASK) as feeder:
                yield feeder
            client.flush(60)
            reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        assert ledger(self.near).balanced
        assert ledger(self.far).balanced


def _reconnects(endpoint: Endpoint) -> int:
    return sum(peer.reconnects for peer in status(endpoint).peers)


def _connected(endpoint: Endpoint) -> bool:
    return all(peer.connected for peer in status(endpoint).peers)


def _token(version: int) -> str:
    return f"{version:032d}"


@pytest.fixture
def authority() -> Authority:
    """Return the initial certificate authority."""
    return Authority()


@pytest.fixture
def deployment(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Run it; the workers share their files, and the environment names the program's own files."""
    worker_files = authority.issue(WORKER).write(tmp_path / "worker")
    worker_tokens = secret_file(tmp_path / "tokens", f"etl {_token(0)}")
    program_token = secret_file(tmp_path / "token", _token(0))
    program_files = tmp_path / "program"
    program = files_of(authority.issue(PROGRAM), program_files, WORKER, token_file=program_token)
    for name, value in variables_of(program).items():
        monkeypatch.setenv(name, value)
    flags = [*tls_flags(worker_files), f"--token-file={worker_tokens}", f"--tls-client-names={PROGRAM}"]
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path, flags=flags) as workers:
        near, far = workers.endpoints
        with proxy_before(near) as to_near, proxy_before(far) as to_far:
            for each in (near, far):
                assign(each, 1, {near: (), through(to_far, far): (_TASK,)})
            eventually(lambda: _connected(near), 60)
            yield Deployment(
                near, far, to_near, to_far, worker_files, program_files, worker_tokens, program_token
            )
        assert workers.stop() == [0, 0]


def test_certificates_rotate(deployment: Deployment, authority: Authority) -> None:
    """Certificates of the same authority are replaced ten times; every connection is renewed after each."""
    with deployment.load() as feeder:
        for _ in range(10):
            feeder.goes_on()
            deployment.give(authority, authority)
    assert metric(deployment.near, "tuplewire_security_file_reload_errors_total") == 0


def test_authority_is_exchanged(deployment: Deployment, authority: Authority, tmp_path: Path) -> None:
    """The order of docs/how-to/secure.md: trust both, sign by the new authority, remove the old one."""
    old = files_of(authority.issue(PROGRAM), tmp_path / "old", WORKER, token_file=deployment.program_token)
    successor = Authority()
    with deployment.load() as feeder:
        for signed_by, trusted in (
            (authority, (authority, successor)),
            (successor, (authority, successor)),
            (successor, (successor,)),
        ):
            feeder.goes_on()
            deployment.give(signed_by, *trusted)
        feeder.goes_on()
    assert metric(deployment.near, "tuplewire_security_file_reload_errors_total") == 0
    assert not _gets_in(deployment, replace(old, tls_ca=str(deployment.program_files / "ca.crt")))


def test_tokens_rotate(deployment: Deployment, tmp_path: Path) -> None:
    """The order of docs/how-to/secure.md: workers accept both, programs switch, the old token is removed."""
    old = replace(Credentials.from_environment(), token_file=str(secret_file(tmp_path / "old", _token(0))))
    assert _gets_in(deployment, old)
    with deployment.load() as feeder:
        for version in range(1, 6):
            feeder.goes_on()
            deployment.worker_tokens.write_text(f"etl {_token(version - 1)}\netl {_token(version)}\n")
            deployment.cut()
            deployment.program_token.write_text(_token(version))
            deployment.cut()
            deployment.worker_tokens.write_text(f"etl {_token(version)}\n")
            deployment.cut()
    assert not _gets_in(deployment, old)


def _gets_in(deployment: Deployment, credentials: Credentials) -> bool:
    with ControlClient(deployment.near.address, credentials=credentials) as control:
        try:
            control.status()
        except TuplewireError:
            return False
    return True
