"""Task-addressed messages between the workers of a running topology."""

from __future__ import annotations

from tuplewire.errors import TuplewireError
from tuplewire.message import TaskGroup, TaskMessage, TaskMessageBatch

__all__ = ["TaskGroup", "TaskMessage", "TaskMessageBatch", "TuplewireError"]
__version__ = "0.1.0"
