"""Pairs of measurements, at the month's workers and at idle ones of the same age: other load slows both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import ours
from agent import Agent
from links import Cell, Link
from workload import DESTINATION_TASK, MESSAGE_BYTES, PACED_TASK

from tuplewire.settings.config import AckMode

MEASURED_TASKS = (DESTINATION_TASK, PACED_TASK)
"""The tasks for measurements, at the worker far and at its counterpart without load."""
_SETTINGS = {"ack_mode": AckMode.PROCESSED, "max_pending_messages": 10_000}
"""Enough in flight to keep the line busy: the rate is that of the whole line, without a growing queue."""
_FRAME = 200
_SECONDS = 0.1
_TRIPS = 20

Way = tuple[str, str]
"""The addresses of the worker that accepts the messages, and of the worker that owns their tasks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement: messages per second at full speed, and the median time of single messages."""

    rate: float
    trip_seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A measurement at the workers of the month, and one at the workers without load."""

    month: Measured
    peace: Measured


@dataclass(frozen=True, slots=True)
class Medians:
    """The medians of some pairs; rate and speed are relative to the workers without load."""

    rate: float
    speed: float
    messages_per_second: float
    trip_seconds: float


def medians(pairs: Sequence[Pair]) -> Medians:
    """Return the medians of pairs, and of the measurements at the workers of the month."""
    return Medians(
        statistics.median(pair.month.rate / pair.peace.rate for pair in pairs),
        statistics.median(pair.peace.trip_seconds / pair.month.trip_seconds for pair in pairs),
        statistics.median(pair.month.rate for pair in pairs),
        statistics.median(pair.month.trip_seconds for pair in pairs),
    )


class Canary:
    """Two lines of the bench, each with a sender at one worker and a consumer at another."""

    def __init__(self, stack: ExitStack, month: Way, peace: Way) -> None:
        self._links = [
            Link(
                name,
                stack.enter_context(Agent(ours.producer, entry, _SETTINGS)),
                stack.enter_context(Agent(ours.consumer, owner)),
            )
            for name, (entry, owner) in (("month", month), ("peace", peace))
        ]
        for link in self._links:
            link.check(_FRAME, _FRAME)  # so that both ends are connected from the first night on
        self._turns = 0

    def pair(self) -> Pair:
        """Take both measurements; the order alternates."""
        self._turns += 1
        order = self._links if self._turns % 2 else self._links[::-1]
        found = {link.name: _measured(link) for link in order}
        return Pair(found["month"], found["peace"])


def _measured(link: Link) -> Measured:
    rate = link.trial(Cell("chain", _FRAME), _SECONDS).rate
    # Each trial has one message, which is alone on the line.
    trips = [link.paced(1, 1.0, size=MESSAGE_BYTES).nanoseconds[0] for _ in range(_TRIPS)]
    return Measured(rate, statistics.median(trips) / 1e9)
