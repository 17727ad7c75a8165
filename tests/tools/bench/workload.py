"""The messages of a benchmark: the schedules of a sending process, and the counters of a receiving one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from agent import BenchError, Verb

TOPOLOGY = "test"
MESSAGE_BYTES = 100
PACED_BYTES = 1024
LATE_NANOSECONDS = 1_000_000
CHECK_EVERY = 256
"""A sender reads the clock after this number of messages, or after each frame if frames are larger."""
SOURCE_TASK = 1
DESTINATION_TASK = 504
PACED_TASK = 505
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


def loads(send_all: Callable[[Iterable[list[bytes]]], object], least: int = 1, tasks: int = 1) -> Verb:
    """Return the verb of a process that sends lists of `frame` payloads, or of `least` if that is more.

    It sends to `tasks` tasks in turn for `seconds` seconds, or `messages` messages, numbered for each task.
    """

    def load(frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, int]:
        frame = max(frame, least)
        sent = start_ns = 0

        def lists() -> Iterator[list[bytes]]:
            nonlocal sent, start_ns
            payloads = numbered(0, frame)
            burst = max(1, CHECK_EVERY // frame)
            start_ns = time.monotonic_ns()
            end = start_ns + int(seconds * 1e9)
            while sent < messages if messages is not None else time.monotonic_ns() < end:
                for _ in range(burst):
                    if messages is not None:
                        payloads = numbered(sent // frame // tasks * frame, frame)
                    yield payloads
                    sent += frame

        send_all(lists())
        return {"sent": sent, "start_ns": start_ns}

    return load


def paces(send_all: Callable[..., object]) -> Verb:
    """Return the verb of a process that sends at a fixed rate; each payload is stamped with its due time.

    An open loop: a sender that is late sends all due messages immediately, and its delay counts as latency.
    The clock is CLOCK_MONOTONIC, which all processes of a machine share. `late` counts the payloads that were
    not sent within LATE_NANOSECONDS of their due time.

    send_all: sends each payload; it gets further arguments of the request.
    """

    def pace(rate: int, seconds: float, size: int = PACED_BYTES, **how: int) -> dict[str, int]:
        sent = late = start = 0

        def payloads() -> Iterator[bytes]:
            nonlocal sent, late, start
            start = time.monotonic_ns() + 10_000_000
            filler = bytes(size - _STAMP_BYTES)
            for number in range(int(rate * seconds)):
                due = start + number * 1_000_000_000 // rate
                early = due - time.monotonic_ns()
                if early > 0:
                    time.sleep(early / 1e9)
                elif early < -LATE_NANOSECONDS:
                    late += 1
                sent += 1
                yield due.to_bytes(_STAMP_BYTES, "big") + filler

        send_all(payloads(), **how)
        return {"sent": sent, "late": late, "start_ns": start}

    return pace


def asks(ask: Callable[[bytes], bytes]) -> Verb:
    """Return the verb that sends requests one at a time; BenchError for the answer to another request."""

    def load(requests: int) -> dict[str, Any]:
        nanoseconds = []
        for payload in numbered(0, requests, PACED_BYTES):
            began = time.perf_counter_ns()
            answer = ask(payload)
            nanoseconds.append(time.perf_counter_ns() - began)
            if answer != payload:
                raise BenchError(f"request {len(nanoseconds) - 1} got the answer to another one")
        return {"ns": nanoseconds}

    return load


class Meter:
    """Counts the messages of one process: begin(), add() for each batch, finish() in another thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._messages = self._answered = 0
        self.begin("count")

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """The verbs of a process that receives."""
        return {"begin": self.begin, "finish": self.finish}

    def begin(self, look: Look) -> dict[str, int]:
        """Start a trial; the answer contains the number of extra messages since the end of the last trial."""
        extra = self._messages - self._answered
        self._look: Look = look
        self._expected: int | None = None
        self._messages = self._answered = self._bytes = self._touched = 0
        self._next: dict[int, int] = {}
        self._disorder = self._last_ns = 0
        self._latencies_ns: list[int] = []
        self._done.clear()
        return {"extra": extra}

    def add(
        self, messages: int, size_bytes: int, payloads: Callable[[], Sequence[bytes]], stream: int = 0
    ) -> None:
        """Count a batch of a stream; `payloads` is called only if the trial checks the messages."""
        if self._look == "touch":
            self._touched += sum(map(len, payloads()))
        elif self._look == "order":
            first = self._next.get(stream, 0)
            self._disorder += sum(stamp(each) != number for number, each in enumerate(payloads(), first))
            self._next[stream] = first + messages
        elif self._look == "latency":
            now = time.monotonic_ns()
            self._latencies_ns += [now - stamp(payload) for payload in payloads()]
        self._messages += messages
        self._bytes += size_bytes
        self._last_ns = time.monotonic_ns()
        if self._expected is not None and self._messages >= self._expected:
            self._done.set()

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
        }
