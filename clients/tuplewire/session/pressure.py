"""Backpressure of connections: blocked tasks and connections, frame times, and loads that receivers report.

Used by SendingEnd, which reports its events to a SendingPressure and stores ReportedLoads, and by the worker,
which reads OutboundPressure for metrics and congestion reports. Owns the counts of one session or process.
Call only from the event loop. Programs are an exception; see SendingPressure. Design: docs/design/status.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuplewire.session.durations import Durations, TraceIds
from tuplewire.session.flow import OutFrame
from tuplewire.session.send import SendSession
from tuplewire.values.group import TaskGroup, split_flow

BLOCKED_AFTER_SECONDS = 0.005
"""A connection that accepts no messages for longer than this is blocked. Shorter pauses are normal: the
connection is writing, or its peer delays acknowledgements."""


@dataclass(slots=True, eq=False)
class OutboundPressure:
    """The backpressure on all connections of a process. Call only from the event loop."""

    waiting_flows: int = 0
    """The number of flows that wait for credit, summed over the connections."""
    blocked_connections: dict[object, float] = field(default_factory=dict)
    """Connections that accept no messages while messages wait, with the start time by the loop's clock."""
    send_to_ack: Durations = field(default_factory=Durations)
    """Times from the write of a frame to its acknowledgement."""
    find_example: Callable[[Sequence[Sequence[TaskGroup]]], TraceIds | None] | None = None
    """Returns a traced message of a frame; see WorkerObserver.find_example. None disables exemplars."""

    @property
    def paused_since(self) -> float | None:
        """The start of the longest pause of a connection, by the loop's clock; None if none pauses."""
        return next(iter(self.blocked_connections.values()), None)


class SendingPressure:
    """Updates `outbound` with the state of one send session. The connection driver reports the events.

    The counts are correct only if one thread calls the methods. This holds in a worker, which sends on its
    event loop and is the only reader of the counts. Threads of a program may call refresh() during I/O,
    because the counts of a program are not read.
    """

    def __init__(
        self, session: SendSession, clock: Callable[[], float], outbound: OutboundPressure | None = None
    ) -> None:
        self.outbound = outbound or OutboundPressure()
        """The counts that this session adds to. All connections of a worker share one object."""
        self._session = session
        self._clock = clock
        self.waiting_flows = 0
        """The number of flows without credit that `outbound` counts."""
        self._written: deque[tuple[int, int, float, TraceIds | None]] = deque()
        """The number, messages, first write and example of each frame that is not acknowledged."""

    def refresh(self, *, connected: bool) -> None:
        """Update the counts. A disconnected session with messages counts as blocked."""
        without_credit = len(self._session.blocked_flows)
        self.outbound.waiting_flows += without_credit - self.waiting_flows
        self.waiting_flows = without_credit
        # While connected, the writer reports blocked times itself: see on_idle() and on_write().
        if connected:
            return
        if self._session.messages:
            self.outbound.blocked_connections.setdefault(self, self._clock())
        else:
            self.on_resume()

    def on_connected(self) -> None:
        """Record that the session is connected again."""
        self.on_resume()
        if self._session.acked_frame:
            self.on_acknowledged()
        else:
            # No frame is acknowledged in this numbering: all frames are written again, maybe renumbered.
            self._written.clear()

    def on_idle(self) -> None:
        """Record that the driver stops writing, possibly because it waits for acknowledgements."""
        # Otherwise no message is ready. Flows without credit are counted separately; see refresh().
        if self._session.at_frame_limit:
            self.outbound.blocked_connections.setdefault(self, self._clock())

    def on_resume(self) -> None:
        """Record that the connection accepts messages again, or that no messages wait for it."""
        self.outbound.blocked_connections.pop(self, None)

    def on_write(self, frame: OutFrame) -> None:
        """Record that a frame is being written, until on_resume() is called."""
        now = self._clock()
        if not self._written or frame.sequence > self._written[-1][0]:  # not the repeated write of a frame
            example = self.outbound.find_example and self.outbound.find_example(frame.runs)
            self._written.append((frame.sequence, frame.messages, now, example))
        self.outbound.blocked_connections.setdefault(self, now)

    def on_acknowledged(self) -> None:
        """Record that the session has applied an acknowledgement."""
        now, durations = self._clock(), self.outbound.send_to_ack
        while self._written and self._written[0][0] <= self._session.acked_frame:
            _, messages, since, example = self._written.popleft()
            durations.add(now - since, messages)
            if example is not None:
                durations.add_exemplar(now - since, example)

    def blocked_tasks(self) -> set[int]:
        """Return the tasks with messages that cannot be sent now."""
        # A blocked connection blocks all its tasks; otherwise only flows without credit are blocked.
        now = self._clock()
        if now - self.outbound.blocked_connections.get(self, now) > BLOCKED_AFTER_SECONDS:
            return self._session.waiting_tasks()
        return {split_flow(flow)[0] for flow in self._session.blocked_flows}


class ReportedLoads:
    """The last reported load of each task, or 1.0 if it is congested. A report expires unless repeated.

    Source: Storm's `LoadMapping` and `BackPressureStatus`.
    """

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._reports: dict[int, tuple[float, float]] = {}

    def update(self, reports: Mapping[int, float], now: float) -> None:
        """Store the reported loads, 0 (idle) to 1 (full). `now`: in seconds, from any monotonic clock."""
        known = self._reports
        for task, value in reports.items():
            known.pop(task, None)  # keeps the dictionary ordered by age, so expired reports are at its front
            known[task] = (value, now)
        while known and known[oldest := next(iter(known))][1] <= now - self._expires_seconds:
            del known[oldest]

    def forget(self, tasks: Iterable[int]) -> None:
        """Remove the reports of these tasks."""
        for task in tasks:
            self._reports.pop(task, None)

    def tasks(self, now: float) -> frozenset[int]:
        """Return the tasks with a report that has not expired."""
        return frozenset(self.get(list(self._reports), now))

    def get(self, tasks: Iterable[int], now: float) -> dict[int, float]:
        """Return the last reports of these tasks, without expired ones."""
        since = now - self._expires_seconds
        found = {task: self._reports.get(task, (0.0, since)) for task in tasks}
        return {task: value for task, (value, reported_at) in found.items() if reported_at > since}
