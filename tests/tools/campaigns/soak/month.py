"""A month of a worker: days of programs that come and go, and nights in which it is looked at.

A day is some generations of tasks, each an assignment with fresh ids. While programs send to them, tasks
move, certificates are exchanged, a worker is restarted, a peer comes and goes, and strangers are refused.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from campaigns.soak.account import Account, Extent, Night
from campaigns.soak.canary import canary
from campaigns.soak.follower import follower
from campaigns.soak.generations import ROAMING_TASK, STEADY_TASKS, Generation, moved, without
from campaigns.soak.lives import Household, Scenery, draw_household
from campaigns.soak.long_lived import FAR, NEAR, OTHER, Certificates, LongLived
from campaigns.soak.owed import Owed, live
from campaigns.soak.strangers import Refused, strangers
from campaigns.soak.vitals import Vitals, more, vitals_of
from helpers.memory import rss
from helpers.program import Program
from helpers.secured import variables_of
from helpers.streams import Consumed, Load, Produced, Stream, consumer, producer
from helpers.topology import TOPOLOGY

_STEADY_SOURCES = (100, 101)
_FIRST_SOURCE = 1_000_000
_AT_A_TIME = 2
_BATCH, _PAUSE_SECONDS = 2, 0.02
_WAIT_SECONDS = 60.0
_REST_SECONDS = 40.0
_LOOK_SECONDS = 0.25
_LONGER = 4
"""The first night and the last have so many times the measurements of the others."""


class Month:
    """Lives it. seed: says who comes, and what moves where; what meets what is a matter of timing."""

    def __init__(self, seed: int, extent: Extent, directory: Path) -> None:
        self.account = Account(seed, extent)
        self._extent = extent
        self._directory = directory
        self._chance = random.Random(seed)
        self._generations = 0
        self._gone: list[int] = []
        self._sources = _FIRST_SOURCE

    def live(self) -> Account:
        """Live all of it; `account` says meanwhile what has been lived so far."""
        certificates = Certificates(self._directory)
        with (
            mock.patch.dict(os.environ, variables_of(certificates.program)),
            LongLived(self._directory, certificates, self._extent.resume_seconds) as workers,
            self._programs(workers, certificates),
        ):
            self._certificates, self._workers = certificates, workers
            for _ in range(self._extent.days):
                for event in self._events():
                    self._live_generation(event)
                self._night()
            self._end()
        return self.account

    @contextmanager
    def _programs(self, workers: LongLived, certificates: Certificates) -> Iterator[None]:
        """Start the programs that are there all the time."""
        near, far = workers.near.endpoint, workers.far.endpoint
        self._next_generation(workers)
        with ExitStack() as stack:
            start = stack.enter_context
            self._households = start(ThreadPoolExecutor(_AT_A_TIME))
            self._follower = start(Program(follower, str(workers.writer.file)))
            places = list(zip((near.address, far.address), ([task] for task in STEADY_TASKS), strict=True))
            self._consumer = start(Program(consumer, TOPOLOGY, places))
            routes = list(zip((near.address, far.address), _STEADY_SOURCES, strict=True))
            load = Load((*STEADY_TASKS, ROAMING_TASK), _BATCH, pause=_PAUSE_SECONDS)
            self._producer = start(Program(producer, TOPOLOGY, routes, load))
            self._strangers = start(
                Program(
                    strangers,
                    self.account.seed,
                    [near.unix_address, far.unix_address],
                    [near.address, far.address],
                    certificates.foreign,
                )
            )
            if self._extent.pairs:
                in_peace = workers.in_peace[0].endpoint.address, workers.in_peace[1].endpoint.address
                self._canary = start(Program(canary, (near.address, far.address), in_peace))
            yield

    # --- a day -----------------------------------------------------------------------------------------

    def _events(self) -> list[str]:
        """Return what happens in the generations of a day, apart from moves."""
        events = ["certificates exchanged", "peers come", "workers restarted"]
        return [*events, *[""] * (self._extent.generations - len(events) - 1), "peers gone"]

    def _next_generation(self, workers: LongLived) -> None:
        """Put fresh tasks in the place of those before."""
        self._generation = Generation(self._generations)
        self._owners = self._generation.spread(self._chance, workers.names)
        workers.assign(self._owners)
        self._generations += 1
        self.account.lived["assignments with fresh tasks"] += 1

    def _live_generation(self, event: str) -> None:
        if self._generations > 1 or self.account.nights:
            self._gone = list(self._generation.all)
        self._next_generation(self._workers)
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
        endpoints = [each.endpoint for each in self._workers.present[:3]]
        near, far, other = endpoints
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
        before = self._owners
        self._owners = moved(self._chance, before, self._workers.names)
        self._assign(before)

    def _assign(self, before: dict[int, str]) -> None:
        self._workers.assign(self._owners)
        self.account.lived["tasks moved"] += sum(self._owners[task] != before[task] for task in before)

    def _happen(self, event: str) -> None:
        workers = self._workers
        if event == "certificates exchanged":
            self._certificates.exchange()
        elif event == "workers restarted":
            workers.restart()
        elif event == "peers come":
            workers.peer_comes()
        elif event == "peers gone":
            before, staying = self._owners, [NEAR, FAR, OTHER]
            assert workers.peer is not None
            leaving = workers.peer
            self._owners = without(self._chance, before, leaving.worker_id, staying)
            self._assign(before)
            workers.peer_goes()
            self._workers.assign(self._owners)
        if event:
            self.account.lived[event] += 1

    def _settle(self, owed: list[Owed]) -> None:
        """Wait until all that programs are owed has come, and note what is missing."""

        def complete() -> bool:
            received: dict[Stream, int] = self._follower.ask("received")
            return all(each.missing(received) <= each.lost_and_told for each in owed)

        _within(_WAIT_SECONDS, complete)
        received: dict[Stream, int] = self._follower.ask("received")
        for each in owed:
            self.account.faults += each.faults + each.faults_of(received)
            self.account.lived["messages of programs"] += sum(received.get(s, 0) for s in each.most)
            self.account.lived["messages given up and told"] += each.missing(received)

    # --- a night -----------------------------------------------------------------------------------------

    def _night(self) -> None:
        """Let everything come to rest, look at the workers, and only then measure: that is a day's load."""
        self._gone = list(self._generation.all)
        self._next_generation(self._workers)
        self._note_refused("rest")
        vitals = self._rested()
        night = len(self.account.nights)
        measured = self._extent.pairs * (_LONGER if night in {0, self._extent.days - 1} else 1)
        self._producer.ask("rest")
        pairs = [self._canary.ask("pair") for _ in range(measured)]
        self._producer.ask("go")
        steady = {"producer": self._producer, "consumer": self._consumer, "follower": self._follower}
        memory = {name: rss(each.process_id) for name, each in steady.items()}
        self.account.nights.append(Night(self.account.seconds, pairs, vitals, memory))
        self._note_refused("go")

    def _rested(self) -> dict[str, Vitals]:
        """Return the vitals once nothing is more than in the first night, or after a while."""
        first = self.account.nights[0].vitals if self.account.nights else None
        found: dict[str, Vitals] = {}

        def look() -> bool:
            for each in (self._workers.near, self._workers.far):
                found[each.worker_id] = vitals_of(each.endpoint)
            if first is None:
                return all(not each.resumable for each in found.values())
            return not any(
                more(first[name], now) or now.rss > self._extent.most_memory * first[name].rss
                for name, now in found.items()
            )

        _within(_REST_SECONDS, look)
        return found

    def _note_refused(self, question: str) -> None:
        told: Refused = self._strangers.ask(question)
        self.account.refused = told.counts
        self.account.complaints = told.complaints

    # --- the end ------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Let what is there all the time finish, and the workers drain."""
        self._note_refused("rest")
        produced: Produced = self._producer.ask("finish")

        def received() -> dict[Stream, int]:
            consumed: Consumed = self._consumer.ask("progress")
            roaming: dict[Stream, int] = self._follower.ask("received")
            return {
                **consumed.received,
                **{stream: count for stream, count in roaming.items() if stream[1] == ROAMING_TASK},
            }

        _within(_WAIT_SECONDS, lambda: received() == produced.sent)
        consumed: Consumed = self._consumer.ask("finish")
        self.account.steady = (produced, received())
        self.account.faults += [*consumed.problems, *self._follower.ask("problems")]
        self._workers.end()
        self.account.ledgers = self._workers.ledgers


def _within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, or the time has passed: the account says what is missing."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
