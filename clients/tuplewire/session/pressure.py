"""What holds messages up, noted where each cause begins and ends, and what receivers say of their load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuplewire.session.durations import Durations, Example, FrameTimes
from tuplewire.session.flow import OutFrame
from tuplewire.session.send import SendWindow
from tuplewire.values.group import TaskGroup, task_and_forwarded

HELD_SECONDS = 0.005
"""A connection that takes nothing for this long is held up. A shorter pause is usual: it writes, or its peer
gathers acknowledgements."""


@dataclass(slots=True, eq=False)
class OutboundPressure:
    """What holds messages up in all connections of a process. Belongs to the event loop."""

    without_credit: int = 0
    """How many flows wait for credit, added up over the connections."""
    held: dict[object, float] = field(default_factory=dict)
    """Connections that take nothing while messages wait, and since when by the loop's clock."""
    send_to_ack: Durations = field(default_factory=Durations)
    """From the writing of a frame to its acknowledgement."""
    example: Callable[[Sequence[Sequence[TaskGroup]]], Example | None] | None = None
    """Returns a message of a frame that is traced; see Observer.example. None: nothing is."""

    def hold(self, connection: object, now: float) -> None:
        """Note that a connection takes nothing from now on; a second call changes nothing."""
        self.held.setdefault(connection, now)

    def free(self, connection: object) -> None:
        """Note that a connection takes messages again, or that none wait for it."""
        self.held.pop(connection, None)

    def holds(self, connection: object, now: float) -> bool:
        """Whether a connection has taken nothing for longer than usual."""
        since = self.held.get(connection)
        return since is not None and now - since > HELD_SECONDS

    @property
    def held_since(self) -> float | None:
        """Since when some connection takes nothing; None when all of them do."""
        return next(iter(self.held.values()), None)


class SendingPressure:
    """Keeps `outbound` up to date for one window, whose driver says what happens.

    Right only if one thread calls it: a worker, which alone reads what is told, sends where its I/O runs. A
    program's threads may call look() beside the I/O; nobody reads what their session tells.
    """

    def __init__(
        self, window: SendWindow, clock: Callable[[], float], outbound: OutboundPressure | None = None
    ) -> None:
        self.outbound = outbound or OutboundPressure()
        """Where this session adds its part; a worker has one for all its connections."""
        self._window = window
        self._clock = clock
        self._without_credit = 0
        self._frames = FrameTimes()

    def look(self, *, connected: bool) -> None:
        """Update the counts. A connection that is down takes nothing."""
        without_credit = len(self._window.without_credit)
        if without_credit != self._without_credit:
            self.outbound.without_credit += without_credit - self._without_credit
            self._without_credit = without_credit
        if connected:
            return
        if self._window.messages:
            self.outbound.hold(self, self._clock())
        else:
            self.outbound.free(self)

    def opened(self) -> None:
        """Note that the session is connected again."""
        self.outbound.free(self)
        if self._window.acknowledged:
            self.acknowledged()
        else:
            # All of them are written again, maybe under new numbers.
            self._frames = FrameTimes()

    def idles(self) -> None:
        """Note that the driver stops writing, perhaps for want of acknowledgements."""
        if self._window.full:
            self.outbound.hold(self, self._clock())

    def goes_on(self) -> None:
        """Note that the connection takes messages again."""
        self.outbound.free(self)

    def writes(self, frame: OutFrame) -> None:
        """Note that a frame is being written, until goes_on()."""
        now = self._clock()
        look = self.outbound.example
        self._frames.written(frame.sequence, frame.messages, now, None if look is None else look(frame.runs))
        self.outbound.hold(self, now)

    def acknowledged(self) -> None:
        """Note that the window has taken an acknowledgement in."""
        self._frames.acknowledged(self._window.acknowledged, self._clock(), self.outbound.send_to_ack)

    def blocked_tasks(self) -> set[int]:
        """Return the tasks with messages that are not taken at the moment."""
        if self.outbound.holds(self, self._clock()):
            return self._window.waiting_tasks()
        return {task_and_forwarded(flow)[0] for flow in self._window.without_credit}


class ReportedLoads:
    """The last report of each task, its load or (1.0) that it is congested; one that is not repeated expires.

    Source: Storm's `LoadMapping` and `BackPressureStatus`.
    """

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._reports: dict[int, tuple[float, float]] = {}

    def take(self, reports: Mapping[int, float], now: float) -> None:
        """Take in a report. reports: 0 (idle) to 1 (full), by task. now: seconds, of any clock."""
        known = self._reports
        for task, value in reports.items():
            known.pop(task, None)  # so that the oldest come first
            known[task] = (value, now)
        while known and known[oldest := next(iter(known))][1] <= now - self._expires_seconds:
            del known[oldest]

    def forget(self, tasks: Iterable[int]) -> None:
        """Take back what was reported of these tasks."""
        for task in tasks:
            self._reports.pop(task, None)

    def tasks(self, now: float) -> frozenset[int]:
        """Return the tasks of which a report still holds."""
        since = now - self._expires_seconds
        return frozenset(task for task, (_, told) in list(self._reports.items()) if told > since)

    def of(self, tasks: Iterable[int], now: float) -> dict[int, float]:
        """Return the last reports of these tasks, without those that have expired."""
        since = now - self._expires_seconds
        found = {task: self._reports.get(task, (0.0, since)) for task in tasks}
        return {task: value for task, (value, told) in found.items() if told > since}
