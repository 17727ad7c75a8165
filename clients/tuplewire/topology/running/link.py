"""How the executors of a process reach those of others. Source: what Storm's worker needs of `IContext`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from tuplewire.errors import TuplewireError
from tuplewire.group import TaskGroup

Done = Callable[[TaskGroup], None]
Receive = Callable[[Sequence[TaskGroup], Done], None]
"""Takes what has arrived, in order, without waiting; calls back once each group is processed."""

Failed = Callable[[TuplewireError], None]


class Link(ABC):
    """Carries messages between the processes of a topology; thread-safe."""

    @abstractmethod
    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:
        """Begin to deliver what comes for these tasks, one range for each executor.

        What is not called back for is kept, bounded by credit; it comes again to whoever has the task next.
        failed: told of an error after which nothing more will arrive.
        """

    @abstractmethod
    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Accept messages to tasks of other processes, waiting for room; ClosedError once closed."""

    def leave(self, tasks: range) -> None:  # noqa: B027 - what has one fixed share of the tasks need not
        """Deliver nothing more for the tasks of an executor that has ended; by default nothing happens."""

    @property
    def not_ready(self) -> str:
        """Which connections do not stand that are needed; empty, as by default, when all do."""
        return ""

    def loads(self) -> Mapping[int, float]:
        """Return the load, from 0 to 1, of each task of other processes that is heard of; by default none."""
        return {}

    def report(self, loads: Mapping[int, float]) -> None:  # noqa: B027 - a worker beside it may know better
        """Tell other processes the loads of ours; by default nothing happens."""

    def lost(self) -> int:
        """Return how many messages that were accepted will never arrive, so far; by default none."""
        return 0

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Deliver nothing more, see off what was sent, for at most so many seconds, and end."""
