"""Settings for the start of worker processes, by Storm's keys. Source: Storm's `Config` and `DaemonConfig`.

Used by distributed clusters. Owns no state. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tuplewire.errors import ConfigError
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import (
    ANY_TEXT,
    FLAG,
    SECONDS,
    Kind,
    Settings,
    choice,
    count,
    keys_of,
    setting,
    several,
    storm_setting,
    text,
)

_MAX_PORT = 65_535
_PORTS = several(count(0, _MAX_PORT), "PORTS", f"a list of ports from 0 to {_MAX_PORT}, 0 for any free one")


class ClusterMode(StrEnum):
    """The processes of a topology's workers."""

    LOCAL = "local"
    """All in this process."""
    DISTRIBUTED = "distributed"
    """Each in its own process."""


def _words(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, str):
        return tuple(map(text().check, value))
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ConfigError(f"{value!r} is no command line: {error}") from error


def _variables(value: Mapping[str, str]) -> Mapping[str, str]:
    return {ANY_TEXT.check(name): ANY_TEXT.check(content) for name, content in value.items()}


_OPTIONS = Kind("OPTIONS", "a text, or a list of words", (str, list, tuple), _words, plain=list)
_VARIABLES = Kind("VARIABLES", "a map from names to texts", Mapping, _variables, plain=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings(Settings):
    """Settings for the start of worker processes. Each field has its description and Storm's key.

    The key for restarts is Tuplewire's, because Storm's supervisor restarts a worker without limit.
    """

    REFUSED = ("storm.cluster.", "supervisor.", "worker.")
    PASSED = ("worker.heartbeat.frequency.secs", *keys_of(SessionSettings))

    mode: ClusterMode = storm_setting(
        "storm.cluster.mode",
        choice(ClusterMode),
        ClusterMode.LOCAL,
        "run workers in this process (local), or each in its own process (distributed)",
    )
    ports: tuple[int, ...] = storm_setting(
        "supervisor.slots.ports",
        _PORTS,
        (),
        "port of each worker, in order; 0: any free port (default: 0 for all)",
    )
    options: tuple[str, ...] = storm_setting(
        "worker.childopts",
        _OPTIONS,
        (),
        "options of the Python interpreter (in Storm: of the JVM); %ID% (the port), %WORKER-ID% and "
        "%TOPOLOGY-ID% are replaced",
    )
    topology_options: tuple[str, ...] = storm_setting(
        "topology.worker.childopts", _OPTIONS, (), "additional interpreter options, for one topology"
    )
    environment: Mapping[str, str] = storm_setting(
        "topology.environment",
        _VARIABLES,
        {},
        "environment variables of workers, in addition to the variables of this process",
        secret=True,
    )
    as_user: bool = storm_setting(
        "supervisor.run.worker.as.user", FLAG, False, "run workers as another user; requires root"
    )
    user: str | None = storm_setting(
        "topology.submitter.user", text(), None, "name of the user to run workers as"
    )
    log_dir: str | None = storm_setting(
        "storm.log.dir",
        text(),
        None,
        "directory of the workers' logs (default: a directory that is removed at the end)",
    )
    restarts: int = setting(
        count(0),
        0,
        "maximum number of restarts of a failed worker, at growing intervals",
        key="supervisor.worker.restarts",
    )
    start_seconds: float = storm_setting(
        "supervisor.worker.start.timeout.secs", SECONDS, 60.0, "time limit for the start of a worker"
    )
    stop_seconds: float = storm_setting(
        "supervisor.worker.shutdown.sleep.secs", SECONDS, 10.0, "time limit for a worker to drain and exit"
    )

    def _check(self) -> None:
        if self.as_user and self.user is None:
            raise ConfigError(
                "supervisor.run.worker.as.user needs the name of a user: set topology.submitter.user"
            )
        fixed = [port for port in self.ports if port]  # 0 can be repeated
        if len(set(fixed)) < len(fixed):
            raise ConfigError(f"supervisor.slots.ports names a port twice: {self.ports}")

    @property
    def run_as(self) -> str | None:
        """The user to run as; None: the user of this process."""
        return self.user if self.as_user else None

    def port_of(self, index: int) -> int:
        """Return the port of a worker; ConfigError if there are fewer ports than workers."""
        if not self.ports:  # any free port
            return 0
        if index >= len(self.ports):
            raise ConfigError(
                f"supervisor.slots.ports names {len(self.ports)} port(s), none for worker {index + 1}: "
                "name more, or run fewer workers"
            )
        return self.ports[index]

    def interpreter_options(self, port: int, worker_id: str, topology_id: str) -> list[str]:
        """Return the options of a worker's interpreter, with its port and IDs filled in."""
        names = {"%ID%": str(port), "%WORKER-ID%": worker_id, "%TOPOLOGY-ID%": topology_id}
        words = [*self.options, *self.topology_options]
        for name, value in names.items():
            words = [word.replace(name, value) for word in words]
        return words
