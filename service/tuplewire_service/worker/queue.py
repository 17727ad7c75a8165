"""The receive queue of one task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from tuplewire.errors import RefusedError
from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.durations import QueueTimes
from tuplewire.wire import control_pb2 as pb


class Consumer(Protocol):
    """The subscription of a consumer, as its queues use it."""

    def mark(self, queue: Queue) -> None:
        """Note that a queue has new messages."""

    def drop(self, queue: Queue) -> None:
        """Remove a queue whose task has moved."""

    def end(self, error: RefusedError) -> None:
        """End the subscription with an error."""

    def status(self, now: float) -> pb.ConsumerStatus:
        """Return the consumer and its tasks. `now` is a time of the monotonic clock."""


@dataclass(slots=True, eq=False)
class Queue:
    """The receive queue of one task, and its consumer."""

    task: int
    log: DeliveryLog
    times: QueueTimes
    begin: int
    leaving: bool = False
    consumer: Consumer | None = None
    consumer_key: tuple[str, str] = ("", "")
    incarnation: int = 0
    subscription: int = 0
    credit: int = 0
    credit_bytes: int = 0
    rejected: int = 0
    """The number of its consumer's last rejection."""
    held_until: float = 0.0
    """Time of the monotonic clock before which nothing is delivered; 0 if no rejected message blocks the
    queue.
    """
    readers: set[asyncio.Event] = field(default_factory=set)
    """Events that are set when a waiting reader should check the queue; see ReceiveQueues."""

    def wake_readers(self) -> None:
        """Notify waiting readers that messages were added, or that the task moves."""
        for each in self.readers:
            each.set()
