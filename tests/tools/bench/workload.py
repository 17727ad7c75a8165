"""The messages of a benchmark, and the counters of the receiving process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TOPOLOGY = "bench"
MESSAGE_BYTES = 100
PACED_BYTES = 1024
LATE_NANOSECONDS = 1_000_000
CHECK_EVERY = 256
"""A sender reads the clock after this number of messages, or after each frame if frames are larger."""
SOURCE_TASK = 1
DESTINATION_TASK = 2
PACED_TASK = 3
SPREAD_TASKS = tuple(range(100, 131))
STOPPED_TASK = 131
"""The last of 32 tasks at one worker; it has no consumer."""
IDLE_TASKS = range(1000, 11_000)
"""Tasks that receive no messages."""
SENDERS = 1000
WAIT_SECONDS = 30.0
"""The time that a receiver waits for messages before they count as lost."""

_STAMP_BYTES = 8

Look = Literal["count", "touch", "order", "latency"]
"""A receiver's check of each message: none, read its length, check its number, read its timestamp."""


def numbered(first: int, count: int, size: int = MESSAGE_BYTES) -> list[bytes]:
    """Return payloads that start with their number, from `first` on."""
    filler = bytes(size - _STAMP_BYTES)
    return [number.to_bytes(_STAMP_BYTES, "big") + filler for number in range(first, first + count)]


def stamp(payload: bytes) -> int:
    """Return the number, or the timestamp, at the start of a payload."""
    return int.from_bytes(payload[:_STAMP_BYTES], "big")


class Frames:
    """A schedule of lists of `frame` payloads for `seconds` seconds, or at least `messages`, all numbered.

    tasks: the number of tasks that get the lists in turn, each with its own numbers.
    """

    def __init__(self, frame: int, seconds: float = 0.0, messages: int | None = None, tasks: int = 1) -> None:
        self._frame = frame
        self._nanoseconds = int(seconds * 1e9)
        self._messages = messages
        self._tasks = tasks
        self._start_ns = self._sent = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield each list; the clock is read after some lists."""
        frame, messages = self._frame, self._messages
        payloads = numbered(0, frame)
        burst = max(1, CHECK_EVERY // frame)
        self._start_ns = time.monotonic_ns()
        end = self._start_ns + self._nanoseconds
        while self._sent < messages if messages is not None else time.monotonic_ns() < end:
            for _ in range(burst):
                if messages is not None:
                    payloads = numbered(self._sent // frame // self._tasks * frame, frame)
                yield payloads
                self._sent += frame

    def told(self) -> dict[str, int]:
        """Return the answer of a sender that has finished."""
        return {"sent": self._sent, "start_ns": self._start_ns}


class Pace:
    """A schedule of payloads at a fixed rate, each stamped with the time at which it is due.

    An open loop: a sender that is late sends all due messages immediately, and its delay counts as latency.
    The clock is CLOCK_MONOTONIC, which all processes of a machine share.
    """

    def __init__(self, rate: int, seconds: float, size: int = PACED_BYTES) -> None:
        self._rate = rate
        self._count = int(rate * seconds)
        self._size = size
        self.start_ns = 0
        """The time when the first payload is due."""
        self.sent = 0
        self.late = 0
        """Number of payloads that were not sent within LATE_NANOSECONDS of their due time."""

    def __iter__(self) -> Iterator[bytes]:
        filler = bytes(self._size - _STAMP_BYTES)
        self.start_ns = start = time.monotonic_ns() + 10_000_000
        for number in range(self._count):
            due = start + number * 1_000_000_000 // self._rate
            early = due - time.monotonic_ns()
            if early > 0:
                time.sleep(early / 1e9)
            elif early < -LATE_NANOSECONDS:
                self.late += 1
            self.sent += 1
            yield due.to_bytes(_STAMP_BYTES, "big") + filler

    def told(self) -> dict[str, int]:
        """Return the answer of a sender that has finished."""
        return {"sent": self.sent, "late": self.late, "start_ns": self.start_ns}


def cpu_seconds(process_id: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Usage:
    """Processor time of this process between two moments, in nanoseconds."""

    start_ns: int = 0

    def begin(self) -> None:
        """Start counting."""
        self.start_ns = time.process_time_ns()

    def nanoseconds(self) -> int:
        """Return the time used since begin(), all threads, user and system."""
        return time.process_time_ns() - self.start_ns


class Meter:
    """Counts the received messages of one process; one thread adds, another waits.

    A trial is begin(), then add() for each batch, then finish(). The answer contains the number of messages,
    the time of the last message, and the results of the checks.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._usage = Usage()
        self._messages = self._answered = 0
        self.begin("count")

    def begin(self, look: Look) -> dict[str, Any]:
        """Start a trial; the answer contains the number of extra messages since the end of the last trial."""
        extra = self._messages - self._answered
        self._look: Look = look
        self._expected: int | None = None
        self._messages = self._answered = self._bytes = self._touched = 0
        self._next: dict[int, int] = {}
        self._disorder = self._last_ns = 0
        self._latencies_ns: list[int] = []
        self._done.clear()
        self._usage.begin()
        return {"extra": extra}

    def add(
        self, messages: int, size_bytes: int, payloads: Callable[[], Sequence[bytes]], stream: int = 0
    ) -> None:
        """Count a batch of a stream; `payloads` is called only if the trial checks the messages."""
        if self._look == "touch":
            self._touched += sum(map(len, payloads()))
        elif self._look == "order":
            self._check_order(payloads(), stream)
        elif self._look == "latency":
            now = time.monotonic_ns()
            self._latencies_ns += [now - stamp(payload) for payload in payloads()]
        self._messages += messages
        self._bytes += size_bytes
        self._last_ns = time.monotonic_ns()
        if self._expected is not None and self._messages >= self._expected:
            self._done.set()

    def _check_order(self, payloads: Sequence[bytes], stream: int) -> None:
        first = self._next.get(stream, 0)
        self._disorder += sum(stamp(payload) != number for number, payload in enumerate(payloads, first))
        self._next[stream] = first + len(payloads)

    def finish(self, expected: int) -> dict[str, Any]:
        """Wait until the expected number of messages has arrived, at most WAIT_SECONDS."""
        self._expected = expected
        if self._messages < expected:
            self._done.wait(WAIT_SECONDS)
        self._answered = self._messages
        if self._look == "touch" and self._touched != self._bytes:
            raise AssertionError(f"{self._touched} bytes touched, {self._bytes} received")
        return {
            "received": self._answered,
            "last_ns": self._last_ns,
            "disorder": self._disorder,
            "latencies_ns": self._latencies_ns,
            "cpu_ns": self._usage.nanoseconds(),
        }
