"""The settings of `tuplewire worker`.

Used by config_sources.py, cli.py, process/, debugging.py and worker_metrics.py. Owns no state. Thread-safe.
Design: docs/design/rows-and-memory.md (settings).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import NAMES, Credentials
from tuplewire.settings.addresses import add_brackets, is_loopback, join_host_port, split_host_port
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import (
    ANY_TEXT,
    FILE,
    SECONDS,
    Kind,
    choice,
    in_range,
    setting,
    setting_like,
    settings_of,
    string,
)
from tuplewire.settings.storm_keys import refuse_storm_transport
from tuplewire.tracing import TracingSettings
from tuplewire.values.task_ids import TASKS
from tuplewire_service.messaging.claimed_socket import MAX_SOCKET_PATH_BYTES
from tuplewire_service.worker.worker_settings import WorkerSettings


def _parse_advertised(address: str) -> str:
    """Parse an address for other workers: host:port, or a host, which gets the bound port."""
    if not address:
        raise ValueError
    with suppress(ipaddress.AddressValueError):  # without brackets, like a pod's IP in Kubernetes
        ipaddress.IPv6Address(address)
        return add_brackets(address)
    if ":" not in address or (address.startswith("[") and address.endswith("]")):
        return address
    host, port = split_host_port(address)
    if port == 0:
        raise ConfigError(f"{address!r} has port 0; leave the port out to advertise the bound one")
    return join_host_port(host, port)


def _parse_socket_path(value: str) -> str:
    path = value.removeprefix("unix://")
    if not path.startswith("/"):
        raise ConfigError(f"{value!r} is not an absolute path, such as /run/tuplewire/worker.sock")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{value!r} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix socket's path may have"
        )
    return path


HOST_PORT = Kind("HOST:PORT", "host:port", str, lambda address: join_host_port(*split_host_port(address)))
ADVERTISED_ADDRESS = Kind("HOST[:PORT]", "a host, or host:port", str, _parse_advertised)
SOCKET_PATH = Kind("PATH", "an absolute path", str, _parse_socket_path)


def _parse_transport(name: str) -> str:
    """Check a transport's name. The error for a class of Storm's names the replacement."""
    refuse_storm_transport(name)
    return str(_TRANSPORT_CHOICE.convert(name))


_TRANSPORT_CHOICE = choice(["grpc", "zmq"])
_TRANSPORT = replace(_TRANSPORT_CHOICE, convert=_parse_transport)
FILE_MODE = Kind(
    "MODE",
    "a file mode in octal digits, such as 0660",
    int,
    in_range(1, 0o777),
    lambda text: int(text, 8),
    write=lambda value: f"{value:04o}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(WorkerSettings):
    """All settings of a worker process. Sizes are in bytes, times in seconds."""

    worker_id: str = setting(
        ANY_TEXT, "", "unique name of this worker (default: host, and port or process id)"
    )
    listen: str = setting(
        HOST_PORT, "127.0.0.1:6700", "address for messages and control; port 0: a free port, see address_file"
    )
    listen_unix: str | None = setting(
        SOCKET_PATH, None, "Unix socket to listen on as well, for programs on the same machine"
    )
    socket_mode: int = setting(FILE_MODE, 0o660, "file mode of the Unix socket, in octal")
    listen_admin: str = setting(
        HOST_PORT, "127.0.0.1:9464", "address of /metrics, /livez and /readyz; port 0: any free port"
    )
    advertise: str | None = setting(
        ADVERTISED_ADDRESS,
        None,
        "address that other workers connect to (default: the bound address; for a wildcard, the host name)",
        storm="storm.local.hostname",
    )
    tasks: tuple[int, ...] = setting(
        TASKS, (), "tasks of this worker, like 0-99, if it is the only one; several need an assignment"
    )
    assignment_file: str | None = setting(FILE, None, "assignment in JSON, read again after each change")
    transport: str = setting(
        _TRANSPORT,
        "grpc",
        "transport between workers; programs and control always use grpc",
        storm="storm.messaging.transport",
    )
    listen_peers: str | None = setting(
        HOST_PORT,
        None,
        "address for other workers if transport is not grpc (default: a free port on the host of listen)",
    )
    max_message_bytes: int = setting_like(SessionSettings, "max_message_bytes")
    max_frame_bytes: int = setting_like(SessionSettings, "max_frame_bytes")
    linger_seconds: float = setting_like(SessionSettings, "linger_seconds")
    keepalive_seconds: float = setting_like(SessionSettings, "keepalive_seconds")
    tls_certificate: str | None = setting_like(
        Credentials,
        "tls_certificate",
        "certificate of this worker as client and server; enables mutual TLS on TCP",
    )
    tls_key: str | None = setting_like(Credentials, "tls_key")
    tls_ca: str | None = setting_like(
        Credentials, "tls_ca", "CA certificates that workers' and programs' certificates are checked against"
    )
    tls_worker_names: tuple[str, ...] = setting_like(
        Credentials,
        "tls_worker_names",
        "names in workers' certificates (DNS, *.DNS, IP or URI, comma-separated); peers with other names "
        "cannot act as workers (default: the names in this worker's own certificate)",
    )
    tls_client_names: tuple[str, ...] = setting(
        NAMES, (), "names in programs' certificates; others are refused (default: any that the CA signed)"
    )
    token_file: str | None = setting_like(
        Credentials, "token_file", "accepted tokens of programs, one per line: TOKEN or NAME TOKEN"
    )
    permissions_file: str | None = setting(
        FILE, None, "permissions of each client, in TOML; see docs/how-to/secure.md (default: all)"
    )
    allow_plaintext: bool = setting_like(
        Credentials,
        "allow_plaintext",
        "accept connections from other machines without TLS; for trusted networks only",
    )
    drain_seconds: float = setting(
        SECONDS,
        25.0,
        "time limit to deliver or forward messages at shutdown; keep it 5 s below the pod's grace period",
        storm="supervisor.worker.shutdown.sleep.secs",
    )
    tracing: bool = setting_like(TracingSettings, "tracing")
    trace_sample_ratio: float = setting_like(
        TracingSettings, "trace_sample_ratio", "share of this worker's spout tuples that start a trace"
    )
    log_level: str = setting(
        choice(["debug", "info", "warning", "error"], "LEVEL"), "info", "minimum level of log events"
    )
    log_format: str = setting(
        choice(["text", "json"], "FORMAT"), "text", "log format; json: one event per line"
    )
    address_file: str | None = setting(FILE, None, "JSON file for the bound addresses; removed at exit")
    state_file: str | None = setting(
        FILE,
        None,
        "JSON file for the number of messages that a failure of this worker would lose; after a failure, its "
        "next process reports them; the file is for one worker id",
    )
    program: str | None = setting(
        string(),
        None,
        "topology with tasks to run in this worker: package.module:function, or file.py:function",
    )
    program_conf_file: str | None = setting(
        FILE, None, "JSON file of the topology's settings; its worker settings override defaults"
    )
    program_state_file: str | None = setting(
        FILE, None, "JSON file for the state of the executors; removed at a clean exit"
    )
    session: SessionSettings = field(default_factory=SessionSettings)
    """All settings of sessions with workers. Those without a flag are set in a topology's settings."""

    def _check(self) -> None:
        if not self.worker_id:  # as Storm names workers; port 0 is not bound yet
            port = split_host_port(self.listen)[1]
            name = f"{socket.gethostname()}:{port}" if port else f"{socket.gethostname()}-{os.getpid()}"
            object.__setattr__(self, "worker_id", name)
        if self.listen_peers is not None and self.transport == "grpc":
            raise ConfigError("listen_peers has no effect with the transport grpc: remove it")
        if self.tasks and self.assignment_file is not None:
            raise ConfigError(
                "tasks are for a single worker, and assignment_file for several: give one of them"
            )
        session_names = settings_of(SessionSettings).keys() & settings_of(WorkerConfig).keys()
        values = {name: getattr(self, name) for name in session_names}
        pending_bytes = max(self.session.max_pending_bytes, self.max_message_bytes)  # it has no flag
        object.__setattr__(self, "session", replace(self.session, max_pending_bytes=pending_bytes, **values))
        self._check_security()
        WorkerSettings._check(self)

    def _check_security(self) -> None:
        """Raise ConfigError for security settings without effect, and for plaintext outside this machine."""
        credentials = self.credentials()
        if credentials.tls_ca is not None and credentials.tls_certificate is None:
            raise ConfigError("tls_ca alone has no effect on a worker: set tls_certificate and tls_key, too")
        if self.tls_client_names and credentials.tls_ca is None:
            raise ConfigError("tls_client_names need tls_certificate, tls_key and tls_ca")
        protections = [name for name in ("tls_ca", "token_file", "permissions_file") if getattr(self, name)]
        if self.transport != "grpc" and protections:
            raise ConfigError(
                f"the transport {self.transport} between workers does not support TLS, tokens or "
                f"permissions, so {protections[0]} would not protect it: set transport=grpc"
            )
        for name in ("listen", "listen_peers"):
            address = getattr(self, name)
            if address is None or self.allow_plaintext or credentials.uses_tls(address):
                continue
            if not is_loopback(split_host_port(address)[0]):
                raise ConfigError(
                    f"{name} is {address}, which other machines reach, and there is no TLS: "
                    "set tls_certificate, tls_key and tls_ca, or allow_plaintext if the network is trusted"
                )

    def credentials(self) -> Credentials:
        """Return the credentials that this worker presents to other workers."""
        values = {name: getattr(self, name) for name in settings_of(Credentials)}
        if self.tls_ca:
            # Workers with certificates identify each other by them; tokens are for programs.
            values["token_file"] = None
        return Credentials(**values)
