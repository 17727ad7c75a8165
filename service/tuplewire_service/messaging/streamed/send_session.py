"""A sender's session as the Send service holds it, and the stream that carries it now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tuplewire.config import AckMode
from tuplewire.errors import TuplewireError
from tuplewire.gathering import Gathering
from tuplewire.group import lane_of
from tuplewire.session.credit import CreditBook
from tuplewire.session.pressure import Exhausted
from tuplewire.session.receive import ReceiveSession
from tuplewire.session.shares import QueueShares
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.access import EVERYTHING, IAccess
from tuplewire_service.messaging.base import Intake, via_of
from tuplewire_service.messaging.streamed.stream import ServerStream

CLIENT_SOURCE = "client"


class Origin:
    """Where a session's batches come from; those that came by another worker have an origin of their own."""

    def __init__(self, session: Session, came_by: int) -> None:
        self.source = session.source
        self.via = session.via
        # A worker passes on to us what we pass on again only while a task moves, which it waits for.
        self.eager = session.worker or session.ack_mode is AckMode.PROCESSED
        self._session = session
        self._came_by = came_by

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See Origin.release; from any thread."""
        self._session.release(lane_of(task, self._came_by), messages, size_bytes)


class Session:
    """A sender's session and the stream that carries it now."""

    def __init__(
        self,
        hello: pb.Hello,
        epoch: int,
        shares: QueueShares,
        max_message_bytes: int,
        freed: Callable[[int], None],
        exhausted: Exhausted,
    ) -> None:
        """Begin one.

        freed: told a task in whose queue there is more room for others, after end().
        exhausted: see CreditBook.
        """
        self.epoch = epoch
        """Tells this session's memory from any other of the same sender, here or elsewhere."""
        # A worker's id, then the number of the connection among its own.
        worker_id = hello.sender_id.rpartition("/")[0] or hello.sender_id
        self.worker = hello.kind == pb.PEER_KIND_WORKER
        self.source = worker_id if self.worker else CLIENT_SOURCE
        self.ack_mode = AckMode.PROCESSED if hello.ack_mode == pb.ACK_MODE_PROCESSED else AckMode.QUEUED
        self.via = via_of(worker_id, hello.incarnation) if self.worker else 0
        self.origin = Origin(self, 0)
        self._origins = {0: self.origin}
        self.state = ReceiveSession(
            hello.sender_id,
            hello.incarnation,
            CreditBook(
                shares,
                max_message_bytes=max_message_bytes,
                eager=self.ack_mode is AckMode.PROCESSED,
                exhausted=exhausted,
            ),
        )
        self.stream: SendStream | None = None
        self.access: IAccess = EVERYTHING
        """What whoever carries it now may do."""
        self._shares = shares
        self._freed = freed
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def origin_of(self, via: int) -> Origin:
        """Return the origin of what came by a worker; 0: of what came straight."""
        origin = self._origins.get(via)
        if origin is None:
            origin = self._origins[via] = Origin(self, via)
        return origin

    def release(self, lane: int, messages: int, size_bytes: int) -> None:
        """Take account of messages that are done with; from any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.release, lane, messages, size_bytes)
            return
        if self.state.credit.released(lane, messages, size_bytes) and self.stream is not None:
            self.stream.wake.set()
        if self._ended and lane >= 0 and self._shares.released(lane, messages, size_bytes):
            self._freed(lane)

    def end(self) -> None:
        """Leave what is not done with to its tasks' queues: the sender is gone, or will start over."""
        self._ended = True
        self.state.credit.end()
        for task, messages, size_bytes in self.state.credit.outstanding():
            self._shares.leave(task, messages, size_bytes)

    def freed(self, task: int) -> None:
        """Tell the sender that there is more room in a task's queue."""
        if self.state.credit.freed(task) and self.stream is not None:
            self.stream.wake.set()


class SendStream:
    """One stream of a session."""

    def __init__(self, wire: ServerStream) -> None:
        self.wire = wire
        self.wake = asyncio.Event()
        self.notices: dict[str, pb.SendResponse] = {}
        """What to write besides acknowledgements, the latest of each kind: a peer may never read."""
        self.frames = Gathering(self.wake, asyncio.get_running_loop())
        """Those that were taken and are not acknowledged, unless the sender asks before."""
        self.task = asyncio.current_task()
        self.waiting: asyncio.Task[Any] | None = None
        """The task while it may be interrupted: a write must not be, see finish_writing."""
        self.ending: TuplewireError | None = None
        self.intake = Intake.ALL
        """The least intake that this stream belongs to."""
        self.finished = asyncio.Event()
        """Set once nothing more is read."""

    def notify(self, notice: pb.SendResponse) -> None:
        """Write this soon, in place of an earlier one of its kind."""
        kind = notice.WhichOneof("kind") or ""
        if kind == "backpressure" and kind in self.notices:
            _merge(self.notices[kind].backpressure, notice.backpressure)
        else:
            self.notices[kind] = notice
        self.wake.set()

    def end(self, error: TuplewireError) -> None:
        """Make the stream end with an error, after a last acknowledgement; only the first error counts."""
        if self.ending is None:
            self.ending = error
            if self.waiting is not None:
                self.waiting.cancel()


def _merge(status: pb.BackpressureStatus, later: pb.BackpressureStatus) -> None:
    """Add a later status to one that was not sent yet."""
    congested = set(status.congested).difference(later.relieved).union(later.congested)
    relieved = set(status.relieved).union(later.relieved).difference(later.congested)
    status.congested[:] = sorted(congested)
    status.relieved[:] = sorted(relieved)
