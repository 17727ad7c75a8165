"""One sending session's part in the metrics: what holds its messages up, and how long frames take."""

from __future__ import annotations

from collections.abc import Callable

from tuplewire.group import task_and_forwarded
from tuplewire.session.durations import FrameTimes
from tuplewire.session.frame import OutFrame
from tuplewire.session.pressure import OutboundPressure
from tuplewire.session.send import SendWindow


class SendingPressure:
    """Keeps `outbound` up to date for one window, whose driver says what happens.

    Right only if one thread calls it: a worker, which alone reads what is told, sends where its I/O runs. A
    program's threads may call look() beside the I/O; nobody reads what their session tells.
    """

    def __init__(self, window: SendWindow, clock: Callable[[], float]) -> None:
        self.outbound = OutboundPressure()
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
            self._frames.start_over()  # all of them are written again, maybe under new numbers

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
        self._frames.written(frame.sequence, frame.messages, now)
        self.outbound.hold(self, now)

    def acknowledged(self) -> None:
        """Note that the window has taken an acknowledgement in."""
        self._frames.acknowledged(self._window.acknowledged, self._clock(), self.outbound.send_to_ack)

    def blocked_tasks(self) -> set[int]:
        """Return the tasks with messages that are not taken at the moment."""
        if self.outbound.holds(self, self._clock()):
            return self._window.waiting_tasks()
        return {task_and_forwarded(flow)[0] for flow in self._window.without_credit}
