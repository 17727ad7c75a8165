"""How fast a message passes two workers: pairs of measurements, one beside the other.

A pair has one measurement at the workers that live the month, and one at two that live as long in peace. What
else the machine does slows both, so their ratio tells what the month has done.
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
"""Enough to keep the line busy: the rate is that of the whole line, and no queue grows for it."""

Way = tuple[str, str]
"""The addresses of the worker that takes the messages, and of the one that has their task."""


@dataclass(frozen=True, slots=True)
class Measured:
    """rate: messages per second at full speed. trip_seconds: the median of single messages, one by one."""

    rate: float
    trip_seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A measurement at the workers of the month, and one at those in peace."""

    month: Measured
    peace: Measured

    @property
    def rate(self) -> float:
        """The rate as a share of that in peace."""
        return self.month.rate / self.peace.rate

    @property
    def speed(self) -> float:
        """The speed of single messages as a share of that in peace."""
        return self.peace.trip_seconds / self.month.trip_seconds


@dataclass(frozen=True, slots=True)
class Medians:
    """Of some pairs."""

    rate: float
    speed: float
    messages_per_second: float
    trip_seconds: float


def medians(pairs: Sequence[Pair]) -> Medians:
    """Return the medians of pairs, and of what was measured at the workers of the month."""
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
        """Measure now."""
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
    """Be a process that measures; answers `pair`, with the one or the other first by turns."""
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
