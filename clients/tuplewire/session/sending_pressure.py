"""What one sending session tells of itself: what holds its messages up, and how long its frames take."""

from __future__ import annotations

from collections.abc import Callable

from tuplewire.group import task_and_via
from tuplewire.session.durations import FrameTimes
from tuplewire.session.frame import OutFrame
from tuplewire.session.pressure import OutboundPressure
from tuplewire.session.send import SendWindow


class SendingPressure:
    """Keeps `told` up to date for one window, whose driver says what happens. Not thread-safe."""

    def __init__(self, window: SendWindow, clock: Callable[[], float]) -> None:
        self.told = OutboundPressure()
        """Where it is told; a worker has one for all its connections."""
        self._window = window
        self._clock = clock
        self._starved = 0
        self._frames = FrameTimes()

    def look(self, *, connected: bool) -> None:
        """Tell what waits for credit. A connection that is down takes nothing."""
        starved = len(self._window.starved)
        if starved != self._starved:
            self.told.starved += starved - self._starved
            self._starved = starved
        if connected:
            return
        if self._window.messages:
            self.told.hold(self, self._clock())
        else:
            self.told.free(self)

    def opened(self) -> None:
        """Note that there is a connection again."""
        self.told.free(self)
        if self._window.acknowledged:
            self.acknowledged()
        else:
            self._frames.start_over()  # all of them are written again, maybe under new numbers

    def idles(self) -> None:
        """Note that nothing is written now; it may be for want of acknowledgements."""
        if self._window.full:
            self.told.hold(self, self._clock())

    def goes_on(self) -> None:
        """Note that the connection takes something again."""
        self.told.free(self)

    def writes(self, frame: OutFrame) -> None:
        """Note that a frame is being written, until goes_on()."""
        now = self._clock()
        self._frames.written(frame.sequence, frame.messages, now)
        self.told.hold(self, now)

    def acknowledged(self) -> None:
        """Note that the window has taken an acknowledgement in."""
        self._frames.acknowledged(self._window.acknowledged, self._clock(), self.told.send_to_ack)

    def blocked_tasks(self) -> set[int]:
        """Return the tasks that have something which is not taken at the moment."""
        if self.told.holds(self, self._clock()):
            return self._window.waiting_tasks()
        return {task_and_via(lane)[0] for lane in self._window.starved}
