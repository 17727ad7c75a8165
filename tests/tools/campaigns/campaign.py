"""The runner of campaigns: seeded actions over time on real processes, checks, and a report."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from campaigns.journal import Journal

_THREADS = 32
_POLL_SECONDS = 0.05

K = TypeVar("K", bound=str)


@dataclass(frozen=True)
class Action:
    """One action on a target, from `at` on, in seconds. cut: it ends with a cut that loses data in flight."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    value: float | str = ""
    cut: bool = False

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        strength = f" ({self.value})" if self.value != "" else ""
        end = ", then cut" if self.cut else ""
        return f"{self.kind}: {self.target}{strength}{lasting}{end}"


def schedule(
    seed: int,
    seconds: float,
    every: float,
    weights: Mapping[K, int],
    draw: Callable[[random.Random, float, K], Action],
) -> Iterator[Action]:
    """Return random actions in order, one per `every` seconds: each kind once, then any by its weight."""
    chance = random.Random(seed)
    kinds = chance.sample(list(weights), len(weights))
    at = 0.0
    while True:
        at += every * chance.uniform(0.3, 1.7)
        kind = kinds.pop() if kinds else chance.choices(list(weights), list(weights.values()))[0]
        action = draw(chance, at, kind)
        if at >= seconds:
            return
        yield action


class Campaign(ABC):
    """A run of a plan of actions, with checks every `look_seconds` and at its end."""

    parallel = False
    """True if actions on different targets overlap. All actions then end with the run."""
    look_seconds = 5.0

    def __init__(self, seed: int, seconds: float, *, directory: Path) -> None:
        self.seed = seed
        self.seconds = seconds
        self.directory = directory
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()
        self.journal_file = directory / "run.jsonl"
        self.journal: Journal
        self._started = time.monotonic()
        self.stop = threading.Event()
        """Set when the actions must end."""
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @abstractmethod
    def plan(self) -> Iterator[Action]:
        """Return the actions in order; they depend only on the seed."""

    @abstractmethod
    def open(self, stack: ExitStack) -> None:
        """Start all processes; the stack stops them in every case."""

    @abstractmethod
    def act(self, action: Action) -> None:
        """Perform an action and undo it; earlier if `stop` is set."""

    def look(self) -> str:
        """Check the processes during the run; return a line of progress, or an empty string."""
        return ""

    def is_over(self, seconds: float) -> bool:
        """Return True if the run can end after its last action; seconds: since its start."""
        return seconds >= self.seconds

    @abstractmethod
    def finish(self) -> None:
        """Wait until every message has arrived, stop all processes, and add to the faults."""

    @abstractmethod
    def report(self) -> Iterator[str]:
        """Return the lines of the report, without the faults."""

    @property
    def ok(self) -> bool:
        """True if every guarantee held and no process failed."""
        return not self.faults

    @property
    def seconds_so_far(self) -> float:
        """The time since the start, in seconds."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"{self.seconds_so_far:7.1f} s  {text}", flush=True)

    def run(self) -> Self:
        """Run the campaign; `faults` and report() contain the result."""
        with self.opened(), self._looking():
            self._act_all()
        return self

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Start all processes, and finish after the block."""
        with ExitStack() as stack:
            self.journal = Journal(self.journal_file)
            stack.callback(self.journal.close)
            self.open(stack)
            yield
            self.say("no more actions; waiting until every message has arrived")
            self.finish()

    def _act_all(self) -> None:
        start = time.monotonic()
        running: list[Future[None]] = []
        with ThreadPoolExecutor(_THREADS if self.parallel else 1, "action") as pool:
            try:
                for action in self.plan():
                    if self.stop.wait(max(0.0, start + action.at - time.monotonic())):
                        break
                    self.done[action.kind] += 1
                    running.append(pool.submit(self._perform, action))
                    if not self.parallel:
                        running.pop().result()
                while not self.is_over(time.monotonic() - start) and not self.stop.wait(_POLL_SECONDS):
                    pass
            finally:
                self.stop.set()
        for each in running:
            each.result()

    def _perform(self, action: Action) -> None:
        with self._locks[action.target]:
            if self.stop.is_set():
                return
            self.say(str(action))
            self.act(action)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        over = threading.Event()

        def look_often() -> None:
            number = 0
            while not over.wait(self.look_seconds):
                try:
                    line = self.look()
                except Exception as error:  # noqa: BLE001 - every error of a process is a fault of the run
                    self.faults.append(f"a check has failed: {error!r}")
                    self.stop.set()
                    return
                if line:
                    self.say(line)
                for fault in self.faults[number:]:
                    self.say(f"FAULT: {fault}")
                number = len(self.faults)

        thread = threading.Thread(target=look_often, name="looks")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
