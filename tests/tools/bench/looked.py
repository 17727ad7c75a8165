"""The rows of the live page: load through two workers while a page displays them, and without a page."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from agent import BenchError
from links import CHAIN, WIDE, Latencies, Link, Links, Trial
from report import LATENCY_RATE, PERCENTILES, RATE, Line, compared, percentile
from workload import IDLE_TASKS

LOOKED = "looked"

_LINKS = {CHAIN: "three tasks", WIDE: f"{len(IDLE_TASKS):,} tasks"}
_ROUNDS = 5
_FRAME = 1000
_CHECKED_MESSAGES = 20_000
_LEAST_SECONDS = 6.0
"""Enough for a page to poll more than once."""
_TARGETS: Mapping[float, float] = {50: 1.1, 99: 1.1}
_RATE_TARGET = 0.95


class Page:
    """Runs `tuplewire top --web`, and requests the page's data at the page's interval, until the block ends.

    The first request has finished when the block starts.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ended = threading.Event()
        self._opened = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._main)

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._problem is not None:
            raise BenchError(f"the live page was not answered: {self._problem}")

    def _main(self) -> None:
        command = [sys.executable, "-m", "tuplewire_service", "top", "--web", "--port=0", self._address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
            try:
                assert viewer.stdout is not None
                link = urlsplit(viewer.stdout.readline().split()[1])
                token = {"Authorization": f"Bearer {link.fragment.removeprefix('token=')}"}
                request = urllib.request.Request(f"http://{link.netloc}/live.json", headers=token)
                pace = 0.0
                while not self._ended.wait(pace):
                    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own address
                        pace = json.load(answer)["pace"]
                    self._opened.set()
            except (OSError, ValueError, IndexError) as error:
                self._problem = error
            finally:
                self._opened.set()
                viewer.terminate()


class Side(NamedTuple):
    """The result of a round, with the page or without: at the maximum rate, and at a fixed rate."""

    trial: Trial
    latencies: Latencies


class Pair(NamedTuple):
    """One round."""

    looked: Side
    alone: Side


def measure_looked(links: Links, seconds: float, progress: Callable[[str], None]) -> list[Line]:
    """Measure with the page and without, in turns; `seconds` is the total time."""
    each = max(seconds / _ROUNDS / len(_LINKS) / 4, _LEAST_SECONDS)
    lines: list[Line] = []
    for name, tasks in _LINKS.items():
        link = links[name]
        link.check(_FRAME, _CHECKED_MESSAGES)
        pairs = []
        for number in range(1, _ROUNDS + 1):
            progress(f"the live page of workers with {tasks}, round {number} of {_ROUNDS}")
            pairs.append(_pair(link, each, page_first=number % 2 == 0))
        lines += looked_lines(tasks, pairs)
    return lines


def _pair(link: Link, seconds: float, *, page_first: bool) -> Pair:
    alone = None if page_first else _side(link, seconds)
    with Page(link.address):
        looked = _side(link, seconds)
    return Pair(looked, alone or _side(link, seconds))


def _side(link: Link, seconds: float) -> Side:
    return Side(link.trial(_FRAME, seconds, "touch"), link.paced(LATENCY_RATE, seconds))


def looked_lines(tasks: str, pairs: Sequence[Pair]) -> Iterator[Line]:
    """Compare the rounds: the rate, the processor time per message, and the latency."""
    title, against = f"two workers with {tasks}, and a live page of them", "no page"

    def line(
        what: str, unit: str, value: Callable[[Side], float], target: float | None, cpu: float | None = None
    ) -> Line:
        return compared(
            LOOKED,
            f"{title}: {what}",
            unit,
            [value(each.looked) for each in pairs],
            against,
            [value(each.alone) for each in pairs],
            target=target,
            cpu_microseconds=cpu,
        )

    cpu = statistics.median(map(_cpu, (each.looked for each in pairs)))
    yield line("as much as goes", RATE, lambda side: side.trial.rate, _RATE_TARGET, cpu)
    yield line("CPU of a message", "us", _cpu, None)
    for percent in PERCENTILES:
        what = f"{LATENCY_RATE:,} messages/s of 1 KiB, p{percent}"
        yield line(what, "ms", _milliseconds(percent), _TARGETS.get(percent))


def _cpu(side: Side) -> float:
    return side.trial.cpu_seconds / side.trial.messages * 1e6


def _milliseconds(percent: float) -> Callable[[Side], float]:
    def value(side: Side) -> float:
        return percentile(side.latencies.nanoseconds, percent) / 1e6

    return value
