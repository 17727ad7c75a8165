"""Subscriptions: iterators over the batches or messages that arrive for some tasks.

Used by programs, through Client.recv() and aio.Client.recv(). Owns the last batch until it is acknowledged,
with its rejections. The receiver (connection/receiver.py) does the I/O on the messaging loop.
Not thread-safe. Design: docs/design/credit.md ("Receive queues are logs"); docs/design/acking.md.
"""

from __future__ import annotations

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import index as to_int
from typing import TYPE_CHECKING, NoReturn, Self, SupportsIndex

from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import ClosedError, MessageError, WaitTimeoutError
from tuplewire.session.consume import MAX_DELAY_SECONDS, ArrivedBatch, RejectedMessage
from tuplewire.settings.config import RejectOrder, check_timeout
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import check_whole
from tuplewire.values.message import TaskMessage
from tuplewire.values.task_ids import format_tasks

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing


class NotPicklable:
    """An object with a connection, which cannot be pickled: a copy in another process would lose messages."""

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} has a connection of this process: it cannot be pickled or copied. In "
            "functions that Spark runs use tuplewire.spark.ClientHandle; in other processes make a new Client"
        )


class ProcessBound(NotPicklable):
    """An object with a connection, which works only in the process that has created it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def _is_inherited(self) -> bool:
        """True in a forked child: the connection belongs to the parent process."""
        return self._pid != os.getpid()

    def _check_process(self, hint: str = "create one in this process") -> None:
        """Raise ClosedError in a forked child."""
        if self._pid != os.getpid():
            raise ClosedError(f"the {type(self).__name__.lower()} belongs to the parent process; {hint}")


class Closeable(ProcessBound, ABC):
    """An object with a connection, which the end of a `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, _error: BaseException | None, __: object) -> None:
        self.close()


class BaseSubscription(ProcessBound):
    """The common part of the subscriptions of both clients: the batch that is not acknowledged yet."""

    def __init__(self, receiver: Receiver, timeout: float | None, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._receiver = receiver
        self._tracing = tracing
        self._on_processed: Callable[[], object] | None = None
        """Called when the last batch is processed, if tracing has spans that end then."""
        self._thread = messaging_thread()
        self._timeout = timeout
        self._current_batch: ArrivedBatch | None = None
        self._finished_count: int | None = None
        """The number of messages that messages() has finished in this batch; None outside messages()."""
        self._last_index = 0
        """The index of the last message of this batch, for messages()."""
        self._rejected: dict[int, RejectedMessage] = {}
        """The rejections in the current batch, by index."""
        self._tasks_to_skip: set[int] = set()
        """Tasks with a rejection that causes later messages of the batch to be redelivered."""

    def __repr__(self) -> str:
        tasks = format_tasks(self._receiver.tasks)
        return f"<Subscription {self._receiver.address} tasks=[{tasks}] {self._receiver.state}>"

    def __del__(self) -> None:
        """End an unclosed subscription in the background, because a finalizer must not wait."""
        if not self._is_inherited and self._thread.loop.is_running() and not self._receiver.is_closed:
            self._thread.submit(self._receiver.close())

    @property
    def at_batch_end(self) -> bool:
        """True if messages() is at the last message of a batch: the next request acknowledges the batch."""
        return self._finished_count == self._last_index

    def acknowledge(self, count: int | None = None) -> None:
        """Acknowledge all batches so far, or only the first `count` messages of the last batch.

        The next batch has the remaining messages. After close(), the next subscriber gets them.
        Raises MessageError if `count` is not a whole number.
        """
        if count is not None and not hasattr(count, "__index__"):
            raise MessageError(f"the number of messages to acknowledge is an int, not {count!r:.100}")
        self._end_processing()
        arrived, self._current_batch, self._finished_count = self._current_batch, None, None
        rejected, self._rejected, self._tasks_to_skip = self._rejected, {}, set()
        if arrived is not None:
            rejections = [rejected[index] for index in sorted(rejected)]
            if count is not None:
                arrived, rest = arrived.split(count)
                self._receiver.requeue(rest)
                self._last_index = min(self._last_index, count - 1)
            self._receiver.acknowledge(arrived, rejections)

    def reject(self, index: int | None = None, *, delay: float = 0.0, reason: str = "") -> None:
        """Reject a message that you cannot process. It is redelivered, or sent to the dead-letter task.

        The rejection takes effect when the batch is acknowledged. With reject_order="continue", the message
        is redelivered behind other messages of its task. With "wait", later messages of its task are
        redelivered behind it: do not process them in this batch. messages() skips them automatically.

        The header `tuplewire-rejected` of a redelivered message has the number of rejections. After as many
        as the worker's reject_limit, the message goes to the dead_letter_task, or is dropped without one.

        Args:
            index: The index of the message in the last batch. None: the last message of messages().
            delay: The minimum delay before the message is redelivered, in seconds.
            reason: The reason, for operators. The worker stores 1,000 characters.

        Raises:
            MessageError: There is no such unacknowledged message, or `delay` or `reason` is invalid.
        """
        position = self._finished_count if index is None else index
        groups = [] if self._current_batch is None else self._current_batch.groups
        count = sum(map(len, groups))
        if not isinstance(position, SupportsIndex) or not 0 <= position < count:
            number = "" if position is None else f" {position}"  # None: outside the loop over messages()
            raise MessageError(
                f"there is no message{number} to reject, of {count}: name one of the last batch by index"
            )
        if not (hasattr(delay, "__float__") and 0 <= delay <= MAX_DELAY_SECONDS):
            raise MessageError(f"delay must be from 0 to {MAX_DELAY_SECONDS} seconds, not {delay!r:.100}")
        if not isinstance(reason, str):
            raise MessageError(f"the reason of a rejection is a str, not {reason!r:.100}; pass str() of it")
        position, wait = to_int(position), self._receiver.settings.reject_order is RejectOrder.WAIT
        self._rejected[position] = RejectedMessage(position, delay, reason, wait)
        if wait:  # later messages of the task are redelivered behind this one: messages() skips them
            ends = list(accumulate(map(len, groups)))
            self._tasks_to_skip.add(groups[bisect_right(ends, position)].task)

    def _end_processing(self) -> None:
        callback, self._on_processed = self._on_processed, None
        if callback is not None:
            callback()

    def _messages_of(self, arrived: ArrivedBatch, limit: IterationLimit) -> Iterator[TaskMessage]:
        """Yield the messages of a batch within the limit, except messages that will be redelivered."""
        self._finished_count = 0
        batch = self._start_batch(arrived)[: limit.remaining]
        self._last_index = len(batch) - 1
        yielded = 0
        for self._finished_count, message in enumerate(batch):
            if self._finished_count > self._last_index:  # a part is acknowledged: the next batch has the rest
                break
            if not self._tasks_to_skip or message.task not in self._tasks_to_skip:
                yielded += 1
                yield message
        self._finished_count = len(batch)
        limit.remaining = limit.remaining - yielded if time.monotonic() < limit.deadline else 0

    def _start_batch(self, arrived: ArrivedBatch | None) -> TaskMessageBatch:
        if arrived is None:
            missing = f"through {self._receiver.address} to task {format_tasks(self._receiver.tasks)}"
            raise WaitTimeoutError(f"no message {missing} for {self._timeout} s")
        self._current_batch = arrived
        if self._tracing is not None:
            self._on_processed = self._tracing.on_received(arrived, self._receiver.address)
        return TaskMessageBatch.from_groups(arrived.groups)


class IterationLimit:
    """The limits of an iteration. remaining: the number of messages still to yield; 0 after the deadline."""

    def __init__(self, count: int | None, quiet: float | None, seconds: float | None) -> None:
        self.remaining = sys.maxsize if count is None else check_whole(count, "count")
        checked = check_timeout(quiet, "quiet"), check_timeout(seconds, "seconds")
        self._quiet_seconds, self._max_seconds = (math.inf if each is None else each for each in checked)
        self.deadline = math.inf

    def max_wait(self) -> float | None:
        """Return the maximum wait for the next batch in seconds; None for no limit. Starts the time."""
        now = time.monotonic()
        self.deadline = min(self.deadline, now + self._max_seconds)
        # In 0.2 s, a worker sends its queue, or the rest of it after an acknowledgement.
        wait = min(self._quiet_seconds or 0.2, max(0.0, self.deadline - now))
        return None if wait == math.inf else wait


class Subscription(BaseSubscription, Closeable, Iterator[TaskMessageBatch]):
    """An iterator over the batches that arrive for some tasks. Not thread-safe.

    Each call for the next batch acknowledges the previous one; acknowledge() acknowledges it immediately. If
    you stop in any other way, the next subscriber gets the unacknowledged messages, in order.

    Raises:
        WaitTimeoutError: No message arrived within the timeout.
        UnreachableError: The worker of a task was unreachable for that time.
        SupersededError: Another consumer has subscribed to one of the tasks.
        UnknownTaskError: A task is not in the assignment.
        TaskNotLocalError: With follow=False, the worker does not own a task.
        RefusedError: A worker refused the subscription for another reason, such as a missing permission.
        ClosedError: The subscription is closed.
    """

    def __next__(self) -> TaskMessageBatch:
        """Acknowledge the previous batch, and return the next one. The class lists the errors."""
        return self._start_batch(self._take())

    def _take(self, limit: IterationLimit | None = None) -> ArrivedBatch | None:
        # The receiver runs on the event loop of the parent, which a forked child does not have. The check is
        # repeated in the method, because a call for each batch costs time.
        if self._pid != os.getpid():
            self._check_process("call recv() in this one")
        self.acknowledge(self._finished_count)
        if limit is not None and not self._receiver.admitted:
            self._receiver.wait_until_admitted()
        return self._receiver.take(self._timeout if limit is None else limit.max_wait())

    def messages(
        self, count: int | None = None, *, quiet: float | None = None, seconds: float | None = None
    ) -> Iterator[TaskMessage]:
        """Iterate over single messages up to a limit, without a WaitTimeoutError.

        A message counts as processed when you request the next one, or when the iteration has finished.

        Args:
            count: The maximum number of messages. The next call, or the next subscriber, gets the others.
            quiet: The iteration ends after this many seconds without a message. 0: after the queued messages.
            seconds: The iteration ends after this many seconds, at the end of the current batch. Both times
                start once the workers have accepted the subscription.

        Raises:
            UnreachableError: The worker was unreachable for `quiet`, `seconds` or connect_timeout_seconds.
            RefusedError and its subclasses, ClosedError: See Subscription.
        """
        limit = IterationLimit(count, quiet, seconds)
        while limit.remaining > 0 and (arrived := self._take(limit)) is not None:
            try:
                yield from self._messages_of(arrived, limit)
            finally:  # after `break` or an error, acknowledges the messages before the current one
                self.acknowledge(self._finished_count)

    def close(self) -> None:
        """End the subscription. A second call does nothing."""
        self._end_processing()
        if not self._is_inherited:
            if self._finished_count is not None:  # messages() has finished some messages of the batch
                self.acknowledge(self._finished_count)
            self._thread.run(self._receiver.close())
