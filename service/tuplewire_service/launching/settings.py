"""How worker processes are started, by Storm's keys. Source: Storm's `Config` and `DaemonConfig`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from tuplewire.errors import ConfigError

_PREFIXES = ("storm.cluster.", "supervisor.", "worker.")
_NOT_OURS = {"worker.heartbeat.frequency.secs"}
"""What begins like a launcher's setting, and is for the worker that runs."""
_MAX_PORT = 65_535


class ClusterMode(StrEnum):
    """Where the workers of a topology run."""

    LOCAL = "local"
    """All in this process."""
    DISTRIBUTED = "distributed"
    """Each in a process of its own."""


def _setting(key: str, default: Any, read: Callable[[Any], Any], help: str) -> Any:  # noqa: A002
    return field(default=default, metadata={"key": key, "read": read, "help": help})


def _mode(value: Any) -> ClusterMode:
    if value not in list(ClusterMode):
        raise ConfigError(f"is one of {', '.join(ClusterMode)}, not {value!r}")
    return ClusterMode(value)


def _ports(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or any(
        isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT for port in value
    ):
        raise ConfigError(f"is a list of ports, 0 for any free one, not {value!r}")
    taken = [port for port in value if port]
    if len(set(taken)) < len(taken):
        raise ConfigError(f"names a port twice: {value!r}")
    return tuple(value)


def _options(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ConfigError(f"is no command line: {error}") from error
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ConfigError(f"is a text, or a list of words, not {value!r}")


def _environment(value: Any) -> Mapping[str, str]:
    if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return dict(value)
    raise ConfigError(f"is a map from names to texts, not {value!r}")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"is True or False, not {value!r}")


def _text(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigError(f"is a text, not {value!r}")


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(f"is a whole number from 0, not {value!r}")


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    raise ConfigError(f"is a time in seconds, more than 0, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How worker processes are started. Each field says what it does, and has Storm's key.

    That of restarts is ours, since Storm's supervisor starts a worker again without end.
    """

    mode: ClusterMode = field(
        default=ClusterMode.LOCAL,
        metadata={
            "key": "storm.cluster.mode",
            "read": _mode,
            "help": "workers in this process (local), or a process for each (distributed)",
        },
    )
    ports: tuple[int, ...] = _setting(
        "supervisor.slots.ports",
        (),
        _ports,
        "the port of each worker, in turn; 0: any free one (default: for all)",
    )
    options: tuple[str, ...] = _setting(
        "worker.childopts",
        (),
        _options,
        "options of the Python interpreter, as Storm's are of the JVM: a text or a list of words, in which "
        "%ID% (the port), %WORKER-ID% and %TOPOLOGY-ID% are replaced",
    )
    topology_options: tuple[str, ...] = _setting(
        "topology.worker.childopts", (), _options, "further ones, for one topology"
    )
    environment: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "key": "topology.environment",
            "read": _environment,
            "help": "variables that a worker gets besides those of this process: a map",
        },
    )
    as_user: bool = _setting(
        "supervisor.run.worker.as.user",
        default=False,
        read=_flag,
        help="run workers as another user, which only root may",
    )
    user: str | None = _setting("topology.submitter.user", None, _text, "the name of that user")
    log_dir: str | None = _setting(
        "storm.log.dir",
        None,
        _text,
        "where the log of each worker goes (default: a directory that is removed at the end)",
    )
    restarts: int = _setting(
        "supervisor.worker.restarts",
        0,
        _count,
        "how often a worker that fails is started again, at growing intervals",
    )
    start_seconds: float = _setting(
        "supervisor.worker.start.timeout.secs", 60.0, _seconds, "how long a worker may take to start"
    )
    stop_seconds: float = _setting(
        "supervisor.worker.shutdown.sleep.secs", 10.0, _seconds, "how long it may take to end by itself"
    )

    def __post_init__(self) -> None:
        if self.as_user and self.user is None:
            raise ConfigError(
                "supervisor.run.worker.as.user needs the name of a user: set topology.submitter.user"
            )

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> Self:
        """Read settings; ConfigError for a value that does not fit, or an unknown key of a supervisor's."""
        known = {each.metadata["key"]: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in conf.items():
            if key in known:
                if value is None:
                    continue
                try:
                    values[known[key].name] = known[key].metadata["read"](value)
                except ConfigError as error:
                    raise ConfigError(f"{key} {error}") from error
            elif key.startswith(_PREFIXES) and key not in _NOT_OURS:
                raise ConfigError(f"unknown setting {key!r}; known are: {', '.join(known)}")
        return cls(**values)

    @property
    def run_as(self) -> str | None:
        """The user to run as; None: the one of this process."""
        return self.user if self.as_user else None

    def port_of(self, index: int) -> int:
        """Return the port of a worker; ConfigError when fewer are named than there are workers."""
        if not self.ports:
            return 0
        if index >= len(self.ports):
            raise ConfigError(
                f"supervisor.slots.ports names {len(self.ports)} port(s), and worker {index + 1} has none: "
                "name more, or run fewer workers"
            )
        return self.ports[index]

    def interpreter_options(self, *, port: int, worker_id: str, topology_id: str) -> list[str]:
        """Return the options of a worker's interpreter, with its names in place."""
        names = {"%ID%": str(port), "%WORKER-ID%": worker_id, "%TOPOLOGY-ID%": topology_id}
        return [_replaced(word, names) for word in (*self.options, *self.topology_options)]


def _replaced(word: str, names: Mapping[str, str]) -> str:
    for name, text in names.items():
        word = word.replace(name, text)
    return word
