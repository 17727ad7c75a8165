"""Where messages of executors enter the router of their worker: bounded for each task, and in one step."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Container, Sequence

from tuplewire.config import AckMode
from tuplewire.connection.log_rate import LogRate
from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import ClosedError
from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.worker import Worker

logger = logging.getLogger(__name__)

_SAY_SECONDS = 5.0
"""How long somebody waits for room before the log says so."""
_SAY_AGAIN_SECONDS = 60.0


class _Outstanding:
    """What one task was sent, and is not done with."""

    __slots__ = ("messages", "size_bytes", "waiting")

    def __init__(self) -> None:
        self.messages = self.size_bytes = self.waiting = 0


class Entrance:
    """The inbound session of a worker's own executors; see InboundSession. From any thread.

    In the mode `processed` what was sent is kept until it is executed, and sent again should a worker die.
    free: tasks to which nobody waits. messages, batches, size_bytes: what has entered. refused: what the
    router did not take, by the error's code. pending: messages that were sent, and are neither released nor
    refused.
    """

    source = "executors"
    worker_number = 0

    def __init__(self, worker: Worker, free: Container[int]) -> None:
        settings = worker.settings
        self.wants_releases = settings.session.ack_mode is AckMode.PROCESSED
        self.messages = self.batches = self.size_bytes = 0
        self.refused: Counter[str] = Counter()
        self._router = worker.router
        self._most_messages = settings.receive_queue_messages
        self._most_bytes = settings.receive_queue_bytes
        self._loop = messaging_loop().loop
        self._free = free
        self._changed = threading.Condition()
        self._tasks: dict[int, _Outstanding] = {}
        self._blocked: dict[int, None] = {}
        self._log_rate = LogRate()
        self.pending = 0
        self._gathered: list[TaskGroup] = []
        self._scheduled = False
        self._closed = False

    @property
    def gathered(self) -> bool:
        """Whether something has not entered yet."""
        return bool(self._gathered)

    @property
    def blocked(self) -> Collection[int]:
        """The tasks for which somebody waits for room, the longest first."""
        with self._changed:
            return list(self._blocked)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Accept messages, in order; waits for room as long as it takes. ClosedError once closed.

        A task has room while it has less outstanding than its queue may hold, in messages and in bytes.
        """
        with self._changed:
            for group in groups:
                task = self._tasks.get(group.task)
                if task is None:
                    task = self._tasks[group.task] = _Outstanding()
                if self._full(task) and group.task not in self._free:
                    self._await_room(group.task, task)
                if self._closed:
                    raise ClosedError("the link to the worker is closed")
                task.messages += len(group)
                task.size_bytes += len(group.data)
                self.pending += len(group)
                self._gathered.append(group)
            self._hand_over()

    def _full(self, task: _Outstanding) -> bool:
        return task.messages >= self._most_messages or task.size_bytes >= self._most_bytes

    def _await_room(self, number: int, task: _Outstanding) -> None:
        self._hand_over()
        began = time.monotonic()
        patience = _SAY_SECONDS
        task.waiting += 1
        self._blocked.setdefault(number)
        try:
            while self._full(task) and not self._closed:
                if not self._changed.wait(patience):
                    patience = _SAY_AGAIN_SECONDS
                    logger.warning(
                        "executors.blocked",
                        extra={
                            "task": number,
                            "seconds": round(time.monotonic() - began),
                            "messages": task.messages,
                            "bytes": task.size_bytes,
                        },
                    )
        finally:
            task.waiting -= 1
            if not task.waiting:
                del self._blocked[number]

    def _hand_over(self) -> None:
        """Have the event loop take what is gathered."""
        if self._gathered and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._enter)

    def _enter(self) -> None:
        """On the event loop: route what is gathered."""
        with self._changed:
            groups, self._gathered = self._gathered, []
            self._scheduled = False
            self._changed.notify_all()
        self.batches += 1
        self.messages += sum(map(len, groups))
        self.size_bytes += sum(len(group.data) for group in groups)
        batch = ReceivedBatch.arrived(groups, self)
        self._router.recv(batch)
        for group, error in batch.refusals:
            self.refused[error.code] += len(group)
            self.release(group.task, len(group), len(group.data))
            if messages := self._log_rate.due(group.task, len(group)):
                extra = {"task": group.task, "messages": messages, "reason": str(error)}
                logger.warning("messages.refused", extra=extra)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        with self._changed:
            outstanding = self._tasks[task]
            outstanding.messages -= messages
            outstanding.size_bytes -= size_bytes
            self.pending -= messages
            if outstanding.waiting:
                self._changed.notify_all()
            if not outstanding.messages and not outstanding.waiting:
                del self._tasks[task]

    def close(self, timeout: float) -> None:
        """Wait until all that was sent has entered, at most so many seconds; then take nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._gathered, timeout)
            self._closed = True
            self._changed.notify_all()
