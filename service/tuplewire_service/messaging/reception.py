"""The delivery of received messages to a callback or to `pull`; shared by all transports.

Used by streamed_transport.py and send_service.py; worker/ and metrics/ use its constants. Owns the receive
counts and the messages for `pull`. Thread-safe. Exceptions: one thread at a time calls count() and deliver().
Design: docs/design/sessions.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from tuplewire.errors import ClosedError, RefusedError
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.group import PATH, SIZE_BYTES, TaskGroup, flow_path_of, get_count
from tuplewire.values.message import SHUTDOWN_MESSAGE, TaskMessage, encoded_of
from tuplewire.wire.control_pb2 import GetStatusResponse
from tuplewire_service.messaging.base import BLOCK, IConnectionCallback, InboundSession, ReceivedBatch
from tuplewire_service.messaging.sender_sessions import Session

logger = event_logger(__name__)

OTHER = "other"
"""The name of the sum of all entries without a separate count."""
MAX_SOURCES = 1000
"""Maximum number of separately counted sources; bounds the memory that hostile senders can use."""


class Reception(IConnectionCallback):
    """Counts received messages, and passes them to a callback or stores them for `pull`.

    A transport waits at the first frame until there is a receiver. Waiting messages stay unacknowledged at
    their sender, so a late callback can still refuse them. Messages for `pull` are not released, so the
    senders' credit bounds them. Thread-safe, except count() and deliver(), which one thread calls at a time.
    """

    def __init__(self, on_receiver_ready: Callable[[], object]) -> None:
        """Start closed to messages. `on_receiver_ready` is called once, by register() or the first pull()."""
        self.refused_messages: Counter[str] = Counter()
        self.callback: IConnectionCallback = self
        """Receives the messages: this object, for `pull`, until a callback is registered."""
        self._received: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._messages: SimpleQueue[tuple[TaskMessage, InboundSession | None]] = SimpleQueue()
        self._on_open = on_receiver_ready
        self._is_pull_mode = False
        self._log_rate = LogRateLimiter()

    def add_to(self, status: GetStatusResponse) -> None:
        """Add the received amounts by source, and the refused messages, to a worker's status."""
        received = {each.source: each for each in status.received}
        for source, (messages, frames, size_bytes) in list(self._received.items()):
            total = received.get(source) or status.received.add(source=source)
            total.messages += messages
            total.frames += frames
            total.bytes += size_bytes
        for code, count in list(self.refused_messages.items()):
            status.refused_messages[code] += count

    def forget(self, source: str) -> None:
        """Forget the counts of a worker after its last session is closed."""
        self._received.pop(source, None)

    def count(self, source: str, groups: Sequence[TaskGroup]) -> None:
        """Count a frame."""
        if source not in self._received and len(self._received) >= MAX_SOURCES:
            source = OTHER
        counts = self._received.setdefault(source, [0, 0, 0])
        counts[0] += sum(map(get_count, groups))
        counts[1] += 1
        counts[2] += sum(map(SIZE_BYTES, groups))

    def deliver(
        self, session: Session, sequence: int, groups: Sequence[TaskGroup], assignment_version: int
    ) -> None:
        """Deliver the accepted groups of a frame; report refused and released groups to its session."""
        by_path = {0: groups} if set(map(PATH, groups)) == {0} else _by_flow_path(groups)
        for flow_path, some in by_path.items():
            batch = ReceivedBatch.for_callback(some, session.inbound_session(flow_path), assignment_version)
            # The sender must get an answer even if the callback has a defect.
            try:
                self.callback.recv(batch)
            except Exception as defect:
                if failures := self._log_rate.count_event(type(defect).__qualname__):
                    extra = {"sender": session.source, "failures": failures}
                    logger.exception("callback.failed", extra=extra)
                error = RefusedError("the receiver has a defect; see its log")
                batch.refusals = [(group, error) for group in some]
            for group, error in batch.refusals:
                self.refused_messages[error.code] += group.count
                session.state.refuse(sequence, group, error)
            if batch.held:
                continue
            refused = {id(group) for group, _ in batch.refusals}
            for group in some:
                # The result is not needed: the acknowledgement of this frame contains the grant.
                if id(group) not in refused:
                    session.state.credit.on_released(group.flow_id, group.count, group.size_bytes)

    def register(self, callback: IConnectionCallback) -> None:
        """Deliver to the callback from now on. Raises ClosedError if there is another receiver."""
        # Two receivers would each get a part of the messages.
        with self._lock:
            if self.callback is not self or self._is_pull_mode:
                other = "recv() takes" if self._is_pull_mode else "another callback gets"
                raise ClosedError(f"{other} this connection's messages; bind another port for this callback")
            self.callback = callback
        self._on_open()

    def recv(self, batch: ReceivedBatch) -> None:
        batch.hold()
        for message in batch:
            self._messages.put((message, batch.inbound))

    def pull(self, flags: int) -> TaskMessage | None:
        """Return the next message; for the flags, see IServerConnection.recv()."""
        with self._lock:
            if self.callback is not self:
                raise ClosedError("a callback receives the messages; bind another port for recv()")
            first, self._is_pull_mode = not self._is_pull_mode, True
        if first:
            self._on_open()
        try:
            message, inbound = self._messages.get(block=flags == BLOCK)
        except Empty:
            return None
        if inbound is None:
            self.close()  # further calls get the notice, too
        else:
            inbound.release(message.task, 1, len(message.message) + len(encoded_of(message)))
        return message

    def close(self) -> None:
        """Return the shutdown notice to callers of pull() once no message remains."""
        self._messages.put((SHUTDOWN_MESSAGE, None))


def _by_flow_path(groups: Sequence[TaskGroup]) -> Mapping[int, Sequence[TaskGroup]]:
    """Return the groups by path: releases are counted by path, and a batch has one inbound for them."""
    by_path: dict[int, list[TaskGroup]] = {}
    for group in groups:
        by_path.setdefault(flow_path_of(group.path), []).append(group)
    return by_path
