"""Settings, by Storm's keys, and files for the start of worker processes, which may have another user.

Used by distributed clusters and by their processes. Owns no state. Not thread-safe. load_topology() extends
sys.path. Source: Storm's `Config`, `DaemonConfig`, `stormcode.ser` and `Container`.
Design: docs/design/topologies.md (control of processes).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shlex
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.processes.child import find_user, not_permitted_error
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import (
    ANY_TEXT,
    BOOLEAN,
    SECONDS,
    Kind,
    Settings,
    choice,
    integer,
    keys_of,
    list_of,
    setting,
    storm_setting,
    string,
)
from tuplewire_topology.authoring.description import Topology

_MAX_PORT = 65_535
_PORTS = list_of(integer(0, _MAX_PORT), "PORTS", f"a list of ports from 0 to {_MAX_PORT}, 0 for any free one")


class ClusterMode(StrEnum):
    """The processes of a topology's workers."""

    LOCAL = "local"
    """All in this process."""
    DISTRIBUTED = "distributed"
    """Each in its own process."""


def _parse_options(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, str):
        return tuple(map(string().check, value))
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ConfigError(f"{value!r} is not a command line: {error}") from error


def _check_variables(value: Mapping[str, str]) -> Mapping[str, str]:
    return {ANY_TEXT.check(name): ANY_TEXT.check(content) for name, content in value.items()}


_OPTIONS = Kind("OPTIONS", "a text, or a list of words", (str, list, tuple), _parse_options, to_plain=list)
_VARIABLES = Kind("VARIABLES", "a map from names to strings", Mapping, _check_variables, to_plain=dict)


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
    uses_other_user: bool = storm_setting(
        "supervisor.run.worker.as.user", BOOLEAN, False, "run workers as another user; requires root"
    )
    user: str | None = storm_setting(
        "topology.submitter.user", string(), None, "name of the user to run workers as"
    )
    log_dir: str | None = storm_setting(
        "storm.log.dir",
        string(),
        None,
        "directory of the workers' logs (default: a directory that is removed at the end)",
    )
    max_restarts: int = setting(
        integer(0),
        0,
        "maximum number of restarts of a failed worker, at growing intervals",
        key="supervisor.worker.restarts",
    )
    start_seconds: float = storm_setting(
        "supervisor.worker.start.timeout.secs", SECONDS, 60.0, "time limit for the start of a worker"
    )
    stop_timeout_seconds: float = storm_setting(
        "supervisor.worker.shutdown.sleep.secs", SECONDS, 10.0, "time limit of a drain; close() has its own"
    )

    def _check(self) -> None:
        if self.uses_other_user and self.user is None:
            raise ConfigError(
                "supervisor.run.worker.as.user needs the name of a user: set topology.submitter.user"
            )
        fixed = [port for port in self.ports if port]  # 0 can be repeated
        if len(set(fixed)) < len(fixed):
            raise ConfigError(f"supervisor.slots.ports names a port twice: {self.ports}")

    def port_of(self, index: int) -> int:
        """Return the port of a worker; ConfigError if there are fewer ports than workers."""
        if not self.ports:  # any free port
            return 0
        if index >= len(self.ports):
            raise ConfigError(
                f"supervisor.slots.ports names {len(self.ports)} port(s), none for worker {index}: "
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


PRIVATE_MODE = 0o600
"""The mode of a file that only its owner can access."""


def create_log_directory(path: Path, user: str | None) -> Path:
    """Create and return a directory for the logs of processes, also of another user."""
    path.mkdir(parents=True, exist_ok=True)
    if user is not None:  # the other user needs to reach files in it, not to list them
        path.chmod(0o711)
    return path


def create_private_directory(path: Path, user: str | None) -> Path:
    """Create and return a directory in which only the processes' user may write; see write_private()."""
    path.mkdir(mode=0o700)
    _change_owner(path, user)
    return path


def write_private(path: Path, content: bytes, user: str | None) -> None:
    """Write a new file that only the processes' user may read; None: this process's user.

    Raises ConfigError for a user that does not exist, and LaunchError without the right to change the owner.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "wb") as file:
        file.write(content)
    _change_owner(path, user)


def _change_owner(path: Path, user: str | None) -> None:
    if user is not None:
        try:
            os.chown(path, find_user(user).pw_uid, -1)
        except PermissionError as error:
            raise not_permitted_error("a process", user) from error


PICKLE_SUFFIX = ".pickle"
_MAIN_MODULE = b"__main__"


def load_topology(reference: str) -> Topology:
    """Return the topology of a reference; ConfigError if the reference is invalid.

    `package.module:name` and `file.py:name` import a Topology, or a function without arguments that returns
    one, with modules from the current directory or the file's directory. A path ending in .pickle is a file
    of save_topology. Reading it runs code, so only this process's user may have access to it.
    """
    if reference.endswith(PICKLE_SUFFIX):
        return _unpickle(Path(reference))
    module, colon, name = reference.partition(":")
    if not module or not colon or not name:
        raise ConfigError(
            f"{reference!r} names no topology: write package.module:function, file.py:function, or a file "
            f"ending in {PICKLE_SUFFIX}"
        )
    file = Path(module) if module.endswith(".py") else None
    directory = str(Path.cwd() if file is None else file.parent.resolve())
    if directory not in sys.path:  # as Python does for a program in that directory, but last
        sys.path.append(directory)
    try:
        attribute = getattr(importlib.import_module(module if file is None else file.stem), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the topology {reference!r} from {directory}: {error}") from error
    topology = attribute() if callable(attribute) else attribute
    if not isinstance(topology, Topology):
        raise ConfigError(f"{reference!r} gives {type(topology).__name__}, not a Topology")
    return topology


def save_topology(topology: Topology, path: Path, user: str | None = None) -> str:
    """Write a topology with its components, and return the path as a reference for load_topology.

    Only `user` can read the file; None: this process's user. Raises TopologyError for a component that cannot
    be written, or that needs cloudpickle if it is not installed.
    """
    write_private(path, _pickle_topology(topology), user)
    return str(path)


def _pickle_topology(topology: Topology) -> bytes:
    try:
        content = pickle.dumps(topology)
        if _MAIN_MODULE not in content:  # otherwise, such as in notebooks, cloudpickle includes the code
            return content
        problem = "a class or function of it is defined in the program that is run"
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
        problem = str(error)
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        raise TopologyError(
            f"the topology cannot be written for other processes: {problem}; put its classes into a module "
            "that can be imported, or install cloudpickle (pip install 'tuplewire[notebook]')"
        )
    try:
        return bytes(cloudpickle.dumps(topology))
    except Exception as error:
        raise TopologyError(
            f"the topology cannot be written for other processes: {error}; "
            "create in open() or prepare() objects that cannot be pickled"
        ) from error


def _cloudpickle() -> ModuleType | None:
    """Return cloudpickle, or PySpark's copy of it; None if neither is installed."""
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _unpickle(path: Path) -> Topology:
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            topology = pickle.load(file)  # noqa: S301 - the check above shows that it is this user's file
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot read the topology in {path}: {type(error).__name__}: {error}") from error
    if not isinstance(topology, Topology):
        raise ConfigError(f"{path} holds {type(topology).__name__}, not a Topology")
    return topology


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} is not private to this user, and reading it could run code of others: "
            f"chown it to this user, and chmod {PRIVATE_MODE:o} it"
        )
