"""A worker under attack on every level at once, beside a session that behaves well."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.fuzz.attacker import THREADS, Tally, attacker
from helpers.memory import MIB, rss
from helpers.program import Program
from helpers.streams import Consumed, Load, Produced, consumer, producer
from helpers.topology import TOPOLOGY, assign, ledger

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually

HEALTHY_TASK = 2_000_000_011
"""A task that no attacker hits by chance."""
HEALTHY_SOURCE = 7
HOSTILE_TASKS = range(5)
MOST_GROWTH_BYTES = 40 * MIB
"""By how much the worker's peak may be higher in the second half of the attack than in the first."""
_OUR_ERRORS = (
    "worker.defect",
    "callback.failed",
    "/tuplewire/session/",
    "/tuplewire/wire/",
    "/tuplewire_service/messaging/",
    "/tuplewire_service/worker/",
)
"""Signs of an error in our code. gRPC logs one of its own for a method or a header that is not UTF-8, and the
admin port for a scrape that a busy event loop has not answered in time."""
_SAMPLE_SECONDS = 0.25
_STILL_SECONDS = 60.0
"""How long the well-behaved session may stand still; a busy machine stops it for seconds."""
_PAUSE_SECONDS = 0.002


@dataclass(slots=True)
class Report:
    """What came of an attack."""

    tallies: dict[str, Tally]
    produced: Produced
    consumed: Consumed
    ledger: LedgerSnapshot
    exit_code: int
    log: str
    rss_bytes: list[int] = field(default_factory=list)
    """The worker's memory, sampled at equal distances."""

    @property
    def faults(self) -> list[str]:
        """Everything that should not be, in words."""
        faults = [f"{level}: {each}" for level, tally in self.tallies.items() for each in tally.complaints]
        faults += [f"the well-behaved session: {problem}" for problem in self.consumed.problems]
        if self.produced.sent != self.consumed.received:
            faults.append(
                f"the well-behaved session: sent {self.produced.sent}, received {self.consumed.received}"
            )
        if self.produced.connections != {HEALTHY_SOURCE: 1}:
            faults.append(f"the well-behaved session was broken off: {self.produced.connections} connections")
        if not self.ledger.balanced:
            faults.append(f"the worker's ledger: {self.ledger}")
        if self.exit_code:
            faults.append(f"the worker ended with {self.exit_code}")
        if ours := [line for line in self.log.splitlines() if any(mark in line for mark in _OUR_ERRORS)]:
            faults.append("the worker has logged errors of its own: " + "\n".join(ours[:10]))
        if self.growth_bytes > MOST_GROWTH_BYTES:
            faults.append(f"the worker's memory has grown by {self.growth_bytes / MIB:.1f} MiB")
        return faults

    def __str__(self) -> str:
        lines = [
            f"{level:8} {sum(tally.counts.values()):8,}: {_counts(tally.counts)}"
            for level, tally in self.tallies.items()
        ]
        quarters = [f"{max(each, default=0) / MIB:.1f}" for each in self._parts(4)]
        sent, received = sum(self.produced.sent.values()), sum(self.consumed.received.values())
        lines += [
            f"well-behaved session: {sent:,} sent, {received:,} received",
            f"worker's memory, peak of each quarter: {', '.join(quarters)} MiB",
            f"worker's ledger: {self.ledger}",
        ]
        return "\n".join(lines)

    def _parts(self, parts: int) -> list[list[int]]:
        """Return the samples of the worker's memory in so many parts."""
        count = len(self.rss_bytes)
        return [self.rss_bytes[count * each // parts : count * (each + 1) // parts] for each in range(parts)]

    @property
    def growth_bytes(self) -> int:
        """By how much the peak of the second half is above that of the first."""
        first, second = self._parts(2)
        return max(second) - max(first)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{key} {count:,}" for key, count in counts.most_common())


@contextmanager
def target(directory: Path) -> Iterator[tuple[WorkerProcesses, Endpoint]]:
    """Run a worker to be attacked."""
    flags = [
        "--drain-seconds=1",
        "--log-level=error",
        "--receive-queue-messages=5000",
        "--receive-queue-bytes=1MiB",
    ]
    with WorkerProcesses(1, TOPOLOGY, directory=directory, flags=flags) as workers:
        (endpoint,) = workers.endpoints
        assign(endpoint, 10, {(endpoint.worker_id, endpoint.address): [*HOSTILE_TASKS, HEALTHY_TASK]})
        yield workers, endpoint


@dataclass(frozen=True, slots=True)
class Extent:
    """How far an attack goes: for so many seconds, or until each thread has attacked so often."""

    seconds: float = math.inf
    attacks: int | None = None

    def reached(self, seconds: float, tallies: Mapping[str, Tally]) -> bool:
        """Whether it is over after so many seconds, with what was counted until now."""
        if self.attacks is None:
            return seconds >= self.seconds
        return all(
            sum(tally.counts.values()) == self.attacks * THREADS[level] for level, tally in tallies.items()
        )


def campaign(directory: Path, seed: int, extent: Extent, report: Callable[[str], None]) -> Report:
    """Attack a worker; report: gets a line now and then."""
    with ExitStack() as stack:
        workers, endpoint = stack.enter_context(target(directory))
        start = stack.enter_context
        consuming = start(Program(consumer, TOPOLOGY, [(endpoint.address, [HEALTHY_TASK])]))
        routes = [(endpoint.address, HEALTHY_SOURCE)]
        load = Load([HEALTHY_TASK], batch=20, pause=_PAUSE_SECONDS)
        producing = start(Program(producer, TOPOLOGY, routes, load))
        eventually(lambda: _received(consuming) > 0, 30, "the well-behaved session has begun")
        others = [
            endpoint.unix_address,
            endpoint.metrics_url.removeprefix("http://").removesuffix("/metrics"),
        ]
        attackers = {
            level: start(Program(attacker, level, seed, extent.attacks, endpoint.address, others))
            for level in THREADS
        }
        memory = _watch(endpoint, attackers, consuming, extent, report)
        tallies = {level: process.ask("finish") for level, process in attackers.items()}
        produced: Produced = producing.ask("finish")
        eventually(lambda: _received(consuming) >= sum(produced.sent.values()), 60, "all received")
        consumed: Consumed = consuming.ask("finish")
        balance = ledger(endpoint)
        (code,) = workers.stop()
        return Report(
            tallies,
            produced,
            consumed,
            balance,
            code,
            workers.log_of(0).read_text(encoding="utf-8"),
            memory,
        )


def _watch(
    endpoint: Endpoint,
    attackers: dict[str, Program],
    consuming: Program,
    extent: Extent,
    report: Callable[[str], None],
) -> list[int]:
    """Sample the worker's memory while it is attacked; a fault that ends the attack is raised here."""
    samples: list[int] = []
    start = moved = time.monotonic()
    received = _received(consuming)
    tallies: dict[str, Tally] = {}
    while not extent.reached(time.monotonic() - start, tallies) or len(samples) < 2:
        samples.append(rss(endpoint.process_id))
        time.sleep(_SAMPLE_SECONDS)
        tallies = {level: process.ask("progress") for level, process in attackers.items()}
        before, received = received, _received(consuming)
        now = time.monotonic()
        moved = now if received > before else moved
        assert now - moved < _STILL_SECONDS, "the well-behaved session stands still"
        if len(samples) % 20 == 0:
            attacks = sum(sum(tally.counts.values()) for tally in tallies.values())
            complaints = sum(len(tally.complaints) for tally in tallies.values())
            report(
                f"{attacks:,} attacks, {complaints} complaints; worker {samples[-1] / MIB:.1f} MiB; "
                f"well-behaved session: {received:,} messages received"
            )
    return samples


def _received(consuming: Program) -> int:
    consumed: Consumed = consuming.ask("progress")
    return sum(consumed.received.values())
