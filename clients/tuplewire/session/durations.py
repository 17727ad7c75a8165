"""Times in buckets, as plain numbers: what a Prometheus histogram needs, for one search a batch."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bound of each bucket in seconds; one more bucket has everything longer."""
_ONE_TIME_SECONDS = 0.001
"""Messages that come within so much time share one time, so single messages need no number each."""

Example = tuple[str, str]
"""A message that is traced: the ids of its trace and its span."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A duration of a message that is traced. at: when it was measured, in seconds since 1970."""

    trace_id: str
    span_id: str
    seconds: float
    at: float


@dataclass(slots=True, eq=False)
class Durations:
    """Durations as a histogram: a count for each bucket, and the sum in seconds.

    exemplars: the last one of a bucket, by the bucket's place.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def add(self, seconds: float, count: int = 1) -> None:
        """Add `count` durations. A negative one, as two hosts' clocks may give, counts as 0."""
        if seconds < 0:
            seconds = 0.0
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.seconds += seconds * count

    def mark(self, seconds: float, example: Example) -> None:
        """Keep an example of a duration that was added."""
        seconds = max(0.0, seconds)
        self.exemplars[bisect_left(BOUNDS, seconds)] = Exemplar(*example, seconds, time.time())


class QueueTimes:
    """How long the messages of a queue wait. Messages are numbered in a row, and leave in order."""

    __slots__ = ("_came", "_gone")

    def __init__(self, start: int = 0) -> None:
        """Begin empty, after number `start`."""
        self._came: deque[tuple[int, float]] = deque()
        self._gone = start

    def came(self, last: int, now: float) -> None:
        """Note that the messages up to a number have come."""
        came = self._came
        if came and now - came[-1][1] < _ONE_TIME_SECONDS:
            came[-1] = (last, came[-1][1])
        else:
            came.append((last, now))

    def left(self, last: int, now: float, into: Durations) -> None:
        """Note that the messages up to a number have left; a message counts once."""
        came = self._came
        while self._gone < last and came:
            until, since = came[0]
            if until <= last:
                came.popleft()
            else:
                until = last
            into.add(now - since, until - self._gone)
            self._gone = until


class FrameTimes:
    """How long the frames of a session take from their first writing to their acknowledgement."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: deque[tuple[int, int, float, Example | None]] = deque()

    def written(self, sequence: int, messages: int, now: float, example: Example | None = None) -> None:
        """Note that a frame was written; a repeated writing counts once."""
        if not self._written or sequence > self._written[-1][0]:
            self._written.append((sequence, messages, now, example))

    def acknowledged(self, sequence: int, now: float, into: Durations) -> None:
        """Note that the frames up to a number are acknowledged."""
        written = self._written
        while written and written[0][0] <= sequence:
            _, messages, since, example = written.popleft()
            into.add(now - since, messages)
            if example is not None:
                into.mark(now - since, example)
