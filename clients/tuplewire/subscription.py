"""What `recv` returns: an iterator over the batches, or the messages, that arrive for some tasks."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Self

from tuplewire.batch import TaskMessageBatch
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import ClosedError
from tuplewire.message import TaskMessage
from tuplewire.session.consume import Arrived

_MOST_SHOWN = 10
"""Tasks that a subscription shows of itself."""


class BaseSubscription:
    """What the subscriptions of both clients share: the batch that is not acknowledged yet."""

    def __init__(self, receiver: Receiver, timeout: float | None) -> None:
        self._receiver = receiver
        self._thread = messaging_loop()
        self._timeout = timeout
        self._pid = os.getpid()
        self._current: Arrived | None = None
        self._seen: int | None = None
        """Of that batch, while messages() goes through it: those before the one that is out."""

    def __repr__(self) -> str:
        tasks = self._receiver.tasks
        named = ", ".join(map(str, tasks[:_MOST_SHOWN])) + (", ..." if len(tasks) > _MOST_SHOWN else "")
        return f"<Subscription {self._receiver.address} tasks=[{named}] {self._receiver.state}>"

    def __del__(self) -> None:
        """End a subscription that nobody closed, in the background: a finaliser must not wait."""
        if self._pid == os.getpid() and self._thread.loop.is_running() and not self._receiver.over:
            self._thread.submit(self._receiver.close())

    def acknowledge(self, messages: int | None = None) -> None:
        """Acknowledge every batch so far; or, of the last batch, no more than its first `messages`.

        What is left of that batch goes to the next subscriber.
        """
        arrived, self._current, self._seen = self._current, None, None
        if arrived is not None:
            self._receiver.acknowledge(arrived if messages is None else arrived.first(messages))

    def _settle(self) -> None:
        """Acknowledge the batch before; of one that messages() has left in the middle, what was seen."""
        self.acknowledge(self._seen)

    def _begin(self, arrived: Arrived, most: int) -> TaskMessageBatch:
        """Return what messages() goes through next, and no more of it than `most`."""
        self._current, self._seen = arrived, 0
        return TaskMessageBatch.from_groups(arrived.groups)[:most]

    def _batch_of(self, arrived: Arrived | None) -> TaskMessageBatch:
        if arrived is None:
            raise TimeoutError(f"nothing arrived from {self._receiver.address} for {self._timeout} s")
        self._current = arrived
        return TaskMessageBatch.from_groups(arrived.groups)


class Bounds:
    """When an iteration over messages ends; see Subscription.messages(). left: messages until then."""

    def __init__(self, count: int | None, quiet: float | None, seconds: float | None) -> None:
        self.left = sys.maxsize if count is None else count
        self._quiet = math.inf if quiet is None else quiet
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds

    def wait(self) -> float | None:
        """Return how long to wait for the next batch; None: as long as it takes."""
        wait = min(self._quiet, max(0.0, self._deadline - time.monotonic()))
        return None if wait == math.inf else wait


class Subscription(BaseSubscription, Iterator[TaskMessageBatch]):
    """An iterator over the batches that arrive for some tasks.

    Asking for the next batch acknowledges the one before; acknowledge() does so at once. If you end the
    iteration in any other way, or call close(), unacknowledged messages go, in order, to the next subscriber.
    """

    def __next__(self) -> TaskMessageBatch:
        """Return the next batch, and acknowledge the one before.

        Raises:
            TimeoutError: Nothing arrived for the timeout.
            UnreachableError: The worker was out of reach for as long.
            SupersededError: Another consumer has subscribed to one of the tasks.
            UnknownTaskError: A task is not on this worker.
            ClosedError: After close().
        """
        return self._batch_of(self._take(self._timeout))

    def _take(self, timeout: float | None) -> Arrived | None:
        if self._pid != os.getpid():
            raise ClosedError("the subscription belongs to the parent process; call recv() in this one")
        self._settle()
        return self._receiver.take(timeout)

    def messages(
        self, count: int | None = None, *, quiet: float | None = None, seconds: float | None = None
    ) -> Iterator[TaskMessage]:
        """Iterate over single messages; the iteration ends by itself, and raises no TimeoutError.

        A message is acknowledged after you have asked for the one behind it, or with the end.

        Args:
            count: End after so many messages. The others go to the next subscriber.
            quiet: End once nothing has come for so long, in seconds.
            seconds: End after so long in all.

        Raises:
            UnreachableError: The worker was out of reach for all of `quiet` or `seconds`.
            SupersededError, UnknownTaskError, ClosedError: See __next__.
        """
        bounds = Bounds(count, quiet, seconds)
        while bounds.left > 0 and (arrived := self._take(bounds.wait())) is not None:
            batch = self._begin(arrived, bounds.left)
            try:
                for self._seen, message in enumerate(batch):
                    yield message
                self._seen = len(batch)
            finally:
                self._settle()
            bounds.left -= len(batch)

    def close(self) -> None:
        """End the subscription; a second call does nothing."""
        if self._pid == os.getpid():
            if self._seen is not None:
                self._settle()
            self._thread.run(self._receiver.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
