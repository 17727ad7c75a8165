"""Which faults happen when: drawn from a seed, before the run and whatever becomes of it."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from campaigns.chaos.layout import CONSUMERS, PRODUCERS, TASKS, WORKERS, ways

from tuplewire_service.testing.fault_line import Direction


class Kind(enum.StrEnum):
    """What can happen."""

    CUT = "cut"
    BLACK_HOLE = "black hole"
    DELAY = "delay"
    THROTTLE = "throttle"
    HALF_OPEN = "half-open"
    CONTROL = "lose and double control messages"
    STOP_WORKER = "stop worker"
    STOP_PRODUCER = "stop producer"
    STOP_CONSUMER = "stop consumer"
    KILL_CONSUMER = "kill consumer"
    KILL_WORKER = "kill worker"
    RESTART_WORKER = "drain and restart worker"
    MOVE = "move"
    KILL_PRODUCER = "kill producer"
    RESTART_CONSUMER = "close and restart consumer"


@dataclass(frozen=True)
class Fault:
    """One fault: when it begins and how long it lasts, in seconds from the start; to whom; how strong.

    cut: whether it ends with a cut, so that what was on the way is lost.
    """

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    value: float | str = ""
    cut: bool = False

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        strength = f" ({self.value})" if self.value != "" else ""
        end = ", then cut" if self.cut else ""
        return f"{self.kind}: {self.target}{strength}{lasting}{end}"


WEIGHTS = {
    Kind.CUT: 4,
    Kind.BLACK_HOLE: 3,
    Kind.DELAY: 2,
    Kind.THROTTLE: 2,
    Kind.HALF_OPEN: 3,
    Kind.CONTROL: 3,
    Kind.STOP_WORKER: 2,
    Kind.STOP_PRODUCER: 1,
    Kind.STOP_CONSUMER: 2,
    Kind.KILL_CONSUMER: 2,
    Kind.KILL_WORKER: 2,
    Kind.RESTART_WORKER: 2,
    Kind.MOVE: 4,
}
"""The kinds of a run with workers, and how often each comes."""
_BRIEF = (0.2, 1.5)
_LONG = (5.0, 8.0)
"""Longer than the keepalive, after which a silent peer is given up."""


def plan(seed: int, seconds: float, every: float) -> Iterator[Fault]:
    """Return the faults of a run with workers; see schedule."""
    return schedule(seed, seconds, every, WEIGHTS, _draw)


def schedule(
    seed: int,
    seconds: float,
    every: float,
    weights: Mapping[Kind, int],
    draw: Callable[[random.Random, float, Kind], Fault],
) -> Iterator[Fault]:
    """Return the faults of a run, in order: each kind once, in random order, then any; one every so often."""
    chance = random.Random(seed)
    kinds = chance.sample(list(weights), len(weights))
    at = 0.0
    while True:
        at += every * chance.uniform(0.3, 1.7)
        kind = kinds.pop() if kinds else chance.choices(list(weights), list(weights.values()))[0]
        fault = draw(chance, at, kind)
        if at >= seconds:
            return
        yield fault


class Times(NamedTuple):
    """How long a silence lasts (maybe longer than the keepalive) and a trouble; whether a cut ends it."""

    silence: float
    moment: float
    cut: bool


def times(chance: random.Random) -> Times:
    """Draw them, whether a fault needs them or not."""
    silence = round(chance.uniform(*(_LONG if chance.random() < 0.4 else _BRIEF)), 2)
    return Times(silence, round(chance.uniform(1.0, 5.0), 2), chance.random() < 0.5)


def of_a_way(chance: random.Random, at: float, kind: Kind, drawn: Times, ways: Sequence[str]) -> Fault:
    """Draw a fault of one of these ways."""
    way = chance.choice(ways)
    match kind:
        case Kind.BLACK_HOLE:
            return Fault(at, kind, way, drawn.silence, cut=drawn.cut)
        case Kind.HALF_OPEN:
            return Fault(at, kind, way, drawn.silence, chance.choice(list(Direction)), drawn.cut)
        case Kind.DELAY:
            return Fault(at, kind, way, drawn.moment, round(chance.uniform(0.05, 0.5), 2), drawn.cut)
        case Kind.THROTTLE:
            return Fault(at, kind, way, drawn.moment, chance.randint(5, 100) * 1000, drawn.cut)
    return Fault(at, kind, way)


def _draw(chance: random.Random, at: float, kind: Kind) -> Fault:
    drawn = times(chance)
    match kind:
        case Kind.CONTROL:
            return Fault(at, kind, f"to {chance.choice(WORKERS)}", drawn.moment)
        case Kind.STOP_WORKER:
            return Fault(at, kind, chance.choice(WORKERS), drawn.silence)
        case Kind.STOP_PRODUCER:
            return Fault(at, kind, chance.choice(PRODUCERS).name, drawn.silence)
        case Kind.STOP_CONSUMER:
            return Fault(at, kind, chance.choice(CONSUMERS).name, drawn.silence)
        case Kind.KILL_CONSUMER:
            return Fault(at, kind, chance.choice(CONSUMERS).name)
        case Kind.KILL_WORKER:
            return Fault(at, kind, chance.choice(WORKERS), round(chance.uniform(0.0, 2.0), 2))
        case Kind.RESTART_WORKER:
            return Fault(at, kind, chance.choice(WORKERS))
        case Kind.MOVE:
            workers = chance.sample(WORKERS, chance.choice((1, 1, 2, 3)))
            return Fault(at, kind, f"task {chance.choice(TASKS)}", value=f"to {' and to '.join(workers)}")
    return of_a_way(chance, at, kind, drawn, ways())
