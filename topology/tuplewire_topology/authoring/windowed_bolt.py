"""A base class of bolts that process windows of tuples. Source: Storm's `BaseWindowedBolt`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from tuplewire.errors import TopologyError
from tuplewire_topology.authoring.collector import OutputCollector
from tuplewire_topology.authoring.component import Bolt, TopologyContext
from tuplewire_topology.authoring.tuples import Tuple
from tuplewire_topology.authoring.windows import CountWindows, TimeWindows, TupleWindow, Window

_ONLY_THE_LAST = 86_400.0
"""The tick interval, in seconds, of bolts that need only the last tick."""


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
