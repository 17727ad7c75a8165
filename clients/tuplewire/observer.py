"""The message events that tracing converts to spans. Without tracing there is no observer.

Implemented for clients by tracing/program_observer.py, and for workers by worker/worker_observer.py. Owns no
state. Design: docs/design/traces.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.durations import Durations
from tuplewire.session.ledger import Settled
from tuplewire.values.group import TaskGroup

if TYPE_CHECKING:  # the command imports this module, and protobuf only when it is needed
    from tuplewire.session.consume import Arrived

Groups = Sequence[TaskGroup]


@dataclass(frozen=True, slots=True)
class Sending:
    """One call that sends messages.

    Attributes:
        groups: The messages, possibly with an additional header.
        end: Must be called with the error of the call, or None. Otherwise the call is not recorded.
    """

    groups: Groups
    end: Callable[[BaseException | None], object]

    def __enter__(self) -> Groups:
        return self.groups

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)


class Observer:
    """An observer that ignores every event. Clients call the first three methods, workers the others."""

    def samples(self) -> bool:
        """Return True if the next call that sends messages must be observed by sending()."""
        return False

    def sending(self, groups: Groups, address: str, max_message_bytes: int) -> Sending:
        """Record that a client sends messages to a worker. An added header must not exceed the limit."""
        del address, max_message_bytes
        return Sending(groups, lambda _: None)

    def received(self, arrived: Arrived, address: str) -> Callable[[], object] | None:
        """Record that a consumer gets messages; return a function to call when it has processed them."""

    def queued(self, group: TaskGroup, log: DeliveryLog) -> None:
        """Record that messages were added to the log of their task."""

    def delivered(self, task: int, last: int, into: Durations) -> None:
        """Record that a consumer got the messages up to the sequence `last`. `into` counts waiting times."""

    def processed(self, task: int, into: Durations) -> None:
        """Record that a consumer acknowledged messages. `into` counts end-to-end times."""

    def left(self, task: int) -> None:
        """Record that the messages of a task have moved from its queue to another worker."""

    def forwarded(self, group: TaskGroup, token: Any, place_of: Callable[[int], str]) -> Any:
        """Record routed messages; return the token for settled(). `place_of` returns the owner of a task."""
        del group, place_of
        return token

    def settled(self, settled: Sequence[Settled]) -> None:
        """Record that another worker accepted messages, or that they were dropped."""

    def example(self, runs: Sequence[Groups]) -> tuple[str, str] | None:
        """Return the ids of the trace and span of a message in a frame; None if no message is traced."""
