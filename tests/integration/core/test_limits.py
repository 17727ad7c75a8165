"""Limits that apply before authentication, and connections that end soon after access is revoked."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from helpers import eventually
from helpers.hostile import OPTIONS, RECV, SEND, Answer, answer_of
from helpers.http2 import OPENING, RST_STREAM, call_headers, connected
from helpers.limited import limited_workers
from helpers.memory import MIB, rss
from helpers.secured import Authority, denied, files_of, secret_file, tls_flags
from helpers.topology import TOPOLOGY, collect, metric, numbered, numbers, workers_with
from helpers.traffic import Feeder, Reader, deliver

from tuplewire import Client, Credentials
from tuplewire.connection.channels import read_tls
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.messaging.grpc.grpc_transport import GrpcContext, GrpcOptions
from tuplewire_service.security.certificates import Certificates

_SECONDS = 60.0
_NAME = "worker.example"
TOKEN = "right-" + "0" * 20
NOTHING = Credentials()
STATUS = "/tuplewire.v1.Control/GetStatus"


@contextlib.contextmanager
def _worker(
    directory: Path,
    *flags: str,
    credentials: Credentials = NOTHING,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[WorkerProcesses]:
    """Run one worker with task 1. `limits` replaces the values of constants."""
    with (
        limited_workers(limits),
        workers_with(
            [1], flags=flags, directory=directory, drain_seconds=1, credentials=credentials
        ) as workers,
    ):
        yield workers


def _token(directory: Path) -> tuple[Path, Credentials]:
    """Return a worker's token file, and the credentials of a program."""
    return secret_file(directory / "tokens", f"etl {TOKEN}\n"), Credentials(
        token_file=str(secret_file(directory / "mine", TOKEN))
    )


def _serves(address: str, credentials: Credentials = NOTHING) -> None:
    """Check that a program can send and receive."""
    with (
        Client(address, topology=TOPOLOGY, credentials=credentials) as client,
        client.recv([1], timeout=_SECONDS) as subscription,
    ):
        client.send(numbered(1, range(10)))
        assert numbers(collect(subscription, 10)) == list(range(10))


def _refused(endpoint: Endpoint, code: str) -> float:
    return metric(endpoint, f'tuplewire_refused_streams_total{{code="{code}"}}')


def _silent(endpoint: Endpoint) -> float:
    return metric(endpoint, "tuplewire_silent_streams")


def _flood(connection: socket.socket, streams: int) -> None:
    """Open streams that send no request."""
    for number in range(streams):
        connection.sendall(call_headers(1 + 2 * number, SEND.encode()))


@contextlib.contextmanager
def _silent_call(address: str, method: str) -> Iterator[Any]:
    """Start a call that sends no request until the block ends."""
    words: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        stub: Any = channel.stream_stream(method)
        try:
            yield stub(iter(words.get, None), timeout=_SECONDS)
        finally:
            words.put(None)


def _end(call: Any) -> Answer:
    with contextlib.suppress(grpc.RpcError):
        next(call)
    return answer_of(call, [])


def _ends(connection: socket.socket) -> bool:
    """Return True when the other side ends the connection; raise TimeoutError if it does not."""
    connection.settimeout(_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def test_pending_handshakes_are_bounded(tmp_path: Path) -> None:
    """The oldest of too many silent streams ends with a named error and advice; programs can connect."""
    with _worker(tmp_path, limits={"MAX_PENDING_HANDSHAKES": 50, "HANDSHAKE_SECONDS": _SECONDS}) as workers:
        endpoint = workers.endpoints[0]
        with _silent_call(endpoint.address, RECV) as first, connected(endpoint.address) as connection:
            eventually(lambda: _silent(endpoint) == 1, _SECONDS)
            connection.sendall(OPENING)
            _flood(connection, 500)
            eventually(lambda: _refused(endpoint, "RESOURCE_LIMIT") == 451, _SECONDS)
            assert _silent(endpoint) == 50
            answer = _end(first)
            assert (answer.status, answer.error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_LIMIT")
            assert "send the subscribe immediately" in answer.details
            _serves(endpoint.address)
        eventually(lambda: _silent(endpoint) == 0, _SECONDS)
        assert workers.log_path(0).read_text(encoding="utf-8").count("stream.refused") == 1


def test_streams_of_a_connection_are_bounded(tmp_path: Path) -> None:
    """Streams over the limit are reset by gRPC, before Tuplewire's code sees them."""
    with _worker(tmp_path, limits={"_MAX_CONNECTION_STREAMS": 20, "HANDSHAKE_SECONDS": _SECONDS}) as workers:
        endpoint = workers.endpoints[0]
        with connected(endpoint.address) as connection:
            connection.sendall(OPENING)
            _flood(connection, 100)
            resets = 0
            with connection.makefile("rb") as read:
                while resets < 80:
                    head = read.read(9)
                    read.read(int.from_bytes(head[:3], "big"))
                    resets += head[3] == RST_STREAM
            eventually(lambda: _silent(endpoint) == 20, _SECONDS)
            _serves(endpoint.address)


def test_connections_to_an_address_are_bounded(tmp_path: Path) -> None:
    """Connections over the limit are closed; the Unix socket has a separate limit; closing frees capacity."""
    with _worker(tmp_path, "--max-connections=20", limits={"HANDSHAKE_SECONDS": _SECONDS}) as workers:
        endpoint = workers.endpoints[0]
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connected(endpoint.address)) for _ in range(60)]
            assert len([each for each in connections[20:] if _ends(each)]) == 40
            assert all(each.recv(9) for each in connections[:5])  # the server's settings
            _serves(endpoint.unix_address)
        eventually(lambda: _takes(endpoint.address), _SECONDS)
        _serves(endpoint.address)


def _takes(address: str) -> bool:
    with connected(address) as connection:
        try:
            return bool(connection.recv(9))
        except ConnectionResetError:
            return False


def test_connections_that_say_nothing_end(tmp_path: Path) -> None:
    """A connection without a handshake ends, with and without TLS; so does one that opens no stream."""
    for flags in ([], tls_flags(Authority().issue(_NAME).write(tmp_path / "files"))):
        directory = tmp_path / str(len(flags))
        directory.mkdir()
        with (
            limited_workers({"HANDSHAKE_SECONDS": 0.5, "_IDLE_CONNECTION_SECONDS": 0.5}),
            WorkerProcesses(
                1,
                TOPOLOGY,
                flags=flags,
                directory=directory,
                credentials=files_of(Authority().issue("x.example"), tmp_path / "mine") if flags else NOTHING,
            ) as workers,
        ):
            endpoint = workers.endpoints[0]
            with connected(endpoint.address) as silent, connected(endpoint.unix_address) as idle:
                idle.sendall(OPENING)
                assert _ends(silent)
                assert _ends(idle)


def test_calls_without_a_request_end(tmp_path: Path) -> None:
    """Streams and unary calls without a request end after a timeout, in Messaging, Control and Health."""
    with _worker(tmp_path, limits={"HANDSHAKE_SECONDS": 0.5}) as workers:
        endpoint = workers.endpoints[0]
        for method in (SEND, RECV, STATUS, "/grpc.health.v1.Health/Check"):
            with _silent_call(endpoint.address, method) as call:
                answer = _end(call)
            assert (answer.status, answer.error) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED"), method
            assert "within 0.5 s" in answer.details
        assert _silent(endpoint) == 0


def test_without_a_token_nothing_is_read(tmp_path: Path) -> None:
    """Streams without a token are refused before their first request, and their memory is bounded."""
    tokens, credentials = _token(tmp_path)
    limits = {"HANDSHAKE_SECONDS": _SECONDS}
    with _worker(tmp_path, f"--token-file={tokens}", credentials=credentials, limits=limits) as workers:
        endpoint = workers.endpoints[0]
        assert endpoint.process_id is not None
        for method in (SEND, RECV, STATUS):
            with _silent_call(endpoint.address, method) as call:
                assert _end(call).status is grpc.StatusCode.UNAUTHENTICATED, method
        before, streams = rss(endpoint.process_id), 900
        with contextlib.ExitStack() as stack:
            for number in range(10):
                connection = stack.enter_context(connected(endpoint.address, _SECONDS))
                connection.sendall(OPENING)
                _flood(connection, streams)
                eventually(
                    lambda number=number: denied(endpoint, "no_token") == 3 + (number + 1) * streams,  # type: ignore[misc]
                    _SECONDS,
                )
            assert _silent(endpoint) == 0
            _serves(endpoint.address, credentials)
            grown = (rss(endpoint.process_id) - before) / MIB
        assert grown < 60, f"{grown:.0f} MiB for {10 * streams} streams"
        assert workers.log_path(0).read_text(encoding="utf-8").count("access.denied") == 1


def test_token_that_is_taken_away_ends_streams(tmp_path: Path) -> None:
    """A revoked token ends streams within seconds; with a valid token, they resume without loss."""
    tokens, credentials = _token(tmp_path)
    with _worker(tmp_path, f"--token-file={tokens}", credentials=credentials) as workers:
        endpoint = workers.endpoints[0]
        with (
            Client(endpoint.address, topology=TOPOLOGY, credentials=credentials) as client,
            client.recv([1], timeout=_SECONDS) as subscription,
        ):
            client.send(numbered(1, range(100)))
            assert numbers(collect(subscription, 100)) == list(range(100))
            tokens.write_text("etl another-" + "1" * 20, encoding="utf-8")
            eventually(lambda: _refused(endpoint, "UNAUTHENTICATED") >= 2, _SECONDS)
            client.send(numbered(1, range(100, 200)))
            eventually(lambda: denied(endpoint, "wrong_token") >= 6, _SECONDS)  # both retry, without success
            assert metric(endpoint, 'tuplewire_queue_subscribed{task="1"}') == 0
            assert metric(endpoint, 'tuplewire_received_messages_total{source="client"}') == 100
            tokens.write_text(f"etl {TOKEN}", encoding="utf-8")
            assert numbers(collect(subscription, 100)) == list(range(100, 200))
            client.flush(_SECONDS)
            assert client.ledger().acknowledged == 200


@pytest.mark.slow
def test_connections_are_made_again_under_load(tmp_path: Path) -> None:
    """With a maximum age, connections are made repeatedly: all arrives once (or is marked), in order."""
    files = Authority()
    worker = files.issue(_NAME).write(tmp_path / "worker")
    credentials = files_of(files.issue("etl.example"), tmp_path / "program", _NAME)
    flags = [*tls_flags(worker), "--max-connection-age-seconds=0.5"]
    with workers_with(
        [1], [2], flags=flags, directory=tmp_path, drain_seconds=1, credentials=credentials
    ) as workers:
        near, far = workers.endpoints
        with (
            Client(near.address, topology=TOPOLOGY, credentials=credentials) as sender,
            Client(far.address, topology=TOPOLOGY, credentials=credentials) as receiver,
            receiver.recv([2], timeout=1.0) as subscription,
            Reader(subscription) as reader,
        ):
            with Feeder(sender, 2) as feeder:
                reconnects = 'tuplewire_reconnects_total{peer="worker-1"}'
                eventually(lambda: metric(near, reconnects) >= 4, 2 * _SECONDS)
            sender.flush(_SECONDS)
            reader.has(feeder.sent)
            assert sender._sender is not None
            assert sender._sender.counts.connections >= 4
        assert [int(payload) for _, payload in reader.got] == list(range(feeder.sent))


def test_certificate_that_is_taken_away_ends_streams(tmp_path: Path) -> None:
    """If its CA is removed, a session ends at the maximum connection age; if it is restored, it resumes."""
    ours, theirs = Authority(), Authority()
    issued = ours.issue(_NAME)
    both = replace(issued, ca=ours.pem + theirs.pem)
    worker = both.write(tmp_path / "worker")
    program = files_of(replace(theirs.issue("etl.example"), ca=ours.pem), tmp_path / "program", _NAME)
    with _worker(
        tmp_path, *tls_flags(worker), "--max-connection-age-seconds=0.5", credentials=program
    ) as workers:
        endpoint = workers.endpoints[0]
        with Client(endpoint.address, topology=TOPOLOGY, credentials=program) as client:
            deliver(client, 1, b"before")
            issued.write(worker)
            connected_now = 'tuplewire_senders{state="connected"}'
            eventually(lambda: metric(endpoint, connected_now) == 0, _SECONDS)
            client.send(1, b"after")
            both.write(worker)
            client.flush(_SECONDS)
            assert client.ledger().acknowledged == 2


def test_tls_handshakes_are_counted(tmp_path: Path) -> None:
    """Failed TLS handshakes are counted, too; a connection is counted once it has carried a call."""
    authority = Authority()
    files = authority.issue(_NAME).write(tmp_path / "worker")
    credentials = files_of(authority.issue("etl.example"), tmp_path / "program", _NAME)
    with _worker(tmp_path, *tls_flags(files), credentials=credentials) as workers:
        endpoint = workers.endpoints[0]
        begun = metric(endpoint, "tuplewire_tls_handshakes_total")
        calls = metric(endpoint, "tuplewire_tls_connections_total")
        for _ in range(5):
            with connected(endpoint.address) as connection:
                connection.sendall(b"this is no TLS" * 10)
                assert _ends(connection)
        assert metric(endpoint, "tuplewire_tls_handshakes_total") == begun + 5
        assert metric(endpoint, "tuplewire_tls_connections_total") == calls
        _serves(endpoint.address, credentials)
        assert metric(endpoint, "tuplewire_tls_connections_total") == calls + 2
        assert metric(endpoint, "tuplewire_tls_handshakes_total") == begun + 9


def test_certificate_is_looked_at_in_spite_of_tickets(tmp_path: Path) -> None:
    """A TLS session can be resumed for a minute; then a handshake with a certificate is required again."""
    authority = Authority()
    worker = files_of(authority.issue(_NAME), tmp_path / "worker")
    program = files_of(authority.issue("etl.example"), tmp_path / "program")
    now = 1000.0
    certificates = Certificates(worker, lambda: now)
    context = read_tls(program).context
    wiring = GrpcOptions(tls=certificates.server_credentials())
    with closing(GrpcContext(options=wiring).bind(TOPOLOGY, 0)) as server:
        address = server.addresses[0]
        first, _ = _tls(address, context, None)
        again, resumed = _tls(address, context, first)
        assert resumed
        now += 60.0
        assert not _tls(address, context, first)[1]
        assert not _tls(address, context, again)[1]


def _tls(
    address: str, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool]:
    """Make a handshake; return its session with the ticket, and True if it resumed a session."""
    with context.wrap_socket(connected(address), session=session) as secured:
        secured.sendall(OPENING)
        assert secured.recv(9)
        return secured.session, bool(secured.session_reused)
