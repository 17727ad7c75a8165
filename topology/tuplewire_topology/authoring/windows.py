"""Windows of tuples by count and by time, and a base class of bolts that process them.

Used by programs and the builder. Owns the tuples of open windows. Not thread-safe.
Design: docs/design/topologies.md. Source: Storm's `BaseWindowedBolt`, `TupleWindow` and `WindowManager`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple, Self

from tuplewire.errors import MessageError, TopologyError
from tuplewire_topology.authoring.collector import OutputCollector
from tuplewire_topology.authoring.component import Bolt, TopologyContext
from tuplewire_topology.authoring.tuples import Tuple

_ONLY_THE_LAST = 86_400.0
"""The tick interval, in seconds, of bolts that need only the last tick."""
_MOST_SECONDS = 1e15
_MOST_WINDOWS = 2.0**51
"""The limit between time 0 and a tuple. Beyond it, two windows would have the same float as their end."""


@dataclass(frozen=True, slots=True)
class TupleWindow:
    """The tuples of one window, in order of arrival or of their times.

    Attributes:
        new: The tuples that have entered since the previous window.
        expired: The tuples that have left since the previous window.
        start: The start of a window by time, exclusive, in seconds; None: it is by count.
        end: The end of a window by time, inclusive, in seconds; None: it is by count.
    """

    tuples: Sequence[Tuple]
    new: Sequence[Tuple] = ()
    expired: Sequence[Tuple] = ()
    start: float | None = None
    end: float | None = None

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.tuples)

    def __len__(self) -> int:
        return len(self.tuples)


@dataclass(frozen=True, slots=True)
class Window:
    """The definition of a bolt's windows. Create one by count() or seconds().

    Attributes:
        length: The tuples, or seconds, of a window.
        every: The tuples, or seconds, between the ends of windows. Tumbling windows: equal to `length`.
        timestamp: The field or function with a tuple's time, in seconds since 1970; None: its arrival.
        lag: The permitted delay in seconds.
        late: The stream for tuples with a longer delay; None: they are dropped.
    """

    length: float
    every: float
    by_count: bool
    timestamp: str | Callable[[Tuple], float] | None = None
    lag: float = 0.0
    late: str | None = None

    @classmethod
    def count(cls, length: int, every: int | None = None) -> Self:
        """Return windows of `length` tuples, one after each `every` tuples (None: `length`).

        Raises:
            TopologyError: Not 0 < every <= length, or not whole numbers.
        """
        return cls(length, length if every is None else every, by_count=True)

    @classmethod
    def seconds(
        cls,
        length: float,
        every: float | None = None,
        *,
        timestamp: str | Callable[[Tuple], float] | None = None,
        lag: float = 0.0,
        late: str | None = None,
    ) -> Self:
        """Return windows of `length` seconds, one after each `every` seconds (None: `length`); see Window.

        Raises:
            TopologyError: Not 0 < every <= length, or the lag is negative. Without a timestamp: `length` is
                no multiple of `every`, or `lag` or `late` is given.
        """
        return cls(length, length if every is None else every, False, timestamp, lag, late)

    def __post_init__(self) -> None:
        whole = not self.by_count or (type(self.length) is int and type(self.every) is int)
        if not (whole and 0 < self.every <= self.length < math.inf):
            raise TopologyError(
                f"a window of {self.length!r}, every {self.every!r}: both are more than 0, the length is not "
                "below every, and counts are whole numbers"
            )
        if not 0 <= self.lag < math.inf:
            raise TopologyError(f"a lag of {self.lag!r} seconds: it is 0 or more")
        if self.timestamp is None and (self.lag or self.late):
            raise TopologyError("lag and late are for tuples with a time of their own: name its field, too")
        if not self.by_count and self.timestamp is None and self.length % self.every:
            raise TopologyError(
                f"a window of {self.length:g} s, every {self.every:g} s, by arrival: the length is a multiple"
            )


class CountWindows:
    """Windows by count, in order of arrival. Not thread-safe."""

    def __init__(self, window: Window) -> None:
        self._length, self._every = int(window.length), int(window.every)
        self._held: deque[Tuple] = deque()
        self._new: list[Tuple] = []
        self._expired: list[Tuple] = []

    def add(self, message: Tuple) -> Iterator[TupleWindow]:
        """Add a tuple, and yield the window that is then due, if any."""
        self._held.append(message)
        self._new.append(message)
        if len(self._held) > self._length:
            self._expired.append(self._held.popleft())
        if len(self._new) == self._every:
            yield from self.rest()

    def rest(self) -> Iterator[TupleWindow]:
        """Yield a window with the remaining tuples, if any is new."""
        if self._new:
            new, self._new = self._new, []
            expired, self._expired = self._expired, []
            yield TupleWindow(list(self._held), new, expired)


class _Timed(NamedTuple):
    at: float
    message: Tuple


class TimeWindows:
    """Windows by time. Their ends are multiples of `every`, as in Storm. Not thread-safe.

    All windows up to the time `passed` were yielded. A tuple with this time, or an earlier one, is late.
    """

    def __init__(self, window: Window) -> None:
        self._length, self._every = window.length, window.every
        self._most = min(_MOST_SECONDS, window.every * _MOST_WINDOWS)
        self._held: list[_Timed] = []
        self._expired: list[Tuple] = []
        self._end = -math.inf
        """The end of the last window."""
        self.passed = -math.inf

    def add(self, message: Tuple, at: Any) -> bool:
        """Add a tuple; return False if it is late. Raises MessageError for an invalid time."""
        number: Any = at if isinstance(at, Real) else math.nan
        if not -self._most <= number <= self._most:  # also refuses NaN
            raise MessageError(
                f"the time of a tuple in a window is a number of seconds, at most {self._most:g}, and not "
                f"{str(at)[:100]}: convert it from a datetime or another unit"
            )
        at = float(at)
        if at <= self.passed:
            return False
        held = self._held  # sorted by time; equal times in order of arrival
        held.insert(bisect_right(held, at, key=attrgetter("at")), _Timed(at, message))
        return True

    def advance(self, now: float) -> Iterator[TupleWindow]:
        """Yield, in order, the windows that end by this time, except empty windows."""
        while self._held:
            # Skip over windows without tuples, however long the gap.
            end = max(self._end + self._every, math.ceil(self._held[0].at / self._every) * self._every)
            if end > now:
                break
            begin, before = end - self._length, self._end
            self._end = end
            gone = bisect_right(self._held, begin, key=attrgetter("at"))
            self._expired += [each.message for each in self._held[:gone]]
            del self._held[:gone]
            inside = self._held[: bisect_right(self._held, end, key=attrgetter("at"))]
            if inside:
                expired, self._expired = self._expired, []
                new = [each.message for each in inside if each.at > before]
                yield TupleWindow([each.message for each in inside], new, expired, begin, end)
        self.passed = max(self.passed, now)

    def rest(self) -> Iterator[TupleWindow]:
        """Yield all windows up to the first one with the last tuple."""
        if self._held and self._held[-1].at > self._end:
            yield from self.advance(math.ceil(self._held[-1].at / self._every) * self._every)


class WindowedBolt(Bolt):
    """A bolt that processes one window of tuples at a time, as the attribute `window` defines.

    ::

        class Busiest(WindowedBolt):
            outputs = ("word", "count")
            window = Window.seconds(60, every=10)

            def execute_window(self, window):
                for word, count in Counter(each["word"] for each in window).most_common(3):
                    self.collector.emit([word, count])

    A tuple is acked when it enters a window, so the contents of windows are lost if the worker fails. At the
    end of the topology, the remaining tuples are processed in last windows, which may be incomplete.

    With `timestamp`, a window is due when all input streams have reached its end plus `lag` seconds. A tuple
    that is at least `lag` seconds behind all streams is late, and counted in `late_tuples`. Its values are
    emitted on the stream `late`, which needs the fields of the input, or dropped if `late` is None.
    """

    window: Window
    late_tuples = 0

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self._counts = CountWindows(self.window)
        self._times = TimeWindows(self.window)
        self._now = 0.0
        self._latest: dict[tuple[str, str], float] = {}
        self._streams = {(each.component, each.stream) for each in context.component.inputs}

    @abstractmethod
    def execute_window(self, window: TupleWindow) -> None:
        """Process a window."""

    def execute(self, message: Tuple) -> None:
        if message.is_tick:  # without a message id, so it needs no ack
            self._give(self._tick(last=message.is_last_tick))
            return
        if self.window.by_count:
            self._give(self._counts.add(message))
        elif self.window.timestamp is None:
            self._times.add(message, self._now + self.window.every)
        else:
            self._take_timed(message)
        self.collector.ack(message)

    def _tick(self, *, last: bool) -> Iterable[TupleWindow]:
        if self.window.by_count:
            return self._counts.rest() if last else ()
        if last:
            return self._times.rest()
        if self.window.timestamp is not None:
            return ()  # time is the tuples' own, not the clock's
        self._now += self.window.every
        return self._times.advance(self._now)

    def _take_timed(self, message: Tuple) -> None:
        timestamp = self.window.timestamp
        at = timestamp(message) if callable(timestamp) else message[str(timestamp)]
        if not self._times.add(message, at):
            self.late_tuples += 1
            if self.window.late is not None:
                self.collector.emit(message.values, stream=self.window.late, anchors=message)
            return
        stream = (message.source_component, message.source_stream)
        self._latest[stream] = max(at, self._latest.get(stream, at))
        if self._latest.keys() >= self._streams:  # the slowest stream decides
            self._give(self._times.advance(min(self._latest.values()) - self.window.lag))

    def _give(self, windows: Iterable[TupleWindow]) -> None:
        for window in windows:
            self.execute_window(window)


def tick_seconds_of(bolt: WindowedBolt, what: str) -> float:
    """Return the bolt's tick interval in seconds. Raises TopologyError if `window` is not set."""
    window = getattr(bolt, "window", None)
    if not isinstance(window, Window):
        raise TopologyError(f"{what} is a WindowedBolt without windows: set window = Window.count(...) in it")
    return _ONLY_THE_LAST if window.by_count or window.timestamp is not None else window.every
