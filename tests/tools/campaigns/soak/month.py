"""A month of a worker: days of short-lived programs, and nights in which the workers are inspected.

A day is some generations of tasks, each an assignment with fresh ids. While programs send to the tasks, tasks
move, certificates are replaced, a worker is restarted, a peer joins and leaves, and attacks are rejected.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from campaigns.campaign import Action, Campaign
from campaigns.cluster import Cluster
from campaigns.fuzz.attackers import FOREIGN, WIRE, Attacker, attackers
from campaigns.soak.account import Account, Extent, Night
from campaigns.soak.canary import MEASURED_TASKS, Canary, medians
from campaigns.soak.certificates import Certificates
from campaigns.soak.follower import follower
from campaigns.soak.generations import ROAMING_TASK, STEADY_TASKS, Generation, moved, without
from campaigns.soak.lives import Household, Scenery, draw_household
from campaigns.soak.owed import Owed, live
from campaigns.soak.vitals import Vitals, vitals_of
from campaigns.steady import Steady, within
from helpers.memory import MIB, rss
from helpers.program import Program
from helpers.secured import variables_of
from helpers.streams import Load, Stream

from tuplewire.processes.worker_processes import Endpoint

NEAR, FAR, OTHER = "near", "far", "other"
"""Two workers that run during the whole month, and one that is restarted."""
_PEACE_NEAR, _PEACE_FAR = "near-in-peace", "far-in-peace"
"""Workers without any faults, for comparison with the first two."""
_FIXED = {STEADY_TASKS[0]: NEAR, STEADY_TASKS[1]: FAR, **dict.fromkeys(MEASURED_TASKS, FAR)}
"""The workers of tasks that never move."""
_CERTIFICATES, _PEERS_COME = "certificates exchanged", "peers come"
_RESTARTED, _PEERS_GONE = "workers restarted", "peers gone"
_NO_EVENT, _NIGHT = "programs only", "night"
_STEADY_SOURCES = (100, 101)
_FIRST_SOURCE = 1_000_000
_AT_A_TIME = 2
_BATCH, _PAUSE_SECONDS = 2, 0.02
_ATTACK_SECONDS, _FOREIGN_SECONDS = 0.05, 0.5
_WAIT_SECONDS = 60.0
_REST_SECONDS = 40.0


class Month(Campaign):
    """Simulates a month. The seed decides which programs start, and which tasks move where."""

    def __init__(self, seed: int, extent: Extent, *, directory: Path) -> None:
        super().__init__(seed, 0.0, directory=directory)
        self.account = Account(extent)
        self._extent = extent
        self._chance = random.Random(seed)
        self._generations = 0
        self._peers = 0
        self._gone: list[int] = []
        self._sources = _FIRST_SOURCE

    def plan(self) -> Iterator[Action]:
        events = [_CERTIFICATES, _PEERS_COME, _RESTARTED]
        quiet = [_NO_EVENT] * (self._extent.generations - len(events) - 1)
        for day in range(1, self._extent.days + 1):
            for event in (*events, *quiet, _PEERS_GONE, _NIGHT):
                yield Action(0.0, event, f"day {day}")

    def open(self, stack: ExitStack) -> None:
        """Start the workers, and the programs that run during the whole month."""
        start = stack.enter_context
        self._certificates = Certificates(self.directory)
        start(mock.patch.dict(os.environ, variables_of(self._certificates.program)))
        self._cluster = self._start_workers(stack, NEAR, FAR, OTHER)
        self._next_generation()
        near, far = (self._endpoint(name) for name in (NEAR, FAR))
        addresses = near.address, far.address
        self._households = start(ThreadPoolExecutor(_AT_A_TIME))
        self._follower = start(Program(follower, str(self._cluster.file(NEAR))))
        self._steady = Steady(
            stack,
            list(zip(addresses, _STEADY_SOURCES, strict=True)),
            list(zip(addresses, ([task] for task in STEADY_TASKS), strict=True)),
            Load((*STEADY_TASKS, ROAMING_TASK), _BATCH, pause=_PAUSE_SECONDS),
        )
        crew = [
            Attacker("unwanted", 0, [near.unix_address], _ATTACK_SECONDS),
            Attacker("unwanted", 1, [far.unix_address], _ATTACK_SECONDS),
            Attacker(WIRE, 0, addresses, _ATTACK_SECONDS),
            Attacker(FOREIGN, 0, addresses, _FOREIGN_SECONDS, self._certificates.foreign),
        ]
        self._attackers = start(Program(attackers, self.seed, crew, None))
        if self._extent.pairs:
            peace = self._start_workers(stack, _PEACE_NEAR, _PEACE_FAR)
            peace.assign(dict.fromkeys(MEASURED_TASKS, _PEACE_FAR))
            peace.wait_ready()
            in_peace = [endpoint.address for endpoint in peace.endpoints.values()]
            self._canary = Canary(stack, addresses, (in_peace[0], in_peace[1]))

    def _start_workers(self, stack: ExitStack, *names: str) -> Cluster:
        flags = [*self._certificates.flags, f"--resume-seconds={self._extent.resume_seconds}"]
        cluster = Cluster(self.directory, self.journal, flags, drain_seconds=20.0)
        stack.callback(cluster.discard)
        cluster.add(*names)
        return cluster

    def _endpoint(self, name: str) -> Endpoint:
        return self._cluster.workers[name].endpoint

    def act(self, action: Action) -> None:
        if action.kind == _NIGHT:
            self._night()
        else:
            self._live_generation(action.kind)

    def look(self) -> str:
        """Return the programs so far, and the remaining time."""
        extent, lived = self._extent, self.account.lived
        done = lived["programs"] / (extent.days * extent.generations * extent.programs)
        rest = _clock(self.seconds_so_far / done - self.seconds_so_far) if done else "?"
        parts = [f"about {rest} to go", *(f"{number:,} {what}" for what, number in lived.items() if number)]
        if self.account.nights:
            memory = (f"{each.rss / MIB:.0f}" for each in self.account.nights[-1].vitals.values())
            parts.append(f"workers {' and '.join(memory)} MiB")
        return ", ".join(parts)

    def report(self) -> Iterator[str]:
        account = self.account
        yield f"lived in {_clock(self.seconds_so_far)}, SEED={self.seed}"
        for what, counts in (
            ("done", self.done),
            ("lived", account.lived),
            ("programs", account.programs),
            ("refused, by answer", account.attacks.counts),
        ):
            yield f"{what}: {', '.join(f'{number:,} {each}' for each, number in counts.items())}"
        for number, night in enumerate(account.nights, 1):
            yield from _lines_of(f"night {number}, {_clock(night.seconds)}", night)
        first, last = account.nights[0].memory, account.nights[-1].memory
        yield from (
            f"{name}: {first[name] / MIB:.1f} MiB, at last {last[name] / MIB:.1f} MiB" for name in first
        )
        yield from (
            f"{what} of the canary is {ratio:.3f} of the first nights'"
            for what, ratio in account.ratios().items()
        )
        for name, code, ledger in self._cluster.ledgers[-3:]:
            yield f"{name} has exited with code {code}: {ledger}"

    def _assign(self, owners: Mapping[int, str]) -> None:
        self._cluster.assign({**_FIXED, **owners})
        self._cluster.await_settled()

    def _next_generation(self) -> None:
        """Replace the tasks with new ones."""
        self._generation = Generation(self._generations)
        self._owners = self._generation.spread(self._chance, list(self._cluster.workers))
        self._assign(self._owners)
        self._generations += 1
        self.account.lived["assignments with fresh tasks"] += 1

    def _live_generation(self, event: str) -> None:
        if self._generations > 1 or self.account.nights:
            self._gone = list(self._generation.all)
        self._next_generation()
        self._follower.ask("forget")
        households = self._draw()
        living = [self._households.submit(live, each) for each in households]
        self._move()
        self._happen(event)
        self._move()
        self._settle([each.result() for each in living])
        for household in households:
            self.account.lived_in(household)

    def _draw(self) -> list[Household]:
        """Return the processes of a generation."""
        near, far, other = (self._endpoint(name) for name in (NEAR, FAR, OTHER))
        scenery = Scenery(
            [near.address, near.unix_address, far.address, far.unix_address, other.address],
            self._generation.consumed,
            self._generation.quiet,
            self._gone,
        )
        households = []
        programs, count = self._extent.programs, self._extent.households
        for index in range(count):
            share = programs * (index + 1) // count - programs * index // count
            households.append(draw_household(self._chance, self._sources, share, scenery))
            self._sources += share
        return households

    def _move(self) -> None:
        self._give(moved(self._chance, self._owners, list(self._cluster.workers)))

    def _give(self, owners: dict[int, str]) -> None:
        before, self._owners = self._owners, owners
        self._assign(owners)
        self.account.lived["tasks moved"] += sum(owners[task] != before[task] for task in before)

    def _happen(self, event: str) -> None:
        cluster = self._cluster
        if event == _CERTIFICATES:
            self._certificates.exchange()
        elif event == _RESTARTED:
            cluster.restart(OTHER)
        elif event == _PEERS_COME:
            self._peers += 1
            cluster.add(self._peer)
        elif event == _PEERS_GONE:
            self._give(without(self._chance, self._owners, self._peer, [NEAR, FAR, OTHER]))
            cluster.remove(self._peer, killed=self._peers % 2 == 0)
            self._assign(self._owners)

    @property
    def _peer(self) -> str:
        """The worker that joined last, and will leave: it is drained or killed, alternately."""
        return f"peer-{self._peers}"

    def _settle(self, owed: list[Owed]) -> None:
        """Wait until all guaranteed messages have arrived and are consumed, and record the missing ones."""

        def complete() -> bool:
            received: dict[Stream, int] = self._follower.ask("received")
            # Messages that were sent again after a kill would be dropped with their task.
            waiting = self._cluster.queued(self._generation.consumed)
            return not waiting and all(each.missing(received) <= each.lost_and_told for each in owed)

        within(_WAIT_SECONDS, complete)
        received: dict[Stream, int] = self._follower.ask("received")
        for each in owed:
            self.faults += each.faults + each.faults_of(received)
            self.account.lived["messages of programs"] += sum(received.get(s, 0) for s in each.most)
            self.account.lived["messages dropped and reported"] += each.missing(received)

    def _night(self) -> None:
        """Wait until the workers are idle, inspect them, and measure last, since that is a day's load."""
        self._gone = list(self._generation.all)
        self._next_generation()
        self._note_attacks("rest")
        vitals = self._rested()
        self._steady.producer.ask("rest")
        pairs = [self._canary.pair() for _ in range(self._extent.pairs)]
        self._steady.producer.ask("go")
        programs = {
            "producer": self._steady.producer,
            "consumer": self._steady.consumer,
            "follower": self._follower,
        }
        memory = {name: rss(each.process_id) for name, each in programs.items()}
        self.account.nights.append(Night(self.seconds_so_far, pairs, vitals, memory))
        self._note_attacks("go")

    def _rested(self) -> dict[str, Vitals]:
        """Return the vitals as soon as no value is above the first night's, or after a time limit."""
        found: dict[str, Vitals] = {}

        def look() -> bool:
            for name in (NEAR, FAR):
                found[name] = vitals_of(self._cluster.workers[name])
            if not self.account.nights:
                return all(not each.resumable for each in found.values())
            return not any(self.account.growth(name, now) for name, now in found.items())

        within(_REST_SECONDS, look)
        return found

    def _note_attacks(self, question: str) -> None:
        self.account.attacks = self._attackers.ask(question)

    def finish(self) -> None:
        self._note_attacks("finish")
        self.faults += self._steady.finish(self._roaming)
        self.faults += self._follower.ask("problems")
        self._cluster.end_all()
        self.faults += [*self._cluster.faults, *self.account.faults]

    def _roaming(self) -> dict[Stream, int]:
        received: dict[Stream, int] = self._follower.ask("received")
        return {stream: count for stream, count in received.items() if stream[1] == ROAMING_TASK}


def _lines_of(title: str, night: Night) -> Iterator[str]:
    for name, vitals in night.vitals.items():
        yield (
            f"{title}, {name}: {vitals.rss / MIB:.1f} MiB, {vitals.files} files, {vitals.threads} threads, "
            f"{vitals.series.total()} series, {vitals.connected} sessions"
        )
    if night.pairs:
        found = medians(night.pairs)
        yield (
            f"{title}: {found.messages_per_second:,.0f} messages/s, {1e3 * found.trip_seconds:.2f} ms a "
            f"trip; of peace: rate {found.rate:.3f}, speed {found.speed:.3f}"
        )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
