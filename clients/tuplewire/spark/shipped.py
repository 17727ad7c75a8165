"""What Spark sends to its executors says what it was made with; an executor that does not fit says so.

Spark itself compares the interpreters. This module is imported before anything that needs a library.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Self

import tuplewire
from tuplewire.errors import ConfigError
from tuplewire.processes.heaps import reuse_buffers, share_heaps, share_with_arrow


@dataclass(frozen=True, slots=True)
class _Required:
    """A library: its module, the first version that will do, the first that will not, and one between."""

    module: str
    first: str
    beyond: str
    but: str = ""

    def takes(self, version: str) -> bool:
        """Whether a version will do."""
        parts, but = _parts(version), _parts(self.but)
        return _parts(self.first) <= parts < _parts(self.beyond) and not (but and parts[: len(but)] == but)

    def __str__(self) -> str:
        return f">={self.first}" + (f",!={self.but}.*" if self.but else "") + f",<{self.beyond}"


def _parts(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: none for an error's text."""
    return tuple(map(int, re.findall("[0-9]+", re.split("[^0-9.]", version)[0])))


REQUIRED = {
    "grpcio": _Required("grpc", "1.74", "2", but="1.83"),
    "protobuf": _Required("google.protobuf", "6.31.1", "8"),
}
"""The libraries of an executor, as `pyproject.toml` has them."""

_WAYS = (
    "install it in the executors' interpreter, ship a packed environment (spark.archives), or set "
    "PYSPARK_PYTHON to an interpreter that has it"
)


class VersionMismatchError(ConfigError):
    """An executor's Python has other versions than the driver's, or than Tuplewire needs."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of an interpreter: Tuplewire's, and by name those of REQUIRED."""

    tuplewire: str
    libraries: Mapping[str, str]

    @classmethod
    @cache
    def here(cls) -> Self:
        """Return those of this process; a library that cannot be imported has its error in place of one."""
        return cls(tuplewire.__version__, {name: _version(each.module) for name, each in REQUIRED.items()})


def check(driver: Versions, executor: Versions) -> None:
    """Raise VersionMismatchError unless what was made with the one can be used with the other."""
    where = f"{sys.executable} on {socket.gethostname()}"
    if executor.tuplewire != driver.tuplewire:
        raise VersionMismatchError(
            f"{where} has tuplewire {executor.tuplewire}, and the driver has {driver.tuplewire}: bring them "
            "to the same release, in the executors' interpreter or with a new zip (make spark-zip)"
        )
    for name, required in REQUIRED.items():
        found = executor.libraries[name]
        if not required.takes(found):
            raise VersionMismatchError(
                f"{where} has {name} {found}, and tuplewire {executor.tuplewire} needs "
                f"{name}{required} (the driver has {driver.libraries[name]}). "
                f"{name} has compiled parts, which cannot come by --py-files: {_WAYS}"
            )


class Shipped:
    """A base of what Spark pickles in the driver and unpickles in an executor: that checks the versions.

    The subclass's own module is imported only once they fit, so that a missing library is told as such.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        _settle_in()
        return _arrived, (Versions.here(), kind.__module__, kind.__qualname__), self.__getstate__()


def _arrived(driver: Versions, module: str, name: str) -> Any:
    check(driver, Versions.here())
    kind = getattr(import_module(module), name)
    _settle_in()
    return object.__new__(kind)


_KEPT_BYTES = 48 * 1024 * 1024
"""The rows that wait for the last one of their attempt, and some copies of what is sent."""
_modules = 0
"""How many modules this process had when they were last set apart."""


def _settle_in() -> None:
    """Have a process that Spark uses again keep its buffers, and look for no garbage in what imports make.

    Spark looks through all of it after each task. With the modules of a sink that takes 23 ms, three times as
    long as with PySpark alone, and each write has four such processes. So it is set apart, again whenever
    there are more modules.
    """
    global _modules
    if len(sys.modules) > _modules and os.environ.get("SPARK_REUSE_WORKER"):
        _modules = len(sys.modules)
        share_heaps()
        reuse_buffers(_KEPT_BYTES)
        share_with_arrow()
        gc.freeze()


def _version(module: str) -> str:
    try:
        found = import_module(module)
    except ImportError as error:
        return f"none ({error})"
    # A folder of that name is a package without a version: Spark's jar has a google/protobuf.
    return getattr(found, "__version__", f"none ({module} is a folder of something else)")
