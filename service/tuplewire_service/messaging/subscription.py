"""The interface between the Recv service and the owner of queued messages.

If the callback of `bind` is also an ISubscriptionSource, it receives the subscriptions; otherwise Recv is
refused. Methods run on the transport's event loop and must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tuplewire.errors import RefusedError
from tuplewire.session.consume import Delivery
from tuplewire.wire.messaging_pb2 import RejectedTask, Subscribe, TaskCursor
from tuplewire_service.messaging.server_stream import AccessRights


class ISubscription(ABC):
    """The subscription of one consumer to some tasks."""

    end_error: RefusedError | None = None
    """The reason for the end (superseded, the task moved, a drain); None while it is active."""
    acks_urgent: bool = False
    """True if the last take() took messages of a queue that is at least a quarter full."""
    ready_tasks: dict[int, None]
    """The tasks for which take() may return messages."""
    rejection_answers: dict[int, RejectedTask]
    """New answers to rejections by task; send them before the result of the next take()."""
    moved_tasks: list[int]
    """Tasks that have moved to another worker, unless all have moved."""

    @property
    @abstractmethod
    def positions(self) -> Sequence[tuple[int, int]]:
        """For each task, the sequence before the first message to be delivered."""

    @property
    @abstractmethod
    def has_unacknowledged(self) -> bool:
        """True if there are unacknowledged messages, delivered or not."""

    @abstractmethod
    def take(self, max_bytes: int) -> list[Delivery]:
        """Return messages for which the consumer has credit, up to about `max_bytes` payload bytes."""

    @abstractmethod
    def apply_progress(self, cursors: Sequence[TaskCursor]) -> bool:
        """Apply reported progress. Return True if it exceeds one turn of the loop: call again to continue."""

    @abstractmethod
    def close(self) -> None:
        """End the subscription: unacknowledged messages wait, in order, for this or the next consumer."""


class ISubscriptionSource(ABC):
    """Queues messages for consumers."""

    @abstractmethod
    def subscribe(
        self, request: Subscribe, access: AccessRights, address: str, wake: Callable[[], None]
    ) -> ISubscription:
        """Assign the tasks to a consumer, and end the subscriptions that hold them. Raises RefusedError.

        The same consumer id of another owner, see `access`, is another consumer. `address` is the consumer's,
        as the transport reports it, perhaps memory:PORT. `wake` is called when messages may be available,
        or when the subscription ends.
        """
