"""What `recv` returns: an iterator over the batches, or the messages, that arrive for some tasks."""

from __future__ import annotations

import math
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import attrgetter
from typing import NoReturn, Self, SupportsIndex

from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import ClosedError, MessageError
from tuplewire.observer import Observer
from tuplewire.session.consume import Arrived, Rejected
from tuplewire.session.rejection import MAX_AFTER_SECONDS
from tuplewire.settings.config import checked_timeout
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import TaskMessage

_MOST_SHOWN = 10
"""Tasks that a subscription shows of itself."""


class Live:
    """An object with a connection of this process. A copy in another process would lose messages silently."""

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} has a connection of this process: it cannot be pickled or copied. In "
            "functions that Spark runs use tuplewire.spark.ClientHandle; in other processes make a new Client"
        )


class BaseSubscription(Live):
    """What the subscriptions of both clients share: the batch that is not acknowledged yet."""

    def __init__(self, receiver: Receiver, timeout: float | None, observer: Observer | None = None) -> None:
        self._receiver = receiver
        self._observer = observer
        self._processed: Callable[[], object] | None = None
        """Called when the last batch is processed, if an observer asked for it."""
        self._thread = messaging_loop()
        self._timeout = timeout
        self._pid = os.getpid()
        self._current: Arrived | None = None
        self._seen: int | None = None
        """Of that batch, while messages() goes through it: those before the one that is out."""
        self._rejected: dict[int, Rejected] = {}
        """Of that batch, by index."""
        self._void: set[int] = set()
        """Tasks whose later messages in that batch come again."""

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
        self._end_processing()
        arrived, self._current, self._seen = self._current, None, None
        rejected, self._rejected, self._void = self._rejected, {}, set()
        if arrived is not None:
            told = sorted(rejected.values(), key=attrgetter("index"))
            self._receiver.acknowledge(arrived if messages is None else arrived.first(messages), told)

    def reject(self, index: int | None = None, *, after: float = 0.0, reason: str = "") -> None:
        """Say that you cannot process a message; it comes again, or goes to the dead-letter task.

        It takes effect with the acknowledgement of the batch. With reject_order="go_on", it comes again
        behind other messages of its task. With "wait", the later messages of its task come again behind it:
        leave those of the batch, as messages() does by itself.

        Each time, the header `tuplewire-rejected` says how often it was rejected. Beyond the worker's
        reject_limit, the worker sends it to its dead_letter_task, or drops it if there is none.

        Args:
            index: The message, by its place in the last batch. None: the one that messages() has given last.
            after: It comes again after so many seconds at the earliest.
            reason: Why, for people. The worker keeps 1,000 characters.

        Raises:
            MessageError: There is no such message that is not acknowledged, or `after` is no such time.
        """
        place = self._seen if index is None else index
        groups = [] if self._current is None else self._current.groups
        count = sum(map(len, groups))
        if place is None or not 0 <= place < count:
            raise MessageError(
                f"there is no message {place} to reject, of {count}: name one of the last batch by its index"
            )
        if not 0 <= after <= MAX_AFTER_SECONDS:
            raise MessageError(f"after is {after}: it is a time from 0 to {MAX_AFTER_SECONDS} seconds")
        wait = self._receiver.rejects_wait
        self._rejected[place] = Rejected(place, after, reason, wait)
        if wait:
            ends = list(accumulate(map(len, groups)))
            self._void.add(groups[bisect_right(ends, place)].task)

    def _settle(self) -> None:
        """Acknowledge the batch before; of one that messages() has left in the middle, what was seen."""
        self.acknowledge(self._seen)

    def _end_processing(self) -> None:
        processed, self._processed = self._processed, None
        if processed is not None:
            processed()

    def _begin(self, arrived: Arrived, most: int) -> TaskMessageBatch:
        """Return what messages() goes through next, and no more of it than `most`."""
        self._seen = 0
        return self._batch_of(arrived)[:most]

    def _batch_of(self, arrived: Arrived | None) -> TaskMessageBatch:
        if arrived is None:
            raise TimeoutError(f"nothing arrived from {self._receiver.address} for {self._timeout} s")
        self._current = arrived
        if self._observer is not None:
            self._processed = self._observer.received(arrived, self._receiver.address)
        return TaskMessageBatch.from_groups(arrived.groups)


class Bounds:
    """When an iteration over messages ends; see Subscription.messages(). left: messages until then."""

    def __init__(self, count: int | None, quiet: float | None, seconds: float | None) -> None:
        self.left = sys.maxsize if count is None else count
        checked = checked_timeout(quiet, "quiet"), checked_timeout(seconds, "seconds")
        self._quiet, left = (math.inf if each is None else each for each in checked)
        self._deadline = time.monotonic() + left

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
            given = 0
            try:
                for self._seen, message in enumerate(batch):
                    if not self._void or message.task not in self._void:
                        given += 1
                        yield message
                self._seen = len(batch)
            finally:
                self._settle()
            bounds.left -= given

    def close(self) -> None:
        """End the subscription; a second call does nothing."""
        self._end_processing()
        if self._pid == os.getpid():
            if self._seen is not None:
                self._settle()
            self._thread.run(self._receiver.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
