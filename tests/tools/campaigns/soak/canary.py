"""The speed of messages through two workers: pairs of measurements, taken alternately.

A pair has one measurement at the workers of the month, and one at two workers of the same age without load.
Other load of the machine slows both, so their ratio shows the effect of the month.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection

from campaigns.soak.generations import MEASURED_TASK
from helpers.program import serve
from helpers.streams import numbered_group
from helpers.topology import TOPOLOGY

from tuplewire import Client, TaskMessageBatch
from tuplewire.settings.config import AckMode

_SOURCE = 50
_BATCHES, _BATCH = 250, 200
_SIZE = 100
_TRIPS = 50
_WAIT_SECONDS = 60.0
_MOST_IN_FLIGHT = 10_000
"""Enough to keep the line busy: the rate is that of the whole line, without a growing queue."""

Way = tuple[str, str]
"""The addresses of the worker that accepts the messages, and of the worker that owns their task."""


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

    @property
    def rate(self) -> float:
        """The rate relative to the workers without load."""
        return self.month.rate / self.peace.rate

    @property
    def speed(self) -> float:
        """The speed of single messages relative to the workers without load."""
        return self.peace.trip_seconds / self.month.trip_seconds


@dataclass(frozen=True, slots=True)
class Medians:
    """The medians of some pairs."""

    rate: float
    speed: float
    messages_per_second: float
    trip_seconds: float


def medians(pairs: Sequence[Pair]) -> Medians:
    """Return the medians of pairs, and of the measurements at the workers of the month."""
    return Medians(
        statistics.median(pair.rate for pair in pairs),
        statistics.median(pair.speed for pair in pairs),
        statistics.median(pair.month.rate for pair in pairs),
        statistics.median(pair.month.trip_seconds for pair in pairs),
    )


class _Line:
    """A sender at one worker and a consumer at another; both stay connected."""

    def __init__(self, stack: ExitStack, way: Way) -> None:
        entry, owner = way
        self._sender = stack.enter_context(
            Client(
                entry,
                topology=TOPOLOGY,
                source=_SOURCE,
                ack_mode=AckMode.PROCESSED,
                max_pending_messages=_MOST_IN_FLIGHT,
            )
        )
        consumer = stack.enter_context(Client(owner, topology=TOPOLOGY))
        self._batches = stack.enter_context(consumer.recv([MEASURED_TASK], timeout=_WAIT_SECONDS))
        self._take(self._send(1))

    def measure(self) -> Measured:
        """Take a measurement."""
        return Measured(self._rate(), self._trip())

    def _send(self, count: int) -> int:
        group = numbered_group(MEASURED_TASK, _SOURCE, 0, count, _SIZE)
        self._sender.send(TaskMessageBatch.from_groups([group]))
        return count

    def _take(self, count: int) -> None:
        while count > 0:
            count -= len(next(self._batches))
        self._batches.acknowledge()

    def _rate(self) -> float:
        sent = 0
        started = time.perf_counter()

        def send() -> None:
            nonlocal sent
            for _ in range(_BATCHES):
                sent += self._send(_BATCH)

        sending = threading.Thread(target=send)
        sending.start()
        taken = 0
        while sending.is_alive() or taken < sent:
            if taken < sent:
                taken += len(next(self._batches))
                self._batches.acknowledge()
            else:
                sending.join(0.001)
        return sent / (time.perf_counter() - started)

    def _trip(self) -> float:
        seconds = []
        for _ in range(_TRIPS):
            started = time.perf_counter()
            self._take(self._send(1))
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)


def canary(pipe: Connection, month: Way, peace: Way) -> None:
    """Run as a process that measures; answers `pair`, and alternates the order of the two measurements."""
    with ExitStack() as stack:
        lines = [_Line(stack, month), _Line(stack, peace)]
        turns = 0

        def pair() -> Pair:
            nonlocal turns
            turns += 1
            order = lines if turns % 2 else lines[::-1]
            found = {id(line): line.measure() for line in order}
            return Pair(*(found[id(line)] for line in lines))

        serve(pipe, {"pair": pair}, [])
