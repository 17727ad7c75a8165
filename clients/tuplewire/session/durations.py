"""Histograms of durations as plain numbers, for Prometheus.

One search in the buckets serves a whole batch of messages. Callers pass seconds; only add_exemplar() reads a
clock. Not thread-safe. Design: docs/design/traces.md (exemplars).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bound of each bucket in seconds. One more bucket counts longer durations."""

TraceIds = tuple[str, str]
"""A traced message: the ids of its trace and its span."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A duration of a traced message. `unix_seconds` is the time of the measurement, since 1970."""

    trace_id: str
    span_id: str
    duration_seconds: float
    unix_seconds: float


@dataclass(slots=True, eq=False)
class Durations:
    """A histogram of durations: a count for each bucket, and the sum in seconds. Not thread-safe."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """The last exemplar of each bucket, by the index of the bucket."""

    def add(self, seconds: float, count: int = 1) -> None:
        """Add `count` equal durations. A negative duration, from the clocks of two hosts, counts as 0."""
        if seconds < 0:
            seconds = 0.0
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.seconds += seconds * count

    def add_exemplar(self, seconds: float, trace_ids: TraceIds) -> None:
        """Store an exemplar for a duration that was added."""
        seconds = max(0.0, seconds)
        self.exemplars[bisect_left(BOUNDS, seconds)] = Exemplar(*trace_ids, seconds, time.time())
