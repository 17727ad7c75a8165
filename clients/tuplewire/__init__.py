"""Task-addressed messages between the workers of a running topology.

`Client` is imported at its first use, so that `import tuplewire` costs neither gRPC nor a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuplewire.errors import TuplewireError
from tuplewire.group import TaskGroup
from tuplewire.identity.credentials import Credentials
from tuplewire.message import TaskMessage, TaskMessageBatch

if TYPE_CHECKING:
    from tuplewire.client import Client

__all__ = ["Client", "Credentials", "TaskGroup", "TaskMessage", "TaskMessageBatch", "TuplewireError"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Client":
        from tuplewire.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
