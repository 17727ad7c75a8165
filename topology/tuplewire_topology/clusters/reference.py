"""Topologies and other files for worker processes, which may have another user.

Used by distributed clusters and by their processes. Owns no state. Not thread-safe. load_topology() extends
sys.path. Source: Storm's `stormcode.ser` and `Container`. Design: docs/design/topologies.md (control of
processes).
"""

from __future__ import annotations

import importlib
import os
import pickle
import stat
import sys
from pathlib import Path
from types import ModuleType

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.processes.child import find_user, not_permitted
from tuplewire_topology.authoring.description import Topology

PRIVATE = 0o600
"""The mode of a file that only its owner can access."""


def directory_for(path: Path, user: str | None) -> Path:
    """Create and return a directory for the logs of processes, also of another user."""
    path.mkdir(parents=True, exist_ok=True)
    if user is not None:  # the other user needs to reach files in it, not to list them
        path.chmod(0o711)
    return path


def directory_of(path: Path, user: str | None) -> Path:
    """Create and return a directory in which only the processes' user may write; see write_private()."""
    path.mkdir(mode=0o700)
    _give(path, user)
    return path


def write_private(path: Path, content: bytes, user: str | None) -> None:
    """Write a new file that only the processes' user may read; None: this process's user.

    Raises ConfigError for a user that does not exist, and LaunchError without the right to change the owner.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
        file.write(content)
    _give(path, user)


def _give(path: Path, user: str | None) -> None:
    if user is not None:
        try:
            os.chown(path, find_user(user).pw_uid, -1)
        except PermissionError as error:
            raise not_permitted("a process", user) from error


SUFFIX = ".pickle"
_PROGRAM = b"__main__"


def load_topology(reference: str) -> Topology:
    """Return the topology of a reference; ConfigError if the reference is invalid.

    `package.module:name` and `file.py:name` import a Topology, or a function without arguments that returns
    one, with modules from the current directory or the file's directory. A path ending in .pickle is a file
    of save_topology. Reading it runs code, so only this process's user may have access to it.
    """
    if reference.endswith(SUFFIX):
        return _unpickle(Path(reference))
    module, colon, name = reference.partition(":")
    if not module or not colon or not name:
        raise ConfigError(
            f"{reference!r} names no topology: write package.module:function, file.py:function, or a file "
            f"ending in {SUFFIX}"
        )
    file = Path(module) if module.endswith(".py") else None
    directory = str(Path.cwd() if file is None else file.parent.resolve())
    if directory not in sys.path:  # as Python does for a program in that directory, but last
        sys.path.append(directory)
    try:
        found = getattr(importlib.import_module(module if file is None else file.stem), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the topology {reference!r}: {error}") from error
    topology = found() if callable(found) else found
    if not isinstance(topology, Topology):
        raise ConfigError(f"{reference!r} gives {type(topology).__name__}, and no Topology")
    return topology


def save_topology(topology: Topology, path: Path, user: str | None = None) -> str:
    """Write a topology with its components, and return the path as a reference for load_topology.

    Only `user` can read the file; None: this process's user. Raises TopologyError for a component that cannot
    be written, or that needs cloudpickle if it is not installed.
    """
    write_private(path, _pickled(topology), user)
    return str(path)


def _pickled(topology: Topology) -> bytes:
    try:
        content = pickle.dumps(topology)
        if _PROGRAM not in content:  # otherwise, such as in notebooks, cloudpickle includes the code
            return content
        problem = "a class or function of it is defined in the program that is run"
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
        problem = str(error)
    by_value = _cloudpickle()
    if by_value is None:
        raise TopologyError(
            f"the topology cannot be written for other processes: {problem}; put its classes into a module "
            "that can be imported, or install cloudpickle (pip install 'tuplewire[notebook]')"
        )
    try:
        return bytes(by_value.dumps(topology))
    except Exception as error:
        raise TopologyError(
            f"the topology cannot be written for other processes: {error}; "
            "make in open() or prepare() what a spout or bolt cannot take along"
        ) from error


def _cloudpickle() -> ModuleType | None:
    """Return cloudpickle, or PySpark's copy of it; None if neither is installed."""
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
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
        raise ConfigError(f"{path} holds {type(topology).__name__}, and no Topology")
    return topology


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} can be written by other users, and reading it could run their code: "
            f"chown it to this user, and chmod {PRIVATE:o} it"
        )
