"""The rows of the live page: load through two workers while a page displays them, and without a page."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from links import Cell, Link, LinkName, Links, Trial
from report import RATE, Line, compared, medians, percentile, progress
from rows import LATENCY_RATE, MAXIMUM, PERCENTILES
from workload import IDLE_TASKS

LOOKED = "looked"

_LINKS: dict[LinkName, str] = {"chain": "three tasks", "wide": f"{len(IDLE_TASKS):,} tasks"}
_ROUNDS = 5
_FRAME = 1000
_CHECKED_MESSAGES = 20_000
_LEAST_SECONDS = 6.0
"""Enough for a page to poll more than once."""
_TARGETS: Mapping[float, float] = {50: 1.1, 99: 1.1}
_RATE_TARGET = 0.95


@contextmanager
def live_page(address: str) -> Iterator[None]:
    """Run `tuplewire top --web` during the block, and request its data once, then at the page's interval."""
    command = [sys.executable, "-m", "tuplewire_service", "top", "--web", "--port=0", "--address", address]
    ended = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer, ThreadPoolExecutor() as pool:
        try:
            assert viewer.stdout is not None
            link = urlsplit(viewer.stdout.readline().split()[1])
            token = {"Authorization": f"Bearer {link.fragment.removeprefix('token=')}"}
            request = urllib.request.Request(f"http://{link.netloc}/live.json", headers=token)

            def read() -> bytes:
                with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own address
                    contents: bytes = answer.read()
                    return contents

            def read_on(pace: float) -> None:
                while not ended.wait(pace):
                    read()

            reading = pool.submit(read_on, json.loads(read())["pace"])
            yield
            ended.set()
            reading.result()
        finally:
            ended.set()
            viewer.terminate()


class Side(NamedTuple):
    """The result of a round, with the page or without: at the maximum rate, and at a fixed rate."""

    trial: Trial
    paced: Trial


def measure_looked(links: Links, _: Sequence[str], seconds: float) -> list[Line]:
    """Measure with the page and without, in turns; `seconds` is the total time."""
    each = max(seconds / _ROUNDS / len(_LINKS) / 4, _LEAST_SECONDS)
    lines: list[Line] = []
    for name, tasks in _LINKS.items():
        link = links[name]
        link.check(_FRAME, _CHECKED_MESSAGES)
        pairs = []
        for number in range(1, _ROUNDS + 1):
            progress(f"the live page of workers with {tasks}, round {number} of {_ROUNDS}")
            alone = None if number % 2 == 0 else _side(link, each)
            with live_page(link.address):
                looked = _side(link, each)
            pairs.append((looked, alone or _side(link, each)))
        lines += looked_lines(tasks, pairs)
    return lines


def _side(link: Link, seconds: float) -> Side:
    return Side(link.trial(Cell("chain", _FRAME, "touch"), seconds), link.paced(LATENCY_RATE, seconds))


def looked_lines(tasks: str, pairs: Sequence[tuple[Side, Side]]) -> Iterator[Line]:
    """Compare the rounds, with the page and without: the rate, the CPU time per message, and the latency."""

    def line(
        what: str, unit: str, value: Callable[[Side], float], target: float | None, cpu: Sequence[float] = ()
    ) -> Line:
        title = f"two workers with {tasks}, and a live page of them: {what}"
        values = [(value(looked), value(alone)) for looked, alone in pairs]
        return compared(LOOKED, title, unit, values, "no page", target=target, cpu_each=cpu)

    cpu = medians(looked.trial.cpu_microseconds for looked, _ in pairs)
    yield line("as much as goes", RATE, lambda side: side.trial.rate, _RATE_TARGET, cpu)
    yield line("CPU of a message", "us", lambda side: sum(side.trial.cpu_microseconds), None)
    for percent in PERCENTILES:
        if percent != MAXIMUM:
            yield line(
                f"{LATENCY_RATE:,} messages/s of 1 KiB, p{percent}",
                "ms",
                lambda side, percent=percent: percentile(side.paced.nanoseconds, percent) / 1e6,  # type: ignore[misc]
                _TARGETS.get(percent),
            )
