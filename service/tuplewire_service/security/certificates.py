"""A worker's certificate, verified before use and replaced during connections, and counts of TLS handshakes.

Used by process/worker_security.py. Owns the current certificate and the handshake counts. Thread-safe.
Exceptions: Handshakes.record_call() and report(). Design: docs/design/identity.md.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from tuplewire.connection.channels import TlsMaterial, certificate_names, load_key_pair, read_tls
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.identity.files import WatchedFiles
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_TICKET_SECONDS = 60.0
_REPORT_SECONDS = 60.0
_MAX_PEERS = 10_000


@dataclass(frozen=True, slots=True)
class CertifiedIdentity:
    """A certificate that matches its key, is signed by the CA, and is valid now.

    `names` are the subject alternative names. `expires_at` is in seconds since 1970.
    """

    names: tuple[str, ...]
    expires_at: float
    tls: TlsMaterial = field(repr=False)


class Handshakes:
    """Counts TLS handshakes, and logs once a minute if many failed; gRPC reports nothing else about them.

    Workers, and programs that list worker names, check the certificate in a separate handshake before they
    connect. Two handshakes for each connection are therefore normal.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = 0
        """Includes failed handshakes, and handshakes in progress."""
        self.connections = 0
        """Connections with at least one call. Too low by connections that reuse an earlier port."""
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[str, None] = {}
        self._reported_at = clock()
        self._reported = (0, 0)

    def count_start(self) -> None:
        """Count a handshake. Thread-safe."""
        with self._lock:
            self.started += 1

    def record_call(self, peer: str) -> None:
        """Record a call from ADDRESS:PORT over TLS."""
        if peer not in self._peers:
            if len(self._peers) >= _MAX_PEERS:
                del self._peers[next(iter(self._peers))]
            self._peers[peer] = None
            self.connections += 1

    def report(self) -> None:
        """Log a warning once a minute if too many handshakes failed."""
        if self._clock() - self._reported_at < _REPORT_SECONDS:
            return
        started, connections = self.started - self._reported[0], self.connections - self._reported[1]
        self._reported_at, self._reported = self._clock(), (self.started, self.connections)
        if started > 2 * connections:
            logger.warning("tls.handshakes_unused", extra={"handshakes": started, "connections": connections})


class Certificates(WatchedFiles[CertifiedIdentity]):
    """The worker's TLS identity, reread when its files change. Thread-safe."""

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files. Raises ConfigError if they are not usable."""
        super().__init__(credentials.tls_files, lambda: read_identity(credentials))
        self._clock = clock
        self._served = self.get()
        self._served_since = clock()
        self.handshakes = Handshakes()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials of a server that requires each client to have a certificate by a CA of `tls_ca`.

        Open connections keep their certificate when the files change; new connections get the new one.
        """
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._served),
            self._new_configuration,  # type: ignore[arg-type]  # the stub knows no None, which gRPC documents
            require_client_authentication=True,
        )

    def _new_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None if it is unchanged. gRPC calls this at every handshake.

        An unchanged one is replaced after a minute, to discard its ticket keys. With a ticket, a client could
        resume its TLS session for hours without a check of its certificate.
        """
        self.handshakes.count_start()
        identity, now = self.get(), self._clock()
        if identity is self._served and now - self._served_since < _TICKET_SECONDS:
            return None
        self._served, self._served_since = identity, now
        return _configuration(identity)


def _configuration(identity: CertifiedIdentity) -> grpc.ServerCertificateConfiguration:
    tls = identity.tls
    assert tls.key is not None  # noqa: S101 - checked by the configuration
    assert tls.certificate is not None  # noqa: S101
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], root_certificates=tls.ca)


def read_identity(credentials: Credentials) -> CertifiedIdentity:
    """Read the files of a worker, and test its certificate in a handshake with itself, as server and client.

    Raises ConfigError if workers would reject it: wrong key, another CA, expired, or not for both sides.
    """
    tls = read_tls(credentials)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=tls.ca.decode("ascii"))
    load_key_pair(server, credentials)
    try:
        certificate = _handshake_in_memory(tls.context, server)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{credentials.tls_certificate} cannot be used: {error.verify_message}; it must be valid now, "
            f"signed by one of {credentials.tls_ca}, and for clients as well as servers"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(f"{credentials.tls_certificate} cannot be used: {error}") from error
    names = tuple(certificate_names(certificate))
    if not names:
        raise ConfigError(
            f"{credentials.tls_certificate} has no subject alternative name, by which others know a worker: "
            "have it signed with one"
        )
    return CertifiedIdentity(names, ssl.cert_time_to_seconds(certificate["notAfter"]), tls)


def _handshake_in_memory(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> dict[str, Any]:
    """Make a connection within this process, and return the certificate that the client received."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_side=False)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return client.getpeercert() or {}
