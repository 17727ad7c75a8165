"""What a bound server needs to answer Recv: somebody who holds messages for consumers to fetch.

A callback of `bind` that is also an ISubscriptionSource gets the subscriptions; without one, Recv is refused.
All methods are called on the transport's event loop and must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuplewire.errors import RefusedError
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.session.rejection import Answer


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """Who wants which tasks, and where it stands in each.

    owner: whose consumer it is; another owner's of the same id is another.
    worker_incarnation: the worker incarnation that the cursors belong to; 0: none.
    address: where it comes from, as its transport says it; empty: it is in this process.
    subscription: tells two consumers with the same id and incarnation apart.
    """

    owner: str
    consumer_id: str
    incarnation: int
    worker_incarnation: int
    cursors: Sequence[Cursor]
    address: str = ""
    subscription: int = 0

    @property
    def consumer_key(self) -> tuple[str, str]:
        """The identity of the consumer, the same for all its incarnations."""
        return self.owner, self.consumer_id


class ISubscription(ABC):
    """One consumer's hold on some tasks."""

    worker_id: str
    worker_incarnation: int
    ended: RefusedError | None = None
    """Why the subscription is over (superseded, the task moved, a drain); None while it holds."""
    crowded: bool = False
    """Whether what was taken last is of a queue that has little room left."""

    @property
    @abstractmethod
    def starts(self) -> Sequence[tuple[int, int]]:
        """For each task the sequence before the first message that will come."""

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Whether there is something that the consumer has not acknowledged, be it delivered or not."""

    @abstractmethod
    def take(self, max_bytes: int) -> list[Delivery]:
        """Return what the consumer has room for, up to about so many payload bytes."""

    @abstractmethod
    def progress(self, cursors: Sequence[Cursor]) -> bool:
        """Take account of what the consumer says.

        Returns True if that is more than one turn of the event loop may do: the next call continues.
        """

    def take_answers(self) -> list[Answer]:
        """Return the answers to rejections since the last call; tell them before what take() returns next."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End it: what is not acknowledged waits, in order, for this consumer to resume or for the next."""


class ISubscriptionSource(ABC):
    """Holds messages for consumers."""

    @abstractmethod
    def subscribe(self, request: SubscribeRequest, wake: Callable[[], None]) -> ISubscription:
        """Give the tasks to a consumer, taking them from whoever has them; raises RefusedError.

        wake: called when there may be something to take, or the subscription has ended.
        """
