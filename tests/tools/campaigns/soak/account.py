"""The account of a month: the programs that ran, and the state of the workers in each night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from campaigns.fuzz.attackers import Tally
from campaigns.soak.canary import Pair, medians
from campaigns.soak.lives import Errand, Household
from campaigns.soak.vitals import Vitals, more

LEAST_SPEED = 0.967
"""Minimum ratio of the last third of the nights to the first, for the rate and for the speed of messages.

A steady decline by 5 % in a month is one by 3.3 % between these. Ratios of single nights vary by as much.
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a month: days, their generations (4 or more), and numbers per generation and per night."""

    days: int
    generations: int = 7
    programs: int = 96
    households: int = 2
    pairs: int = 16
    most_memory: float = 1.1
    """The maximum of a worker, as a multiple of its memory in the first night."""
    resume_seconds: float = 15.0
    """Below the default of an hour, because a month takes less."""


@dataclass(frozen=True, slots=True)
class Night:
    """The measurements of one night, with the memory of the programs that run during the whole month."""

    seconds: float
    pairs: Sequence[Pair]
    vitals: dict[str, Vitals]
    memory: dict[str, int]


@dataclass(slots=True)
class Account:
    """Everything that was measured; grows with each generation and each night."""

    extent: Extent
    programs: Counter[str] = field(default_factory=Counter)
    """Number of programs by kind and by ending."""
    lived: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each other event."""
    attacks: Tally = field(default_factory=Tally)
    """The rejected attacks."""
    nights: list[Night] = field(default_factory=list)

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
    def faults(self) -> list[str]:
        """Wrong answers, unbalanced ledgers of a night, growth, and loss of speed, as text."""
        if not self.nights:
            return ["the month has had no night"]
        return [
            *(f"an attack: {each}" for each in self.attacks.complaints),
            *(
                f"{name}: {vitals.ledger}, in night {number}"
                for number, night in enumerate(self.nights, 1)
                for name, vitals in night.vitals.items()
                if not vitals.ledger.balanced
            ),
            *(
                f"{name}: {fault}"
                for name, now in self.nights[-1].vitals.items()
                for fault in self.growth(name, now)
            ),
            *(
                f"{what} is {ratio:.3f} of the first nights', less than {LEAST_SPEED}"
                for what, ratio in self.ratios().items()
                if ratio < LEAST_SPEED
            ),
        ]

    def growth(self, name: str, now: Vitals) -> list[str]:
        """Return the resources of which a worker holds more than in the first night, as text."""
        first = self.nights[0].vitals[name]
        faults = [f"{what} {told}" for what, told in more(first, now).items()]
        if now.rss > self.extent.most_memory * first.rss:
            faults.append(f"memory is {now.rss / first.rss:.2f} of the first night's")
        return faults

    def ratios(self) -> dict[str, float]:
        """Return medians of the last third of the nights as shares of the first; empty without pairs."""
        if not self.extent.pairs:
            return {}
        third = (len(self.nights) + 2) // 3
        first, last = (
            medians([pair for night in nights for pair in night.pairs])
            for nights in (self.nights[:third], self.nights[-third:])
        )
        return {"the rate": last.rate / first.rate, "the speed": last.speed / first.speed}
