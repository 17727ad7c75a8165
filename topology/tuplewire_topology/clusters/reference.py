"""How a process gets the topology that it runs a part of: by name, or as a file.

Source: Storm's `stormcode.ser`.
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
from tuplewire.processes.child import PRIVATE, write_private
from tuplewire_topology.authoring.description import Topology

SUFFIX = ".pickle"
_PROGRAM = b"__main__"


def load_topology(reference: str) -> Topology:
    """Return the topology that a text names.

    `package.module:name`, or `file.py:name`, is a Topology, or a function without arguments that returns one;
    it is imported, and looks for its own modules in the current directory, or beside the file.
    A path that ends with .pickle is what save_topology wrote. Reading it runs what is in it, so it must
    belong to this process's user and be closed to all others. Raises ConfigError for what is none of these.
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
    if directory not in sys.path:  # look there as well, as Python does for a program that is run there
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
    """Write a topology, with the objects of its components, and return the path as load_topology takes it.

    What the running program defines itself, such as a notebook's classes, travels as code, by cloudpickle.
    user: whose process is to read it; None: this one's. Only that user can. Raises TopologyError for a
    component that cannot be written, or that needs cloudpickle where there is none.
    """
    write_private(path, _pickled(topology), user)
    return str(path)


def _pickled(topology: Topology) -> bytes:
    try:
        content = pickle.dumps(topology)
        if _PROGRAM not in content:
            return content
        problem = "a class or function of it is defined in the program that is run"
    except Exception as error:  # noqa: BLE001 - whatever the user's objects say
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
    """Return cloudpickle, by itself or as PySpark carries it; None where there is neither."""
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
            topology = pickle.load(file)  # noqa: S301 - from this user, as was just seen
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
            f"{path} is not this user's alone, and reading it would run what others may have put there: "
            f"chown it to this user, and chmod {PRIVATE:o} it"
        )
