"""The streams that carry sessions of senders in the Send service."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tuplewire.connection.stream import BatchedEvent
from tuplewire.errors import TuplewireError
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.base import AcceptedPeers
from tuplewire_service.messaging.server_stream import ServerStream


class SendStream:
    """One stream of a session."""

    def __init__(self, wire: ServerStream) -> None:
        self.wire = wire
        self.wake = asyncio.Event()
        self.notices: dict[tuple[str, int], pb.SendResponse] = {}
        """Messages besides acknowledgements: the latest of each kind and part, as a peer may never read."""
        self.frames = BatchedEvent(self.wake, asyncio.get_running_loop())
        """Accepted frames without an acknowledgement, gathered unless the sender requests one."""
        self.task = asyncio.current_task()
        self.waiting: asyncio.Task[Any] | None = None
        """The task while it may be cancelled. A write must not be cancelled; see finish_writing()."""
        self.ending: TuplewireError | None = None
        self.intake = AcceptedPeers.ALL
        """The lowest intake level that accepts this stream."""
        self.dismissed = False
        """True if the sender was notified of a drain."""
        self.finished = asyncio.Event()
        """Set once nothing more is read."""
        self.stopped = False
        """True if reading ended before the sender closed its side."""

    def notify(self, notice: pb.SendResponse, part: int = 0) -> None:
        """Write this notice soon, replacing an earlier one of its kind or part."""
        key = notice.WhichOneof("kind") or "", part
        # A relieved task is reported once, so a later status must not replace the report.
        if key[0] == "backpressure" and key in self.notices:
            _merge(self.notices[key].backpressure, notice.backpressure)
        else:
            self.notices[key] = notice
        self.wake.set()

    def stop_reading(self) -> None:
        """Stop reading from a sender that does not close its side; it still receives pending messages."""
        self.stopped = True
        if self.waiting is not None:
            self.waiting.cancel()

    async def until_stopped(self, reading: Coroutine[Any, Any, None]) -> None:
        """Read to the end, or until stop_reading()."""
        try:
            await reading
        except asyncio.CancelledError:
            # Cancelled by end(), or by a server that stops.
            if not self.stopped or self.ending is not None:
                raise
            # The cancellation only ended the read: this task continues, until the rest is written.
            if self.waiting is not None:
                self.waiting.uncancel()

    def end(self, error: TuplewireError) -> None:
        """End the stream with an error, after a last acknowledgement; only the first error counts."""
        if self.ending is None:
            self.ending = error
            # Without a read, the task may be writing, which must not be cancelled; _serve_stream() raises the
            # error.
            if self.waiting is not None:
                self.waiting.cancel()


def _merge(status: pb.BackpressureStatus, later: pb.BackpressureStatus) -> None:
    congested = set(status.congested).difference(later.relieved).union(later.congested)
    relieved = set(status.relieved).union(later.relieved).difference(later.congested)
    status.congested[:] = sorted(congested)
    status.relieved[:] = sorted(relieved)
