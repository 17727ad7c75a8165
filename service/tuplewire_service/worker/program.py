"""What a worker needs of a program that runs inside it, such as executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from tuplewire_service.messaging.base import ServerStatistics
from tuplewire_service.worker.assignment import Assignment


class IProgram(ABC):
    """A program inside the worker. Every method is called on the event loop, and must not block."""

    @property
    @abstractmethod
    def not_ready_because(self) -> str:
        """What is missing before it does its work, in words; empty when nothing is."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether it holds something that it may still send messages for."""

    @abstractmethod
    def assigned(self, assignment: Assignment) -> None:
        """Take note of the assignment that is now in force."""

    @abstractmethod
    def exchange_loads(self, known: Mapping[int, float]) -> Mapping[int, float]:
        """Take the loads, 0 to 1, that the worker knows, and return those of the tasks that it runs."""

    @property
    @abstractmethod
    def exhausted(self) -> Collection[int]:
        """The tasks that it waits for, the longest first; see IServerConnection."""

    @abstractmethod
    def statistics(self) -> ServerStatistics:
        """Return what it has sent into the worker; see IServerConnection."""
