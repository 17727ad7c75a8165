"""Windows of tuples by count and by time, and a base class of bolts that process them.

Used by programs and the builder. Owns the tuples of open windows. Not thread-safe.
Design: docs/design/topologies.md. Source: Storm's `BaseWindowedBolt`, `TupleWindow` and `WindowManager`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right, insort
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

_LAST_TICK_ONLY_SECONDS = 86_400.0
"""The tick interval, in seconds, of bolts that need only the last tick."""
_MAX_TIME = 1e15
_MAX_WINDOWS = 2.0**51
"""The maximum number of windows from time 0 to a tuple: more would give two windows the same end."""


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
        by_count: True if both count tuples; False: seconds.
        timestamp: The field or function with a tuple's time, in seconds since 1970; None: its arrival.
        lag: The permitted delay in seconds.
        late_stream: The stream for tuples with a longer delay; None: they are dropped.
    """

    length: float
    every: float
    by_count: bool
    timestamp: str | Callable[[Tuple], float] | None = None
    lag: float = 0.0
    late_stream: str | None = None

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
        late_stream: str | None = None,
    ) -> Self:
        """Return windows of `length` seconds, one after each `every` seconds (None: `length`); see Window.

        Raises:
            TopologyError: Not 0 < every <= length, or the lag is negative. Without a timestamp: `length` is
                no multiple of `every`, or `lag` or `late_stream` is given.
        """
        return cls(length, length if every is None else every, False, timestamp, lag, late_stream)

    def __post_init__(self) -> None:
        kinds = {type(self.length), type(self.every)}
        valid = kinds == {int} if self.by_count else all(issubclass(each, Real) for each in kinds)
        if not (valid and 0 < self.every <= self.length < math.inf):
            raise TopologyError(
                f"a window of {self.length!r}, every {self.every!r}: both must be numbers above 0, length "
                "must not be below every, and counts must be whole numbers"
            )
        if not (issubclass(type(self.lag), Real) and 0 <= self.lag < math.inf):
            raise TopologyError(f"lag must be a number of seconds of at least 0, not {self.lag!r}")
        if self.timestamp is None and (self.lag or self.late_stream):
            raise TopologyError("lag and late_stream need a timestamp: set timestamp to a field or function")
        if not self.by_count and self.timestamp is None and self.steps is None:
            raise TopologyError(
                f"a window of {self.length:g} s by arrival is not a multiple of every, {self.every:g} s"
            )

    @property
    def steps(self) -> int | None:
        """The length in multiples of `every`, if it is a multiple."""
        steps = round(self.length / self.every)
        return steps if math.isclose(steps * self.every, self.length, rel_tol=1e-12) else None


class CountWindows:
    """Windows by count, in order of arrival. Not thread-safe."""

    def __init__(self, window: Window) -> None:
        self._length, self._every = int(window.length), int(window.every)
        self._tuples: deque[Tuple] = deque()
        self._new: list[Tuple] = []
        self._expired: list[Tuple] = []

    def add(self, message: Tuple) -> Iterator[TupleWindow]:
        """Add a tuple, and yield the window that is then due, if any."""
        self._tuples.append(message)
        self._new.append(message)
        if len(self._tuples) > self._length:
            self._expired.append(self._tuples.popleft())
        if len(self._new) == self._every:
            yield from self.flush()

    def flush(self) -> Iterator[TupleWindow]:
        """Yield a window with the remaining tuples, if any is new."""
        if self._new:
            new, self._new = self._new, []
            expired, self._expired = self._expired, []
            yield TupleWindow(list(self._tuples), new, expired)


class _TimedTuple(NamedTuple):
    time: float
    message: Tuple


class TimeWindows:
    """Windows by time. Their ends are multiples of `every`, as in Storm. Not thread-safe.

    All windows up to the time `watermark` were yielded. A tuple with this time, or an earlier one, is late.
    """

    def __init__(self, window: Window) -> None:
        self._length, self._every, self._steps = window.length, window.every, window.steps
        self._max_time = min(_MAX_TIME, window.every * _MAX_WINDOWS)
        self._tuples: list[_TimedTuple] = []
        self._expired: list[Tuple] = []
        self._last = -math.inf
        """The last window, as its end in multiples of `every`: sums of fractions are not exact."""
        self.watermark = -math.inf

    def add(self, message: Tuple, time: Any) -> bool:
        """Add a tuple; return False if it is late. Raises MessageError for an invalid time."""
        number: Any = time if isinstance(time, Real) else math.nan
        if not -self._max_time <= number <= self._max_time:  # also refuses NaN
            raise MessageError(
                f"the time of a tuple in a window is a number of seconds, at most {self._max_time:g}, and "
                f"not {str(time)[:100]}: convert it from a datetime or another unit"
            )
        time = float(time)
        if time <= self.watermark:
            return False
        # Sorted by time; equal times in order of arrival.
        insort(self._tuples, _TimedTuple(time, message), key=attrgetter("time"))
        return True

    def advance(self, now: float) -> Iterator[TupleWindow]:
        """Yield, in order, the windows that end by this time, except empty windows."""
        self.watermark = max(self.watermark, now)
        while self._tuples:
            # Skip over windows without tuples, however long the gap.
            current = max(self._last + 1, self._first_after(self._tuples[0].time))
            end = current * self._every
            if end > now:
                break
            # The start is exactly the end of an earlier window, or a tuple between the two would be lost.
            begin = end - self._length if self._steps is None else (current - self._steps) * self._every
            previous_end, self._last = self._last * self._every, current
            first_inside = bisect_right(self._tuples, begin, key=attrgetter("time"))
            self._expired += [each.message for each in self._tuples[:first_inside]]
            del self._tuples[:first_inside]
            inside = self._tuples[: bisect_right(self._tuples, end, key=attrgetter("time"))]
            if inside:
                expired, self._expired = self._expired, []
                new = [each.message for each in inside if each.time > previous_end]
                yield TupleWindow([each.message for each in inside], new, expired, begin, end)

    def flush(self) -> Iterator[TupleWindow]:
        """Yield all windows up to the first one with the last tuple."""
        if self._tuples:
            yield from self.advance(self._first_after(self._tuples[-1].time) * self._every)

    def _first_after(self, time: float) -> int:
        """Return the first window that ends at this time or later."""
        whole = math.floor(time / self._every)
        return whole + (whole * self._every < time)


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
    emitted on the stream `late_stream`, which needs the fields of the input, or dropped if that is None.
    """

    window: Window
    late_tuples = 0

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self._count_windows = CountWindows(self.window)
        self._time_windows = TimeWindows(self.window)
        self._ticks = 0
        self._entered: Tuple | None = None
        self._max_times: dict[tuple[str, str], float] = {}
        self._streams = {(each.component, each.stream) for each in context.component.inputs}

    @abstractmethod
    def execute_window(self, window: TupleWindow) -> None:
        """Process a window."""

    def execute(self, message: Tuple) -> None:
        if message is not self._entered:  # otherwise a retry, because of the window that is still due
            self._due = iter(self._enter(message))
            self._window, self._entered = next(self._due, None), message
        while self._window is not None:
            self.execute_window(self._window)
            self._window = next(self._due, None)
        self._entered = None
        if not message.is_tick:  # a tick has no message id
            self.collector.ack(message)

    def _enter(self, message: Tuple) -> Iterable[TupleWindow]:
        """Add a tuple or tick, and return the windows that are then due."""
        if message.is_tick:
            return self._tick(last=message.is_final_tick)
        if self.window.by_count:
            return self._count_windows.add(message)
        if self.window.timestamp is not None:
            return self._add_by_time(message)
        self._time_windows.add(message, (self._ticks + 1) * self.window.every)
        return ()

    def _tick(self, *, last: bool) -> Iterable[TupleWindow]:
        if last:
            return (self._count_windows if self.window.by_count else self._time_windows).flush()
        if self.window.by_count or self.window.timestamp is not None:
            return ()  # the end is by count, or by the tuples' own time, not by the clock
        self._ticks += 1
        return self._time_windows.advance(self._ticks * self.window.every)

    def _add_by_time(self, message: Tuple) -> Iterable[TupleWindow]:
        timestamp = self.window.timestamp
        tuple_time = timestamp(message) if callable(timestamp) else message[str(timestamp)]
        if not self._time_windows.add(message, tuple_time):
            self.late_tuples += 1
            if self.window.late_stream is not None:
                self.collector.emit(message.values, stream=self.window.late_stream, anchors=message)
            return ()
        stream = (message.source_component, message.source_stream)
        self._max_times[stream] = max(tuple_time, self._max_times.get(stream, tuple_time))
        if self._max_times.keys() >= self._streams:  # the slowest stream decides
            return self._time_windows.advance(min(self._max_times.values()) - self.window.lag)
        return ()


def tick_seconds_of(bolt: WindowedBolt, name: str) -> float:
    """Return the bolt's tick interval in seconds. Raises TopologyError if `window` is not set."""
    window = getattr(bolt, "window", None)
    if not isinstance(window, Window):
        raise TopologyError(f"{name} is a WindowedBolt without windows: set window = Window.count(...) in it")
    return _LAST_TICK_ONLY_SECONDS if window.by_count or window.timestamp is not None else window.every
