"""Faults on purpose at a real worker: pipelines get over them, and nobody has them by accident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import eventually
from helpers.secured import secret_file
from helpers.topology import collect, ledger, metric, numbered, numbers
from helpers.worker_process import run_command, running

from tuplewire import Client, Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import PermissionDeniedError, ProtocolError, UnreachableError
from tuplewire_service.launching.local_workers import Endpoint, LocalWorkers

SECONDS = 60.0


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Endpoint, Path]]:
    """Run a worker that allows faults, with tasks 0 to 99."""
    with LocalWorkers(1, "test", flags=["--allow-faults", "--drain-seconds=1"]) as workers:
        workers.assign({0: range(100)}, SECONDS)
        (endpoint,) = workers.endpoints
        yield endpoint, workers.log_of(0)
        assert ledger(endpoint).balanced


@pytest.fixture
def worker(workers: tuple[Endpoint, Path]) -> Iterator[Endpoint]:
    """Give it without faults, and leave it so."""
    endpoint, _ = workers
    yield endpoint
    with ControlClient(endpoint.address) as control:
        control.set_faults()


def faults(endpoint: Endpoint, kind: str) -> float:
    """Return how many messages had a fault."""
    return metric(endpoint, f'tuplewire_faults_total{{kind="{kind}"}}')


def client_of(endpoint: Endpoint, client_id: str | None = None) -> Client:
    """Return a client."""
    return Client(endpoint.address, topology="test", client_id=client_id)


def test_messages_come_once_and_in_order_all_the_same(worker: Endpoint) -> None:
    """Frames are lost, doubled and cut off until each has happened; sender and consumer get over it."""
    kinds = ("lost", "doubled", "cut", "delayed")
    before = {kind: faults(worker, kind) for kind in kinds}
    with (
        ControlClient(worker.address) as control,
        client_of(worker) as sender,
        client_of(worker) as consumer,
        consumer.recv([1], timeout=SECONDS) as subscription,
    ):
        control.set_faults("lose=0.05 double=0.2 cut=0.05 delay=0.001 method=Send; cut=0.02 method=Recv", 600)
        sent = 0
        while sent < 1000 or any(faults(worker, kind) == before[kind] for kind in kinds):
            for _ in range(50):
                sender.send(numbered(1, range(sent, sent + 5)))
                sender.flush(SECONDS)
                sent += 5
        assert numbers(collect(subscription, sent)) == list(range(sent))
        control.set_faults()
        assert metric(worker, "tuplewire_fault_rules") == 0
        assert sender.ledger().acknowledged == sent


def test_a_rule_means_a_peer(worker: Endpoint) -> None:
    """Others do not notice: a peer goes by the id that it has said."""
    with (
        ControlClient(worker.address) as control,
        client_of(worker, "shop-1") as shop,
        client_of(worker, "bank") as bank,
    ):
        control.set_faults("delay=0.001 method=Send peer=shop*", 600)
        before = faults(worker, "delayed")
        bank.send(2, b"message")
        bank.flush(SECONDS)
        assert faults(worker, "delayed") == before
        shop.send(2, b"message")
        shop.flush(SECONDS)
        assert faults(worker, "delayed") > before


def test_a_method_fails_and_faults_can_be_ended(worker: Endpoint) -> None:
    """A call is cut off; the one that ends all faults never is, nor are probes."""
    with ControlClient(worker.address) as control:
        control.set_faults("cut=1", 600)
        with pytest.raises(UnreachableError, match="a fault on purpose"):
            control.status()
        control.wait_ready(SECONDS)
        control.set_faults()
        assert control.status().worker_id
        control.set_faults("lose=1 method=GetL*", 600)
        assert control.status().worker_id
        with pytest.raises(UnreachableError, match="a fault on purpose"):
            control.load()


def test_the_command_and_the_end_of_its_time(workers: tuple[Endpoint, Path], worker: Endpoint) -> None:
    """Words on the command line; after the time they are over, and the log has both."""
    ran = run_command("faults", worker.address, "slow=1000000", "method=Send", "--for", "1")
    assert (ran.returncode, ran.stdout) == (0, f"{worker.address} has faults for 1 s\n")
    log = workers[1]
    eventually(lambda: "faults.over" in log.read_text(encoding="utf-8"), SECONDS)
    assert 'faults.changed rules="slow=1000000 method=Send" seconds=1.0' in log.read_text(encoding="utf-8")
    assert metric(worker, "tuplewire_fault_rules") == 0
    ran = run_command("faults", worker.address, "lose=2")
    assert ran.returncode == 1
    assert "lose is a number from 0 to 1" in ran.stderr
    with ControlClient(worker.address) as control, pytest.raises(ProtocolError, match="faults last over 0"):
        control.set_faults("lose=1", 0)


def test_no_worker_has_them_by_accident(tmp_path: Path) -> None:
    """Without the setting the command is refused, and with rules it takes a right of its own."""
    with running(tmp_path, "--tasks=0-9") as plain, ControlClient(plain.address) as control:
        with pytest.raises(PermissionDeniedError, match="start it with --allow-faults"):
            control.set_faults("lose=1", 60)
        assert "tuplewire_fault_rules 0.0" in plain.get("/metrics")[1]
    ran = run_command("worker", "--faults", "lose=1")
    assert ran.returncode == 64
    assert "faults need allow_faults" in ran.stderr


def test_a_right_of_its_own(tmp_path: Path) -> None:
    """Who may drain a worker may not break its streams."""
    rules = tmp_path / "permissions.toml"
    rules.write_text(
        '[[client]]\ntokens = ["tester"]\ncontrol = ["assign", "faults"]\n\n'
        '[[client]]\ntokens = ["etl"]\ncontrol = ["drain"]\n',
        encoding="utf-8",
    )
    lines = {name: f"{name} {name}-{'0' * 20}" for name in ("tester", "etl")}
    tokens = secret_file(tmp_path / "tokens", "\n".join(lines.values()))
    tester, etl = (
        Credentials(token_file=str(secret_file(tmp_path / name, line))) for name, line in lines.items()
    )
    flags = [f"--token-file={tokens}", f"--permissions-file={rules}", "--allow-faults"]
    with LocalWorkers(1, "test", flags=flags, directory=tmp_path, credentials=tester) as workers:
        (worker,) = workers.endpoints
        with (
            ControlClient(worker.address, credentials=etl) as control,
            pytest.raises(PermissionDeniedError, match="may not call SetFaults: that takes 'faults'"),
        ):
            control.set_faults("lose=1", 60)
        with ControlClient(worker.address, credentials=tester) as control:
            control.set_faults("delay=0.001", 60)
            control.set_faults()
