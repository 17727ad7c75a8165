"""Which local tasks are congested, by how full their queues are.

Source: Storm's `BackPressureTracker`; the marks are those of `backpressure.disruptor.high.watermark` and
`backpressure.disruptor.low.watermark`.
"""

from __future__ import annotations

from collections.abc import Mapping

HIGH_LOAD = 0.9
"""A task is congested from this load on, of a full queue's 1 ..."""
LOW_LOAD = 0.4
"""... until its load is no more than this: in between nothing changes, so that none flickers."""


class Congestion:
    """The congested tasks of a worker; for display, credit is what holds senders back."""

    def __init__(self) -> None:
        self.tasks: frozenset[int] = frozenset()

    def look(self, loads: Mapping[int, float]) -> frozenset[int]:
        """Take present loads of local tasks, 0 where one is missing; return the tasks that are relieved."""
        before = self.tasks
        self.tasks = frozenset(
            task for task, load in loads.items() if load >= HIGH_LOAD or (load > LOW_LOAD and task in before)
        )
        return before - self.tasks
