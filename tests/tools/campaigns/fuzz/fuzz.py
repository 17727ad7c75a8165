"""Hostile input on every level at the same time, drawn from the seed, next to a well-behaved session."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from campaigns.campaign import Action, Campaign
from campaigns.cluster import Cluster
from campaigns.fuzz.attackers import WIRE, Attacker, Tally, attackers
from campaigns.steady import Steady
from helpers.memory import MIB, rss
from helpers.program import Program
from helpers.streams import Load

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually

THREADS = {WIRE: 2, "garbage": 2, "misuse": 2, "refused": 1}
"""Connections per level of attack: bytes below gRPC; gRPC messages of random bytes; well-formed but
invalid messages; calls with only one correct answer."""
HEALTHY_TASK = 2_000_000_011
"""A task that no attacker addresses by chance."""
HEALTHY_SOURCE = 7
HOSTILE_TASKS = range(5)
MOST_GROWTH_BYTES = 40 * MIB
"""The limit by which the worker's peak in the second half of the attack may exceed that of the first."""
_OUR_ERRORS = (
    "worker.failed",
    "callback.failed",
    "/tuplewire/session/",
    "/tuplewire/wire/",
    "/tuplewire_service/messaging/",
    "/tuplewire_service/worker/",
)
"""Signs of an error in our code. Other errors are allowed: gRPC logs methods and headers that are not
UTF-8, and the admin port logs scrapes that a busy event loop did not answer in time."""
_FLAGS = ("--log-level=error", "--receive-queue-messages=5000", "--receive-queue-bytes=1MiB")
_WORKER = "worker"
_STILL_SECONDS = 60.0
"""The time that the well-behaved session may be stalled; a busy machine stops it for seconds."""
_PAUSE_SECONDS = 0.002
_LOOKS_PER_LINE = 20


class Fuzz(Campaign):
    """An attack for a number of seconds, or for a number of attacks by each thread."""

    look_seconds = 0.25

    def __init__(
        self, seed: int, seconds: float = math.inf, *, directory: Path, attacks: int | None = None
    ) -> None:
        super().__init__(seed, seconds, directory=directory)
        self.attacks = attacks
        self.tallies: dict[str, Tally] = {}
        self.memory: list[int] = []
        """The worker's memory, sampled at equal intervals."""

    def plan(self) -> Iterator[Action]:
        for level, threads in THREADS.items():
            yield Action(0.0, "attack", level, value=f"{threads} connections")

    def open(self, stack: ExitStack) -> None:
        self._stack = stack
        self._attackers: dict[str, Program] = {}
        cluster = Cluster(self.directory, self.journal, _FLAGS, drain_seconds=1)
        stack.callback(cluster.discard)
        cluster.add(_WORKER)
        cluster.assign(dict.fromkeys([*HOSTILE_TASKS, HEALTHY_TASK], _WORKER))
        self._worker = cluster.workers[_WORKER]
        self._endpoint = self._worker.endpoint
        address = self._endpoint.address
        load = Load([HEALTHY_TASK], batch=20, pause=_PAUSE_SECONDS)
        self.steady = Steady(stack, [(address, HEALTHY_SOURCE)], [(address, [HEALTHY_TASK])], load)
        eventually(self._received, 30, "the well-behaved session has begun")
        self._moved, self._before = time.monotonic(), 0
        self.memory.append(rss(self._endpoint.process_id))

    def _received(self) -> int:
        return sum(self.steady.received().values())

    def act(self, action: Action) -> None:
        level, endpoint = action.target, self._endpoint
        addresses = [endpoint.address]
        if level == WIRE:
            metrics = endpoint.metrics_url.removeprefix("http://").removesuffix("/metrics")
            addresses += [endpoint.unix_address, metrics]
        crew = [Attacker(level, number, addresses) for number in range(THREADS[level])]
        attacking = self._stack.enter_context(Program(attackers, self.seed, crew, self.attacks))
        self._attackers[level] = attacking

    def look(self) -> str:
        """Sample the worker's memory, and check that the well-behaved session makes progress."""
        self.memory.append(rss(self._endpoint.process_id))
        self.tallies = {level: each.ask("progress") for level, each in list(self._attackers.items())}
        received = self._received()
        if received > self._before:
            self._moved, self._before = time.monotonic(), received
        if time.monotonic() - self._moved > _STILL_SECONDS:
            raise AssertionError("the well-behaved session makes no progress")
        if len(self.memory) % _LOOKS_PER_LINE:
            return ""
        attacks = sum(sum(tally.counts.values()) for tally in self.tallies.values())
        complaints = sum(len(tally.complaints) for tally in self.tallies.values())
        return (
            f"{attacks:,} attacks, {complaints} complaints; worker {self.memory[-1] / MIB:.1f} MiB; "
            f"well-behaved session: {received:,} messages received"
        )

    def is_over(self, seconds: float) -> bool:
        if self.attacks is None:
            return seconds >= self.seconds
        counts = {level: sum(tally.counts.values()) for level, tally in self.tallies.items()}
        return counts == {level: self.attacks * threads for level, threads in THREADS.items()}

    def finish(self) -> None:
        self.tallies = {level: each.ask("finish") for level, each in self._attackers.items()}
        self.memory.append(rss(self._endpoint.process_id))
        self.faults += (
            f"{level}: {each}" for level, tally in self.tallies.items() for each in tally.complaints
        )
        self.faults += (f"the well-behaved session: {each}" for each in self.steady.finish())
        if (connections := self.steady.produced.connections) != {HEALTHY_SOURCE: 1}:
            self.faults.append(f"the well-behaved session was disconnected: {connections} connections")
        self.ledger: LedgerSnapshot = self._worker.ledger()
        if not self.ledger.balanced:
            self.faults.append(f"the worker's ledger: {self.ledger}")
        # The worker drops the messages that are left, and its exit code reports it.
        if (code := self._worker.stop()) != bool(self.ledger.pending):
            self.faults.append(f"the worker has exited with code {code}: {self.ledger}")
        lines = self._worker.log.splitlines()
        if ours := [line for line in lines if any(mark in line for mark in _OUR_ERRORS)]:
            self.faults.append("the worker has logged errors of its own: " + "\n".join(ours[:10]))
        first, second = self._peaks(2)
        if second - first > MOST_GROWTH_BYTES:
            self.faults.append(f"the worker's memory has grown by {(second - first) / MIB:.1f} MiB")

    def _peaks(self, parts: int) -> list[int]:
        """Return the peak of the worker's memory in equal parts of the run."""
        count, samples = len(self.memory), self.memory
        pieces = (samples[count * each // parts : count * (each + 1) // parts] for each in range(parts))
        return [max(piece, default=0) for piece in pieces]

    def report(self) -> Iterator[str]:
        for level, tally in self.tallies.items():
            counts = ", ".join(f"{key} {count:,}" for key, count in tally.counts.most_common())
            yield f"{level:8} {tally.counts.total():8,}: {counts}"
        yield f"well-behaved session: {sum(self.steady.produced.sent.values()):,} sent"
        quarters = ", ".join(f"{peak / MIB:.1f}" for peak in self._peaks(4))
        yield f"worker's memory, peak of each quarter: {quarters} MiB"
        yield f"worker's ledger: {self.ledger}"
