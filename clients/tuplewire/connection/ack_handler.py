"""The receiver's reports on the messages of a send buffer: accepted, refused, released or lost.

Used by the sending end, which reads the reports from its stream. Owns the list of watched tasks. Call only
from the event loop, except watch_releases(). Design: docs/design/sessions.md.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from tuplewire.connection.receiver_reports import log_lost
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import Ack, Refusal, Welcome

CLOSE_UNUSED_SECONDS = 10.0
"""An unused flow is closed on both sides after this time, or at most twice this time."""


class AckHandler:
    """Applies reports to the session of a send buffer."""

    def __init__(self, buffer: SendBuffer) -> None:
        self._buffer = buffer
        self._session = buffer.session
        self._lock = buffer.lock
        self._watched_tasks: set[int] = set()
        self.watch_list_sent = True
        """True if the list was taken for this stream, or is empty."""
        self.close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS
        """The monotonic time at which the next frame should close unused flows."""
        self.disconnected = False
        """True if the last connection broke, and there is no new one."""
        self.assignment_version = 0
        """The assignment version in the receiver's last Welcome; 0: it has no assignment."""

    def on_connected(self, welcome: Welcome) -> None:
        """Continue over a new connection from the state in the receiver's Welcome."""
        buffer, session = self._buffer, self._session
        with self._lock:
            if buffer.ended:  # its messages were already dropped or withdrawn
                return
            acknowledged_before = session.acked_frame
            lost_before = session.possibly_lost
            settled_before = len(session.settled)
            session.on_connected(welcome)
            buffer.refused.add_too_large(session.settled[settled_before:], session.max_message_bytes)
            # A receiver without memory of the session does not know the watched tasks.
            self.watch_list_sent = not self._watched_tasks
            self.assignment_version = welcome.assignment_version
            self.disconnected = False
            self._add_refusals(welcome.refusals, acknowledged_before)
        log_lost(buffer.address, session.possibly_lost - lost_before)
        buffer.refused.log()

    def apply_ack(self, ack: Ack) -> None:
        """Apply an acknowledgement."""
        with self._lock:
            if not self._buffer.ended:
                known = self._session.acked_frame
                self._session.apply_ack(ack)
                self._add_refusals(ack.refusals, known)
        if ack.refusals:
            self._buffer.refused.log()

    def _add_refusals(self, refusals: Sequence[Refusal], known: int) -> None:
        """Add refusals in frames after the frame `known`: earlier ones were reported."""
        if refusals:
            self._buffer.refused.add(each for each in refusals if each.frame_sequence > known)
        self._buffer.notify()

    def on_disconnected(self, *, closed_cleanly: bool) -> None:
        """Record a broken connection. After a drain or goodbye, the receiver accounts for its messages."""
        with self._lock:
            self.disconnected = True
            self._session.receiver_ended_cleanly |= closed_cleanly
            self._buffer.notify()

    def close_unused(self) -> None:
        """Close unused flows with the next frame; with the lock."""
        # The receiver then forgets the flows, and the watch on their tasks.
        self._watched_tasks.difference_update(self._session.close_unused())
        self.close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS

    def take_watch_list(self) -> Collection[int]:
        """Return the tasks to report releases of, and mark the list as sent."""
        with self._lock:
            self.watch_list_sent = True
            return tuple(self._watched_tasks)

    def withdraw(self) -> list[tuple[TaskGroup, Any]]:
        """End the buffer, and return all pending messages as if they had never been accepted."""
        lost_before = self._session.possibly_lost
        with self._lock:
            if not self._buffer.mark_ended():
                return []
            if self.disconnected:  # messages that it had acknowledged may be lost: count them
                self._session.on_receiver_lost()
            withdrawn = self._session.withdraw()
            self._buffer.notify()
        log_lost(self._buffer.address, self._session.possibly_lost - lost_before)
        return withdrawn

    def watch_releases(self, tasks: Collection[int]) -> None:
        """Request a report of every release for these tasks. Otherwise some arrive only with later credit."""
        with self._lock:
            if self._watched_tasks.issuperset(tasks):
                return
            self._watched_tasks.update(tasks)
            self.watch_list_sent = False
        self._buffer.wake()
