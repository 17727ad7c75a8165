"""Clients verify that they connect to a worker, and to the worker with the certificate they checked."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from helpers.certificates import Authority, Issued
from helpers.secured import files_of

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
from tuplewire.wire import control_pb2
from tuplewire.wire.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from tuplewire_service.security.certificates import read_identity

WORKER = "spiffe://test/worker"


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
    """Both sides trust the root and present the chain up to it, as cert-manager writes it to tls.crt.

    A URI can identify a worker, although gRPC for Python cannot compare URIs itself.
    """
    root = Authority()
    between = Authority(root)
    program = files_of(between.issue("etl.example"), tmp_path / "program", WORKER)
    worker = between.issue("localhost", WORKER)
    assert read_identity(files_of(worker, tmp_path / "worker")).names == ("localhost", WORKER)
    with _server(worker) as address, ControlClient(address, credentials=program) as control:
        assert control.status().worker_id == "somebody"


def test_channel_takes_the_certificate_that_was_checked(tmp_path: Path) -> None:
    """A server with another certificate than the checked one is refused, although the same CA signed it."""
    authority = Authority()
    program = files_of(authority.issue("etl.example"), tmp_path, WORKER)
    true, other = authority.issue("localhost", WORKER), authority.issue("localhost")
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
        ((WORKER,), (WORKER,), True, "have a DNS name signed in"),
        # If no names are configured, the certificate must contain the name of the host.
        (("elsewhere.example",), (), True, "TUPLEWIRE_TLS_WORKER_NAMES"),
        (("localhost", WORKER), (), False, r"TUPLEWIRE_TLS_CA.*signed the worker's certificate"),
        (("localhost", WORKER), (WORKER,), False, r"TUPLEWIRE_TLS_CA.*signed the worker's certificate"),
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
