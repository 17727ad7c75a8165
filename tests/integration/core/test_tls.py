"""Mutual TLS: access by certificate, its rotation under load, and the checks of a client."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from helpers import eventually
from helpers.secured import Authority, Issued, denied, files_of, tls_flags
from helpers.topology import TOPOLOGY, metric, workers_with

from tuplewire import Client, Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import PermissionDeniedError, TuplewireError, UnreachableError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.wire import control_pb2
from tuplewire.wire.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.security.certificates import read_identity
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

WORKER = "worker.example"
_SECONDS = 60.0


class Cluster(NamedTuple):
    """Two workers with one certificate, and a program with another. near owns task 1, far owns task 2."""

    near: Endpoint
    far: Endpoint
    authority: Authority
    files: Path
    program: Credentials
    log: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the cluster; its addresses are not in the certificates."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    files = authority.issue(WORKER, "spiffe://test/worker").write(folder / "worker")
    program = files_of(authority.issue("etl.example"), folder / "program", WORKER)
    flags = [*tls_flags(files), "--tls-client-names=*.example", "--drain-seconds=1", "--log-format=json"]
    with workers_with([1, 10], [2, 20], flags=flags, directory=folder, credentials=program) as workers:
        near, far = workers.endpoints
        yield Cluster(near, far, authority, files, program, workers.log_path(0))
        left = []
        for each in (near, far):
            with ControlClient(each.unix_address) as control:
                left.append(bool(control.status().ledger.pending))
        assert workers.stop() == left


def _receive(endpoint: Endpoint, task: int, credentials: Credentials | None, count: int) -> list[bytes]:
    got: list[bytes] = []
    with (
        Client(endpoint.address, topology=TOPOLOGY, credentials=credentials) as client,
        client.recv([task], timeout=_SECONDS) as batches,
    ):
        for batch in batches:
            got += [message.message for message in batch]
            if len(got) >= count:
                return got
    return got


def _refused(cluster: Cluster, credentials: Credentials, error: type[TuplewireError]) -> str:
    """Check that a program is refused on the data plane and on the control plane; return the error text."""
    with (
        ControlClient(cluster.near.address, credentials=credentials) as control,
        pytest.raises(error) as told,
    ):
        control.status()
    client = Client(cluster.near.address, topology=TOPOLOGY, credentials=credentials)
    try:
        with pytest.raises(error), client.recv([10], timeout=0.3) as batches:
            next(batches)
    finally:
        client.close(0)
    return str(told.value)


def _strangers(cluster: Cluster, folder: Path) -> dict[str, tuple[Credentials, str]]:
    """Return unusable credentials for each case, with a part of the expected error."""
    anonymous = Credentials(tls_ca=cluster.program.tls_ca, tls_worker_names=(WORKER,))
    unknown = files_of(Authority().issue("etl.example"), folder / "unknown", WORKER)
    expired = cluster.authority.issue("etl.example", expires_in=-dt.timedelta(days=1))
    return {
        "plaintext": (Credentials(), "TUPLEWIRE_TLS_CA"),
        "no certificate": (anonymous, "TUPLEWIRE_TLS_CERTIFICATE"),
        "signed by somebody else": (replace(unknown, tls_ca=cluster.program.tls_ca), ""),
        "expired": (files_of(expired, folder / "expired", WORKER), "is it valid?"),
    }


@pytest.mark.parametrize("case", ["plaintext", "no certificate", "signed by somebody else", "expired"])
def test_strangers_are_refused(cluster: Cluster, tmp_path: Path, case: str) -> None:
    """A program is refused without a valid certificate, or if it cannot verify the worker's certificate."""
    credentials, told = _strangers(cluster, tmp_path)[case]
    assert told in _refused(cluster, credentials, UnreachableError)


def test_wrong_name_is_denied(cluster: Cluster, tmp_path: Path) -> None:
    """A certificate of the right CA with an unlisted name is denied with a reason, counted and logged."""
    other = cluster.authority.issue("etl.elsewhere.example")
    before = denied(cluster.near, "wrong_name")
    told = _refused(cluster, files_of(other, tmp_path / "other", WORKER), PermissionDeniedError)
    assert "etl.elsewhere.example" in told
    assert "tls_client_names" in told
    assert denied(cluster.near, "wrong_name") >= before + 2
    lines = [line for line in cluster.log.read_text(encoding="utf-8").splitlines() if "access.denied" in line]
    assert sum("etl.elsewhere.example" in line for line in lines) == 1


def test_client_refuses_a_stranger(cluster: Cluster) -> None:
    """A program refuses a server with a valid certificate that does not have a worker's name."""
    names = ("other.example", "*.elsewhere.example", "spiffe://test/other")
    told = _refused(cluster, replace(cluster.program, tls_worker_names=names), UnreachableError)
    assert "is not a worker of this cluster" in told


def test_workers_may_have_ipv6_addresses_as_names(tmp_path: Path) -> None:
    """Programs and workers compare an IPv6 address in a certificate with any form of the same address."""
    authority = Authority()
    files = authority.issue("fd00::a").write(tmp_path / "worker")
    program = files_of(authority.issue("etl.example"), tmp_path / "program", "FD00::0:a")
    flags = [*tls_flags(files), "--tls-client-names=*.example"]
    with WorkerProcesses(2, TOPOLOGY, flags=flags, credentials=program, drain_seconds=1) as workers:
        workers.assign({0: [1], 1: [2]})  # waits until the workers are connected
        near, far = workers.endpoints
        with Client(near.address, topology=TOPOLOGY, credentials=program) as client:
            client.send(2, b"a")
        assert _receive(far, 2, program, 1) == [b"a"]


def test_program_cannot_act_as_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    """A worker with a program's certificate is denied by the other workers and never connects to them."""
    files = cluster.authority.issue("etl.example").write(tmp_path / "impostor")
    flags = [*tls_flags(files), f"--tls-worker-names={WORKER}", "--worker-id=impostor"]
    before = denied(cluster.near, "not_a_worker")
    with WorkerProcesses(1, TOPOLOGY, flags=flags, drain_seconds=1) as impostor:
        address = impostor.endpoints[0].address
        near = AssignedWorker("worker-0", cluster.near.address, (1,))
        assignment = Assignment(9, TOPOLOGY, (near, AssignedWorker("impostor", address, (3,))))
        with ControlClient(impostor.endpoints[0].unix_address, credentials=Credentials()) as control:
            control.update_assignment(assignment_to_wire(assignment))
            eventually(lambda: denied(cluster.near, "not_a_worker") > before, _SECONDS)
            assert not any(peer.connected for peer in control.status().peers)


def test_certificates_rotate_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """Certificates change under load, once to an invalid one: all messages arrive once, in order."""
    authority = cluster.authority
    program = files_of(authority.issue("etl.example"), tmp_path / "rotating", WORKER)
    count, rounds = 300, 6
    got: list[bytes] = []
    receiver = threading.Thread(target=lambda: got.extend(_receive(cluster.far, 20, program, count * rounds)))
    receiver.start()
    expiry = "tuplewire_certificate_expiry_timestamp_seconds"
    with Client(cluster.near.address, topology=TOPOLOGY, credentials=program) as client:
        for turn in range(rounds):
            for number in range(count):
                client.send(20, b"%d" % (turn * count + number))
            fresh = authority.issue(WORKER, "spiffe://test/worker", expires_in=dt.timedelta(days=2 + turn))
            fresh.write(cluster.files)
            authority.issue("etl.example").write(tmp_path / "rotating")
            after = metric(cluster.near, expiry)
            assert after == pytest.approx(time.time() + (2 + turn) * 86_400, abs=600)
            # A new connection requires the worker's new certificate.
            with ControlClient(cluster.near.address, credentials=program) as control:
                assert control.status().worker_id == "worker-0"
        # The worker keeps a valid certificate until another valid one is there.
        replace(fresh, key=authority.issue(WORKER).key).write(cluster.files)
        errors = "tuplewire_security_file_reload_errors_total"
        eventually(lambda: metric(cluster.near, errors) == 1, _SECONDS)
        with ControlClient(cluster.near.address, credentials=program) as control:
            assert control.status().worker_id == "worker-0"
        fresh.write(cluster.files)
        client.flush(_SECONDS)
    receiver.join(_SECONDS)
    assert got == [b"%d" % number for number in range(count * rounds)]


URI = "spiffe://test/worker"


class _Control(ControlServicer):
    def GetStatus(self, _request: object, _context: object) -> control_pb2.GetStatusResponse:  # noqa: N802
        return control_pb2.GetStatusResponse(worker_id="somebody")


@contextmanager
def _server(*handshakes: Issued) -> Iterator[str]:
    """Run a server that presents these certificates, one at each handshake, and repeats the last one."""
    configurations = [
        grpc.ssl_server_certificate_configuration([(each.key, each.certificate)], each.ca)
        for each in handshakes
    ]
    coming = iter([None, *configurations[1:]])
    credentials = grpc.dynamic_ssl_server_credentials(
        configurations[0],
        lambda: next(coming, None),  # type: ignore[arg-type,return-value]  # the stub does not allow None
        require_client_authentication=True,
    )
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_ControlServicer_to_server(_Control(), server)  # type: ignore[no-untyped-call]
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(60)


def test_certificates_may_have_an_authority_between(tmp_path: Path) -> None:
    """Both sides present the chain up to the root, as cert-manager writes it; a URI may identify a worker."""
    between = Authority(Authority())
    program = files_of(between.issue("etl.example"), tmp_path / "program", URI)
    worker = between.issue("localhost", URI)
    assert read_identity(files_of(worker, tmp_path / "worker")).names == ("localhost", URI)
    with _server(worker) as address, ControlClient(address, credentials=program) as control:
        assert control.status().worker_id == "somebody"


def test_a_missing_worker_has_the_same_advice_with_tls(tmp_path: Path) -> None:
    """Without a worker, the error of the handshake has the same advice as the one of a call."""
    program = files_of(Authority().issue("etl.example"), tmp_path, "worker.example")
    with (
        ControlClient("localhost:1", credentials=program) as control,
        pytest.raises(UnreachableError, match="Connection refused; start a worker there"),
    ):
        control.status()


@pytest.mark.parametrize(
    ("names", "advice"),
    [(("worker.example",), "the port has no TLS: unset tls_ca"), ((), "does the worker use TLS")],
    ids=["names listed", "host"],
)
def test_a_port_without_tls_has_its_advice(tmp_path: Path, names: tuple[str, ...], advice: str) -> None:
    """At a worker without TLS, the error of a client with TLS names the next step."""
    program = files_of(Authority().issue("etl.example"), tmp_path, *names)
    with (
        workers_with([1]) as workers,
        ControlClient(workers.endpoints[0].address, credentials=program) as control,
        pytest.raises(UnreachableError, match=f"WRONG_VERSION_NUMBER.*; {advice}"),
    ):
        control.status()


def test_channel_takes_the_certificate_that_was_checked(tmp_path: Path) -> None:
    """A server with another certificate than the checked one is refused, although the same CA signed it."""
    authority = Authority()
    program = files_of(authority.issue("etl.example"), tmp_path, URI)
    true, other = authority.issue("localhost", URI), authority.issue("localhost")
    with (
        _server(true, other) as address,
        ControlClient(address, credentials=program) as control,
        pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        control.status()


@pytest.mark.parametrize(
    ("issued", "names", "ours", "problem"),
    [
        # This certificate would be valid, but gRPC for Python cannot use it.
        ((URI,), (URI,), True, "issue it with a DNS name"),
        # If no names are configured, the certificate must contain the name of the host.
        (("elsewhere.example",), (), True, "TUPLEWIRE_TLS_WORKER_NAMES"),
        (("localhost", URI), (), False, r"TUPLEWIRE_TLS_CA.*signed the worker's certificate"),
        (("localhost", URI), (URI,), False, r"TUPLEWIRE_TLS_CA.*signed the worker's certificate"),
    ],
    ids=["only a URI", "another host", "another CA", "another CA, listed"],
)
def test_what_to_look_at_is_told(
    tmp_path: Path, issued: tuple[str, ...], names: tuple[str, ...], problem: str, *, ours: bool
) -> None:
    """An error about an untrusted worker names the settings to check."""
    authority = Authority()
    program = files_of((authority if ours else Authority()).issue("etl.example"), tmp_path, *names)
    with (
        _server(authority.issue(*issued)) as address,
        ControlClient(address, credentials=program) as control,
        pytest.raises(UnreachableError, match=problem),
    ):
        control.status()
