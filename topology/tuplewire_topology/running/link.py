"""How the executors of a process reach those of others: the contract, and the link through a client.

Source: what Storm's worker needs of `IContext`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from tuplewire.client import Client
from tuplewire.errors import BufferFullError, TuplewireError, as_tuplewire
from tuplewire.subscription import Subscription
from tuplewire.text.events import event_logger
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup

logger = event_logger(__name__)

BLOCKED_SECONDS = 5.0
"""How long an executor waits for room before the log says so."""
BLOCKED_AGAIN_SECONDS = 60.0

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


class ClientLink(Link):
    """Sends and receives through a client, that of a PySpark task or another; closes it at its end.

    Each executor has a subscription and a thread of its own, so that a slow one holds up no other. A batch is
    acknowledged once its tuples are processed, so that what was not processed comes again when this process
    dies. What they have led to is then with the client: it arrives as long as this process lives, and what
    the client has not delivered dies with it.

    first_task: what is added to every task id on the way, so that several runs of a topology can be told
    apart by the workers. spouts: tasks that get only the fate of their tuples. That is acknowledged as it
    arrives: a spout that waits for room does not read it, and the tasks that report it must not wait for it.
    The overflow of the client's session must not be "fail".
    """

    def __init__(self, client: Client, first_task: int = 0, spouts: Container[int] = ()) -> None:
        self._client = client
        self._spouts = spouts
        client.traced = False  # its tuples have spans of their own
        self._first_task = first_task
        self._moved = threading.Condition()
        self._closed = False
        self._subscriptions: list[Subscription] = []
        self._threads: list[threading.Thread] = []

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:
        for each in tasks:
            subscription = self._client.recv([task + self._first_task for task in each])
            self._subscriptions.append(subscription)
            thread = threading.Thread(
                target=self._receive,
                args=(subscription, receive, failed),
                name=f"receive {each[0]}-{each[-1]}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def _receive(self, subscription: Subscription, receive: Receive, failed: Failed) -> None:
        try:
            for batch in subscription:  # which acknowledges the one before
                if not self._process(batch, receive):
                    return
        except BaseException as error:  # noqa: BLE001 - nothing arrives any more, whatever it was
            if not self._closed:
                failed(as_tuplewire(error))

    def _process(self, batch: TaskMessageBatch, receive: Receive) -> bool:
        """Have a batch processed, and wait until it is; False when the link is closed first."""
        groups = self._shifted(batch.groups, -self._first_task)
        if groups and groups[0].task in self._spouts:  # as all of them then: an executor has one component
            receive(groups, lambda _: None)
            return True
        left = len(groups)

        def done(_: TaskGroup) -> None:
            nonlocal left
            with self._moved:
                left -= 1
                if not left:
                    self._moved.notify_all()

        receive(groups, done)
        with self._moved:
            self._moved.wait_for(lambda: not left or self._closed)
            return not left

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """See Link. Waits as long as it takes, and says so in the log."""
        batch = TaskMessageBatch.from_groups(self._shifted(groups, self._first_task))
        began = time.monotonic()
        patience = BLOCKED_SECONDS
        while True:
            try:
                self._client.send(batch, timeout=patience)
            except BufferFullError:
                patience = BLOCKED_AGAIN_SECONDS
                tasks = sorted({group.task for group in groups})
                seconds = round(time.monotonic() - began)
                logger.warning("executors.blocked", extra={"tasks": tasks, "seconds": seconds})
            else:
                return

    @staticmethod
    def _shifted(groups: Sequence[TaskGroup], by: int) -> Sequence[TaskGroup]:
        if not by:
            return groups
        return [
            replace(group, task=group.task + by, source=None if group.source is None else group.source + by)
            for group in groups
        ]

    def lost(self) -> int:
        return sum(self._client.ledger().dropped.values())

    def close(self, timeout: float) -> None:
        """See Link. Raises what Client.flush does, where not all was seen off; the client is closed then."""
        deadline = time.monotonic() + timeout
        with self._moved:
            self._closed = True
            self._moved.notify_all()
        with contextlib.ExitStack() as stack:
            stack.callback(self._client.close, 0.0)
            for subscription in self._subscriptions:
                subscription.close()
            for thread in self._threads:
                thread.join()
            self._client.flush(max(0.0, deadline - time.monotonic()))
