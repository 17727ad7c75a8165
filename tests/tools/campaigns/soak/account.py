"""What a month comes to: what was lived, what each night has shown, and what should not be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from campaigns.soak.canary import Pair, medians
from campaigns.soak.lives import Errand, Household
from campaigns.soak.vitals import Vitals, more
from helpers.streams import Produced, Stream

from tuplewire.session.ledger import LedgerSnapshot

LEAST_SPEED = 0.95
"""Of the first night's rate, and of its speed of single messages."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is lived. programs: of a generation, in so many processes (households) at least.

    generations: of a day, 4 or more. pairs: measurements of a night, 0 for none. most_memory: how many times
    the memory of the first night a worker may hold. resume_seconds: how long workers remember a sender. A
    month lasts less than the hour that they do by default.
    """

    days: int
    generations: int
    programs: int
    households: int
    pairs: int
    most_memory: float
    resume_seconds: float


@dataclass(frozen=True, slots=True)
class Night:
    """What was seen. seconds: from the beginning. memory: of the programs that are there all the time."""

    seconds: float
    pairs: Sequence[Pair]
    vitals: dict[str, Vitals]
    memory: dict[str, int]


@dataclass(slots=True)
class Account:
    """Grows with each generation and each night."""

    seed: int
    extent: Extent
    began: float = field(default_factory=time.monotonic)
    programs: Counter[str] = field(default_factory=Counter)
    """By what they were, and by how they have ended."""
    lived: Counter[str] = field(default_factory=Counter)
    """What happened besides, and how often."""
    refused: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    nights: list[Night] = field(default_factory=list)
    ledgers: list[tuple[str, int, LedgerSnapshot]] = field(default_factory=list)
    steady: tuple[Produced, dict[Stream, int]] | None = None
    """What the programs that are there all the time have sent, and what of it has come."""
    faults: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def lived_in(self, household: Household) -> None:
        """Count the programs of a process."""
        self.lived["programs"] += len(household.lives)
        for kind, lives in (
            ("clients in a process", household.clients),
            ("forks", household.forks),
            ("processes", (household.itself,)),
        ):
            self.programs[kind] += len(lives)
        for life in household.lives:
            self.programs[f"end: {life.ending}"] += 1
            if life.errand is not Errand.SEND:
                self.programs[f"errand: {life.errand}"] += 1

    @property
    def verdict(self) -> list[str]:
        """Everything that should not be, in words; of a month that is over."""
        return [
            *self.faults,
            *(f"a stranger: {each}" for each in self.complaints),
            *self._ledger_faults(),
            *self._steady_faults(),
            *self._growth(),
            *self.slower(),
        ]

    def _ledger_faults(self) -> list[str]:
        faults = [
            f"{name}: {vitals.ledger}, in night {number}"
            for number, night in enumerate(self.nights, 1)
            for name, vitals in night.vitals.items()
            if not vitals.ledger.balanced
        ]
        for name, code, ledger in self.ledgers:
            if code:
                faults.append(f"{name} has ended with {code}")
            if not ledger.balanced or ledger.pending or sum(ledger.dropped.values()):
                faults.append(f"{name} has ended with {ledger}")
        return faults

    def _steady_faults(self) -> list[str]:
        if self.steady is None:
            return ["the steady programs have not finished"]
        produced, received = self.steady
        faults = [
            f"steady stream {stream}: {count} sent, {received.get(stream, 0)} received"
            for stream, count in produced.sent.items()
            if received.get(stream, 0) != count
        ]
        faults += [
            f"steady source {source}: {ledger}"
            for source, ledger in produced.ledgers.items()
            if not ledger.balanced or ledger.pending or sum(ledger.dropped.values())
        ]
        return faults

    def _growth(self) -> list[str]:
        first, last = self.nights[0].vitals, self.nights[-1].vitals
        faults = [
            f"{name}: {what} {told}" for name in first for what, told in more(first[name], last[name]).items()
        ]
        faults += [
            f"{name}: memory is {last[name].rss / first[name].rss:.2f} of the first night's"
            for name in first
            if last[name].rss > self.extent.most_memory * first[name].rss
        ]
        return faults

    def slower(self) -> list[str]:
        """Return what of the canary is slower than it may be."""
        return [
            f"{what} is {ratio:.3f} of the first night's, less than {LEAST_SPEED}"
            for what, ratio in self.ratios().items()
            if ratio < LEAST_SPEED
        ]

    def ratios(self) -> dict[str, float]:
        """Return the last night's medians of pairs as shares of the first night's; empty without any."""
        if not self.extent.pairs:
            return {}
        first, last = medians(self.nights[0].pairs), medians(self.nights[-1].pairs)
        return {"the rate": last.rate / first.rate, "the speed": last.speed / first.speed}
