"""The receiver's reports on the messages of a send buffer: accepted, refused, released or lost."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from tuplewire.connection.receiver_reports import warn_of_lost
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.session.ledger import Settled
from tuplewire.session.receive import AckUpdate, Opened
from tuplewire.values.group import TaskGroup

CLOSE_UNUSED_SECONDS = 10.0
"""An unused flow is closed on both sides after this time, or up to twice as long."""


class Receipts:
    """Applies reports to the window of a send buffer. Call it only from the event loop, except watch()."""

    def __init__(self, buffer: SendBuffer) -> None:
        """Start without a receiver."""
        self._buffer = buffer
        self._window = buffer.window
        self._lock = buffer.lock
        self._watched: set[int] = set()
        self._watched_told = True
        self._close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS
        self.receiver_lost = False
        """True if the last connection broke, and there is no new one."""
        self.perhaps_lost = 0
        """The most messages that may have been lost with a receiver that had acknowledged them."""
        self.assignment_version = 0
        """The version in the receiver's last welcome; 0: it has no assignment."""

    def opened(self, opened: Opened) -> None:
        """Continue over a new connection, as the receiver's welcome says."""
        buffer, window = self._buffer, self._window
        with self._lock:
            if buffer.ended:
                return
            known = window.acknowledged
            settled = window.opened(opened)
            lost = self._take_perhaps_lost()
            buffer.refused.add_too_large(settled, window.max_message_bytes)
            self._watched_told = not self._watched
            self.assignment_version = opened.assignment_version
            self.receiver_lost = False
            self._take_outcome(settled, opened.update, known)
        warn_of_lost(buffer.address, lost)
        buffer.refused.log()

    def update(self, update: AckUpdate) -> None:
        """Apply an acknowledgement."""
        with self._lock:
            if not self._buffer.ended:
                known = self._window.acknowledged
                self._take_outcome(self._window.update(update), update, known)
        self._buffer.refused.log()

    def _take_outcome(self, settled: list[Settled], update: AckUpdate, known: int) -> None:
        """Note settled messages, and refusals in frames after the known one: earlier ones were reported."""
        self._buffer.settled += settled
        self._buffer.refused.add(each for each in update.refusals if each.sequence > known)
        self._buffer.notify()

    def lost(self, *, answers: bool) -> None:
        """Note that the connection has broken.

        answers: True if the receiver said that it would end, and so accounts for its messages itself.
        """
        with self._lock:
            self.receiver_lost = True
            self._window.receiver_answers |= answers
            self._buffer.notify()

    def _take_perhaps_lost(self) -> int:
        lost = self._window.take_perhaps_lost()
        self.perhaps_lost += lost
        return lost

    @property
    def close_unused_due(self) -> bool:
        """True if it is time to close unused flows with the next frame."""
        return time.monotonic() >= self._close_unused_at

    def close_unused(self) -> None:
        """Close unused flows with the next frame, if it is time to; with the lock."""
        if self.close_unused_due:  # the receiver then forgets the flows, and that their tasks are watched
            self._watched.difference_update(self._window.close_unused())
            self._close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS

    def next_watched(self) -> Collection[int]:
        """Return the tasks whose releases the receiver should report; none if it knows them."""
        if self._watched_told:
            return ()
        with self._lock:
            self._watched_told = True
            return tuple(self._watched)

    def take_back(self) -> list[tuple[TaskGroup, Any]]:
        """End the buffer, and return all pending messages as if they had never been accepted."""
        lost = 0
        with self._lock:
            if not self._buffer.end():
                return []
            if self.receiver_lost:
                self._window.receiver_gone()
                lost = self._take_perhaps_lost()
            left = self._window.take_back()
            self._buffer.notify()
        warn_of_lost(self._buffer.address, lost)
        return left

    def watch(self, tasks: Collection[int]) -> None:
        """Request every release of these tasks' messages. Otherwise some are sent with later credit only."""
        with self._lock:
            if self._watched.issuperset(tasks):
                return
            self._watched.update(tasks)
            self._watched_told = False
        self._buffer.wake()
