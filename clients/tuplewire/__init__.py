"""Send messages between running tasks, through the workers that own them.

`Asker`, `Client`, `Team`, `local` and `WorkerProcesses` are imported at their first use, so that
`import tuplewire` does not load gRPC or start a thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuplewire import errors
from tuplewire.errors import TuplewireError
from tuplewire.identity.credentials import Credentials
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage

if TYPE_CHECKING:
    from tuplewire import aio
    from tuplewire.client import Client

    # Reads as a verb: with tuplewire.local().
    from tuplewire.processes.worker_processes import LocalWorkerProcess as local  # noqa: N813
    from tuplewire.processes.worker_processes import WorkerProcesses
    from tuplewire.request_reply import Asker
    from tuplewire.team.team import Team

__all__ = [
    "Asker",
    "Client",
    "Credentials",
    "TaskGroup",
    "TaskMessage",
    "TaskMessageBatch",
    "Team",
    "TuplewireError",
    "WorkerProcesses",
    "aio",
    "errors",
    "local",
]
__version__ = "0.1.0"

_LAZY_IMPORTS = {
    "Asker": ("tuplewire.request_reply", "Asker"),
    "Client": ("tuplewire.client", "Client"),
    "Team": ("tuplewire.team.team", "Team"),
    "WorkerProcesses": ("tuplewire.processes.worker_processes", "WorkerProcesses"),
    "local": ("tuplewire.processes.worker_processes", "LocalWorkerProcess"),
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("tuplewire.aio")
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY_IMPORTS[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
