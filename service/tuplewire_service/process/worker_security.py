"""The security of a worker process: its certificate, token and permission files, applied to gRPC's calls.

Used by worker_runtime.py. Owns the watched files and the guard. Call only from the event loop. Exception:
the constructor, grpc_options() and collect(). Design: docs/design/identity.md.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.connection.channels import ChannelFactory
from tuplewire.identity.files import AUTHORIZATION_KEY, WatchedFiles, read_tokens
from tuplewire.text.events import event_logger
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.grpc.grpc_transport import Call, GrpcOptions
from tuplewire_service.metrics.families import counter, counter_by, gauge
from tuplewire_service.security.certificates import Certificates
from tuplewire_service.security.guard import DENIAL_REASONS, Access, Caller, Guard
from tuplewire_service.security.permissions import read_rules

logger = event_logger(__name__)

_Content = TypeVar("_Content")
_HEALTH_PREFIX = "/grpc.health.v1."  # open to all: probes have no token, and learn only if a worker is ready
_POLL_SECONDS = 1.0


class Security(Collector):
    """The security of one worker, with its metrics."""

    def __init__(self, config: WorkerConfig) -> None:
        """Read all files. Raise ConfigError if one is invalid."""
        credentials = config.credentials()
        self._certificates = None if credentials.tls_ca is None else Certificates(credentials)
        self._files: list[WatchedFiles[Any]] = [self._certificates] if self._certificates else []
        certificates = self._certificates
        names = config.tls_worker_names  # default: the names in this worker's certificate
        self.guard = Guard(
            topology=config.topology,
            uses_tls=certificates is not None,
            worker_names=lambda: names or (certificates.get().names if certificates else ()),
            client_names=config.tls_client_names,
            tokens=self._add_file(config.token_file, read_tokens),
            read_rules=self._add_file(config.permissions_file, read_rules),
        )
        self.channel_factory = ChannelFactory(
            credentials,
            tls=None if certificates is None else lambda: certificates.get().tls,
            worker_names=None if certificates is None else self.guard.worker_names,
        )
        for file in (config.tls_key, config.token_file):
            if file is not None and Path(file).stat().st_mode & stat.S_IROTH:
                advice = "chmod o-r, or defaultMode 0440 and an fsGroup for a Secret"
                logger.warning("secret.readable_by_all", extra={"path": file, "advice": advice})

    def _add_file(self, file: str | None, read: Callable[[Path], _Content]) -> Callable[[], _Content] | None:
        """Return a function for a file's content; None without a file. Raise ConfigError if it is invalid."""
        if file is None:
            return None
        path = Path(file)
        watched = WatchedFiles([path], lambda: read(path))
        watched.get()  # fails at the start if the file is invalid
        self._files.append(watched)
        return watched.get

    def grpc_options(self, services: Sequence[grpc.GenericRpcHandler], socket_mode: int) -> GrpcOptions:
        """Return the settings of the programs' transport, with the services that it adds to Messaging."""
        return GrpcOptions(
            services=services,
            tls=self._certificates.server_credentials() if self._certificates else None,
            admit=self.admit,
            channel_factory=self.channel_factory,
            socket_mode=socket_mode,
        )

    def admit(self, context: Call) -> Access:
        """Return the rights of a method's caller. Raise RefusedError if it is not admitted."""
        auth, peer = context.auth_context(), context.peer()
        tls = b"ssl" in auth.get("transport_security_type", ())
        names = [name.decode(errors="replace") for name in auth.get("x509_subject_alternative_name", ())]
        found = [str(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION_KEY]
        if tls and self._certificates is not None:
            self._certificates.handshakes.record_call(peer)  # its handshake succeeded
        caller = Caller(peer, tuple(names) if tls else (), tls, found[0] if found else None)
        return self.guard.admit(caller)

    def check_call(self, context: Call, method: str) -> None:
        """Raise RefusedError if the caller may not call /SERVICE/METHOD."""
        if not method.startswith(_HEALTH_PREFIX):
            self.admit(context).check_control(method.rpartition("/")[2])

    async def watch(self) -> None:
        """Check the files every second until cancelled, to apply changes and log problems soon."""
        while True:
            for file in self._files:
                file.get()
            self.guard.refresh()
            if self._certificates is not None:
                self._certificates.handshakes.report()
            await asyncio.sleep(_POLL_SECONDS)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family. Thread-safe."""
        yield counter_by(
            "denials",
            "Denied streams, calls and groups of messages, by reason; see access.denied in the log.",
            "reason",
            ((reason, self.guard.denials[reason]) for reason in DENIAL_REASONS),
        )
        yield counter(
            "security_file_reload_errors",
            "Failed reloads of changed certificate, token or permissions files; the old ones remain in use.",
            sum(file.errors for file in self._files),
        )
        if self._certificates is not None:
            yield gauge(
                "certificate_expiry_timestamp_seconds",
                "Expiry of the worker's certificate, in seconds since 1970.",
                self._certificates.get().expires_at,
            )
            handshakes = self._certificates.handshakes
            yield counter(
                "tls_handshakes",
                "TLS handshakes, including failed ones; two for each connection are usual.",
                handshakes.started,
            )
            yield counter(
                "tls_connections", "TLS connections with at least one call.", handshakes.connections
            )
