"""What stands between a bound connection and whoever takes its messages: a callback, or recv()."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tuplewire.errors import ClosedError, RefusedError
from tuplewire.message import SHUTDOWN_TASK, TaskMessage
from tuplewire_service.messaging.base import BLOCK, IConnectionCallback, ReceivedBatch


class Inbox(IConnectionCallback):
    """Passes batches to a callback, or holds them for `pull`, which gives one message at a time.

    A transport takes nothing in until somebody is there to take it (`open`): what waits stays with its
    sender, unacknowledged, so that the callback's refusals reach the sender whenever the callback comes. What
    waits here for `pull` is bounded by the senders' credit: it is not released. Thread-safe.
    """

    def __init__(self, on_open: Callable[[], None]) -> None:
        """Start closed to messages.

        on_open: called once, when a callback is registered, or pull() is called for the first time.
        """
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._batches: deque[ReceivedBatch] = deque()
        self._position = 0
        self._on_open = on_open
        self._callback: IConnectionCallback | None = None
        self._pulled = False
        self._closed = False

    @property
    def open(self) -> bool:
        """Whether somebody takes what arrives."""
        return self._callback is not None or self._pulled

    def recv(self, batch: ReceivedBatch) -> None:
        """Pass a batch on to the callback, or keep it; for an open inbox."""
        callback = self._callback
        if callback is not None:
            callback.recv(batch)
            return
        with self._lock:
            batch.hold()
            self._batches.append(batch)
            self._arrival.notify_all()

    @property
    def not_ready(self) -> RefusedError | None:
        """See IConnectionCallback."""
        return self._callback.not_ready if self._callback is not None else None

    @property
    def assignment_version(self) -> int:
        """See IConnectionCallback."""
        return self._callback.assignment_version if self._callback is not None else 0

    def register(self, callback: IConnectionCallback) -> None:
        """Deliver to the callback from now on; ClosedError when something else takes the messages."""
        with self._lock:
            if self.open:
                other = "recv() takes" if self._pulled else "another callback gets"
                raise ClosedError(f"{other} this connection's messages; bind another port for this callback")
            self._callback = callback
        self._on_open()

    def pull(self, flags: int) -> TaskMessage | None:
        """Return the next message; flags as in IServerConnection.recv."""
        with self._lock:
            if self._callback is not None:
                raise ClosedError("a callback is registered: messages go there, recv() gets none")
            first, self._pulled = not self._pulled, True
        if first:
            self._on_open()
        with self._lock:
            if flags == BLOCK:
                self._arrival.wait_for(lambda: self._batches or self._closed)
            if not self._batches:
                return TaskMessage(SHUTDOWN_TASK, b"") if self._closed else None
            batch = self._batches[0]
            message = batch[self._position]
            self._position += 1
            if self._position == len(batch):
                self._batches.popleft()
                self._position = 0
        batch.inbound.release(message.task, 1, len(message.message))
        return message

    def close(self) -> None:
        """Give the shutdown notice to whoever pulls, once nothing is left."""
        with self._lock:
            self._closed = True
            self._arrival.notify_all()
