"""The settings of `tuplewire worker`: flags over TUPLEWIRE_* variables over a TOML file over defaults."""

from __future__ import annotations

import difflib
import json
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tuplewire.addresses import is_loopback, split_host_port
from tuplewire.config import ENVIRONMENT_PREFIX, MIB, SessionSettings
from tuplewire.credentials import Credentials
from tuplewire.errors import ConfigError
from tuplewire_service.server.setting import (
    Raw,
    Setting,
    advertised,
    choice,
    count,
    flag,
    host_port,
    mode,
    names,
    seconds,
    setting,
    size_bytes,
    socket_path,
    text,
)
from tuplewire_service.worker.settings import WorkerSettings

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
_CLIENT_VARIABLES = {ENVIRONMENT_PREFIX + "ADDRESS", ENVIRONMENT_PREFIX + "TOPOLOGY"}
# Kubernetes puts such variables into every pod for every Service whose name begins with "tuplewire".
_SERVICE_LINK = re.compile(r"TUPLEWIRE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything that a worker process can be told. Sizes are in bytes, times in seconds."""

    worker_id: str = setting(
        "", text, "ID", "name of this worker, unique in the topology (default: host name and port)"
    )
    topology: str = setting("default", text, "NAME", "topology to serve", storm="topology.name")
    listen: str = setting(
        "127.0.0.1:6700", host_port, "HOST:PORT", "address for messages and control; port 0: any free one"
    )
    listen_unix: str | None = setting(
        None, socket_path, "PATH", "Unix socket to listen on as well, for programs on the same machine"
    )
    socket_mode: int = setting(0o660, mode, "MODE", "file mode of the Unix socket, in octal")
    admin: str = setting(
        "127.0.0.1:9464", host_port, "HOST:PORT", "address of /metrics, /livez and /readyz; port 0: any"
    )
    advertise: str | None = setting(
        None,
        advertised,
        "HOST[:PORT]",
        "where other workers reach this one (default: the bound address; for a wildcard, the host name)",
        storm="storm.local.hostname",
    )
    assignment_file: str | None = setting(
        None, text, "FILE", "assignment in JSON, read again whenever it changes"
    )
    transport: str = setting(
        "grpc",
        choice("grpc", "zmq"),
        "NAME",
        "transport between workers; programs and control always use grpc",
        storm="storm.messaging.transport",
    )
    listen_peers: str | None = setting(
        None,
        host_port,
        "HOST:PORT",
        "address for other workers over another transport than grpc (default: a free port of that host)",
    )
    receive_queue_messages: int = setting(
        131_072,
        count,
        "COUNT",
        "bound of one task's receive queue in messages",
        storm="topology.receiver.buffer.size",
    )
    receive_queue_bytes: int = setting(16 * MIB, size_bytes, "SIZE", "the same bound in bytes")
    max_message_bytes: int = setting(MIB, size_bytes, "SIZE", "largest payload of one message")
    max_frame_bytes: int = setting(
        MIB, size_bytes, "SIZE", "a frame to another worker is closed at this size"
    )
    keepalive_seconds: float = setting(
        2.0, seconds, "SECONDS", "a connection to another worker is checked after this much silence"
    )
    keepalive_timeout_seconds: float = setting(
        2.0, seconds, "SECONDS", "and given up when the check is not answered in this time"
    )
    tls_certificate: str | None = setting(
        None, text, "FILE", "certificate of this worker, for clients and servers; with it, TCP is mutual TLS"
    )
    tls_key: str | None = setting(None, text, "FILE", "its private key")
    tls_ca: str | None = setting(
        None, text, "FILE", "certificates of those who sign the certificates of workers and programs"
    )
    tls_worker_names: tuple[str, ...] = setting(
        (),
        names,
        "NAMES",
        "names in the certificates of workers (DNS, *.DNS, IP or URI, with commas); others may not act as "
        "one (default: the names in this worker's own certificate)",
    )
    tls_client_names: tuple[str, ...] = setting(
        (), names, "NAMES", "names in the certificates of programs (default: any that the CA has signed)"
    )
    token_file: str | None = setting(
        None, text, "FILE", "tokens, one of which a program must show: a line TOKEN or NAME TOKEN each"
    )
    permissions_file: str | None = setting(
        None, text, "FILE", "what each client may do, in TOML; see service/SECURITY.md (default: everything)"
    )
    allow_plaintext: bool = setting(
        False, flag, "BOOLEAN", "let other machines connect without TLS: whoever reaches the port is let in"
    )
    drain_seconds: float = setting(
        25.0,
        seconds,
        "SECONDS",
        "deadline to pass on what is held when stopping; keep it under the pod's grace period",
        storm="supervisor.worker.shutdown.sleep.secs",
    )
    log_level: str = setting(
        "info", choice("debug", "info", "warning", "error"), "LEVEL", "debug, info, warning or error"
    )
    log_format: str = setting("text", choice("text", "json"), "FORMAT", "text or json, one event per line")
    metrics_tasks: int = setting(
        1000, count, "COUNT", "so many tasks have series of their own; the others are added up under `other`"
    )
    metrics_peers: int = setting(
        1000, count, "COUNT", "so many workers have series of their own; the others are added up likewise"
    )
    address_file: str | None = setting(
        None, text, "FILE", "write the bound addresses there, as JSON; removed at exit"
    )

    def __post_init__(self) -> None:
        if not self.worker_id:
            object.__setattr__(self, "worker_id", _default_worker_id(self.listen))
        if self.listen_peers is not None and self.transport == "grpc":
            raise ConfigError("listen_peers is for another transport than grpc, which has workers at listen")
        self._check_security()
        self.worker_settings()

    def _check_security(self) -> None:
        """Raise ConfigError for what would leave open what the settings say is shut."""
        credentials = self.credentials()
        if credentials.tls_ca is not None and credentials.tls_certificate is None:
            raise ConfigError("tls_ca alone is of no use to a worker: give tls_certificate and tls_key, too")
        if self.tls_client_names and credentials.tls_ca is None:
            raise ConfigError("tls_client_names need tls_certificate, tls_key and tls_ca")
        shut = [name for name in ("tls_ca", "token_file", "permissions_file") if getattr(self, name)]
        if self.transport != "grpc" and shut:
            raise ConfigError(
                f"the transport {self.transport} between workers knows neither TLS nor tokens nor "
                f"permissions, so {shut[0]} would leave a door open beside a locked one: use grpc"
            )
        for name in ("listen", "listen_peers"):
            address = getattr(self, name)
            if address is None or self.allow_plaintext or credentials.secures(address):
                continue
            if not is_loopback(split_host_port(address)[0]):
                raise ConfigError(
                    f"{name} is {address}, which other machines reach, and there is no TLS: give "
                    "tls_certificate, tls_key and tls_ca, or set allow_plaintext where the network is trusted"
                )

    def credentials(self) -> Credentials:
        """Return what this worker shows of itself to other workers."""
        return Credentials(
            tls_ca=self.tls_ca,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_worker_names=self.tls_worker_names,
            # Among each other, workers with certificates show these; a token is for programs then.
            token_file=None if self.tls_ca else self.token_file,
            allow_plaintext=self.allow_plaintext,
        )

    def worker_settings(self) -> WorkerSettings:
        """Return the part that the data plane gets; ConfigError when its parts do not fit together."""
        return WorkerSettings(
            worker_id=self.worker_id,
            topology=self.topology,
            receive_queue_messages=self.receive_queue_messages,
            receive_queue_bytes=self.receive_queue_bytes,
            metrics_tasks=self.metrics_tasks,
            session=SessionSettings(
                max_message_bytes=self.max_message_bytes,
                max_frame_bytes=self.max_frame_bytes,
                keepalive_seconds=self.keepalive_seconds,
                keepalive_timeout_seconds=self.keepalive_timeout_seconds,
            ),
        )


SETTINGS = {declared.name: Setting.of(declared) for declared in fields(WorkerConfig)}
"""Every setting of a worker, by name."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and where each value came from (by name: "default", "flag --listen", ...)."""

    config: WorkerConfig
    origins: Mapping[str, str]


def load_config(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None = None
) -> LoadedConfig:
    """Put the sources together; ConfigError names the source, the setting and what is wrong.

    flags: values by setting name. environment: all variables; those of other programs are left alone.
    file: the TOML file; when None, the variable TUPLEWIRE_CONFIG names it.
    """
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, "default")

    def take(name: str, raw: Raw, origin: str) -> None:
        try:
            values[name] = SETTINGS[name].read(raw)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from error
        origins[name] = origin

    for name, (key, raw) in (_read_file(file) if file else {}).items():
        take(name, raw, f"{key} in {file}")
    for name, raw in _read_environment(environment).items():
        take(name, raw, f"environment {SETTINGS[name].variable}")
    for name, raw in flags.items():
        take(name, raw, f"flag {SETTINGS[name].flag}")
    return LoadedConfig(WorkerConfig(**values), origins)


def to_toml(loaded: LoadedConfig) -> str:
    """Return the configuration in force as a TOML file, with the origin of each value."""
    lines = []
    for name in SETTINGS:
        value = getattr(loaded.config, name)
        origin = loaded.origins[name]
        if isinstance(value, tuple):
            value = ",".join(value) or None
        if value is None:
            lines.append(f"# {name} is not set  # {origin}")
        else:
            shown = f'"{value:04o}"' if name == "socket_mode" else json.dumps(value, ensure_ascii=False)
            lines.append(f"{name} = {shown}  # {origin}")
    return "\n".join(lines)


def _default_worker_id(listen: str) -> str:
    """Return host name and port, Storm's way to name a worker; a free port has no number yet."""
    port = split_host_port(listen)[1]
    return f"{socket.gethostname()}:{port}" if port else f"{socket.gethostname()}-{os.getpid()}"


def _read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    by_variable = {known.variable: name for name, known in SETTINGS.items()}
    found = {}
    for variable, value in environment.items():
        if variable in by_variable:
            found[by_variable[variable]] = value
        elif (
            variable.startswith(ENVIRONMENT_PREFIX)
            and variable != CONFIG_VARIABLE
            and variable not in _CLIENT_VARIABLES
            and not _SERVICE_LINK.fullmatch(variable)
        ):
            near = _near(variable, [*by_variable, CONFIG_VARIABLE])
            raise ConfigError(f"unknown environment variable {variable}; {near}")
    return found


def _read_file(file: Path) -> dict[str, tuple[str, Raw]]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"configuration {file} is not TOML: {error}") from error
    by_key = {key: name for name, known in SETTINGS.items() for key in (name, known.storm) if key}
    found: dict[str, tuple[str, Raw]] = {}
    for key, value in _flat(tables):
        if key not in by_key:
            raise ConfigError(f"unknown key {key!r} in {file}; {_near(key, by_key)}")
        name = by_key[key]
        is_flag = SETTINGS[name].is_flag
        if isinstance(value, bool) != is_flag or not isinstance(value, str | int | float):
            expected = "true or false" if is_flag else "a text or a number"
            raise ConfigError(f"{key} in {file}: {expected} is expected, not {value!r}")
        if name in found:
            raise ConfigError(f"{found[name][0]} and {key} in {file} are the same setting: keep one")
        found[name] = (key, value)
    return found


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield dotted keys: TOML reads `storm.messaging.transport = "grpc"` as tables within tables."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _near(wrong: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(names)}"
