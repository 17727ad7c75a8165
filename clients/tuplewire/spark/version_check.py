"""Checks the versions in an executor, and sets up its memory, when it unpickles an object of the driver.

The versions are those of Tuplewire and its libraries; Spark itself compares the interpreters. This module is
imported before all modules that need a library. Used by the readers, writers and ClientHandle. Owns the
memory settings of reused Python processes. Thread-safe. Design: docs/design/identity.md.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import tuplewire
from tuplewire.errors import ConfigError
from tuplewire.processes.heaps import reuse_buffers, share_heap, share_with_arrow

REQUIRED_VERSIONS = {"grpcio": ">=1.74,!=1.83.*,<2", "protobuf": ">=6.31.1,<8"}
"""The libraries that an executor needs, and their versions, as in `pyproject.toml`."""
_MODULES = {"grpcio": "grpc", "protobuf": "google.protobuf"}

_INSTALL_HINT = (
    "install it in the executors' interpreter, ship a packed environment (spark.archives), or set "
    "PYSPARK_PYTHON to an interpreter that has it"
)


class VersionMismatchError(ConfigError):
    """The versions in an executor's Python differ from the driver's, or Tuplewire does not support them."""


@cache
def versions() -> dict[str, str]:
    """Return the versions in this process, by name; for a library that cannot be imported, its error."""
    libraries = {name: _version(module) for name, module in _MODULES.items()}
    return {"tuplewire": tuplewire.__version__, **libraries}


def check_versions(driver: Mapping[str, str], executor: Mapping[str, str]) -> None:
    """Raise VersionMismatchError unless the executor's versions can be used with the driver's."""
    where = f"{sys.executable} on {socket.gethostname()}"
    here, there = executor["tuplewire"], driver["tuplewire"]
    if here != there:
        raise VersionMismatchError(
            f"{where} has tuplewire {here}, and the driver has {there}: bring them "
            "to the same release, in the executors' interpreter or with a new zip (make spark-zip)"
        )
    for name, required in REQUIRED_VERSIONS.items():
        found = executor[name]
        if not _fits(found, required):
            raise VersionMismatchError(
                f"{where} has {name} {found}, and tuplewire {here} needs "
                f"{name}{required} (the driver has {driver[name]}). "
                f"{name} has compiled parts, which --py-files cannot ship: {_INSTALL_HINT}"
            )


def _fits(version: str, limits: str) -> bool:
    """Return True if a version is within limits such as `>=1.74,!=1.83.*,<2`."""
    found = _numbers(version)
    checks: dict[str, Callable[[tuple[int, ...]], bool]] = {
        ">=": lambda limit: found >= limit,
        "!=": lambda limit: found[: len(limit)] != limit,
        "<": lambda limit: found < limit,
    }
    return all(checks[sign](_numbers(text)) for sign, text in re.findall("(>=|!=|<)([0-9.]+)", limits))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; empty for the text of an error."""
    return tuple(map(int, re.findall("[0-9]+", re.split("[^0-9.]", version)[0])))


class VersionChecked:
    """A base class for objects that the driver pickles: unpickling in an executor checks the versions first.

    The subclass's module is imported only after the check, so that the error names a missing library.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        _prepare_executor()
        return _unpickle_checked, (versions(), kind.__module__, kind.__qualname__), self.__getstate__()


def _unpickle_checked(driver: Mapping[str, str], module: str, name: str) -> Any:
    check_versions(driver, versions())
    kind = getattr(import_module(module), name)
    _prepare_executor()
    return object.__new__(kind)  # pickle then sets its state


_KEPT_BYTES = 48 * 1024 * 1024
"""The memory for rows that wait until all of their attempt are checked, and for some copies."""
_frozen_modules = 0
"""The number of modules at the last gc.freeze()."""


def _prepare_executor() -> None:
    """In a reused Python process of Spark, keep freed buffers, and exclude imported objects from collection.

    Spark collects garbage after each task. With the modules of a sink, this takes 23 ms, three times as long
    as with PySpark alone, and each write has four such processes. So gc.freeze() is called after imports.
    """
    global _frozen_modules
    if len(sys.modules) > _frozen_modules and os.environ.get("SPARK_REUSE_WORKER"):
        _frozen_modules = len(sys.modules)
        share_heap()
        reuse_buffers(_KEPT_BYTES)
        share_with_arrow()
        gc.freeze()


def _version(module: str) -> str:
    try:
        found = import_module(module)
    except ImportError as error:
        return f"none ({error})"
    # A folder of that name is a package without a version: Spark's jar contains google/protobuf.
    return getattr(found, "__version__", f"none ({module} is a folder of something else)")
