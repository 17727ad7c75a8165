"""What stands behind a bound connection until, or instead of, a callback: messages wait to be pulled."""

from __future__ import annotations

import threading
from collections import deque

from tuplewire.errors import ClosedError, RefusedError
from tuplewire.message import TaskMessage
from tuplewire_service.messaging.base import BLOCK, IConnectionCallback, ReceivedBatch


class Inbox(IConnectionCallback):
    """Holds batches; `pull` gives one message at a time, `register` hands everything to a callback.

    Bounded by the senders' credit: what waits here is not released. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._batches: deque[ReceivedBatch] = deque()
        self._position = 0
        self._callback: IConnectionCallback | None = None
        self._closed = False

    def recv(self, batch: ReceivedBatch) -> None:
        """Pass a batch on to the callback, or keep it."""
        with self._lock:
            callback = self._callback
            if callback is None:
                batch.hold()
                self._batches.append(batch)
                self._arrival.notify_all()
        if callback is not None:
            callback.recv(batch)

    @property
    def not_ready(self) -> RefusedError | None:
        """See IConnectionCallback."""
        return self._callback.not_ready if self._callback is not None else None

    def register(self, callback: IConnectionCallback) -> None:
        """Deliver to the callback from now on, first of all what has waited."""
        with self._lock:
            while self._batches:
                waiting = self._batches.popleft()
                rest, self._position = waiting[self._position :] if self._position else waiting, 0
                batch = ReceivedBatch.arrived(rest.groups, waiting.origin)
                callback.recv(batch)
                if not batch.held:
                    _release(batch)
            self._callback = callback

    def pull(self, flags: int) -> TaskMessage | None:
        """Return the next message; flags as in IServerConnection.recv."""
        with self._lock:
            if self._callback is not None:
                raise ClosedError("a callback is registered: messages go there, recv() gets none")
            if flags == BLOCK:
                self._arrival.wait_for(lambda: self._batches or self._closed)
            if not self._batches:
                return None
            batch = self._batches[0]
            message = batch[self._position]
            self._position += 1
            if self._position == len(batch):
                self._batches.popleft()
                self._position = 0
        batch.origin.release(message.task, 1, len(message.message))
        return message

    def close(self) -> None:
        """Wake whoever waits in pull()."""
        with self._lock:
            self._closed = True
            self._arrival.notify_all()


def _release(batch: ReceivedBatch) -> None:
    for group in batch.groups:
        batch.origin.release(group.task, len(group), len(group.data))
