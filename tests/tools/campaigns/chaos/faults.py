"""Random faults of a chaos run: their kinds and parameters."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

from campaigns.campaign import Action

from tuplewire_service.testing.fault_proxy import Direction


class Kind(enum.StrEnum):
    """The kinds of faults."""

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


OF_WAYS = {Kind.CUT: 4, Kind.BLACK_HOLE: 3, Kind.DELAY: 2, Kind.THROTTLE: 2, Kind.HALF_OPEN: 3}
"""The faults of connections, each with its weight."""
_BRIEF = (0.2, 1.5)
_LONG = (5.0, 8.0)
"""Longer than the keepalive, after which a silent peer is disconnected."""


@dataclass(frozen=True)
class Targets:
    """The names of all fault targets in a run."""

    ways: Sequence[str]
    producers: Sequence[str]
    consumers: Sequence[str]
    workers: Sequence[str] = ()
    tasks: Sequence[int] = ()

    def draw(self, chance: random.Random, at: float, kind: Kind) -> Action:
        """Return a fault of a kind at a time."""
        silence = round(chance.uniform(*(_LONG if chance.random() < 0.4 else _BRIEF)), 2)
        moment = round(chance.uniform(1.0, 5.0), 2)
        away = round(chance.uniform(0.0, 2.0), 2)
        cut = chance.random() < 0.5
        target = str(chance.choice(self._of(kind)))
        match kind:
            case Kind.CONTROL:
                return Action(at, kind, f"to {target}", moment)
            case Kind.STOP_WORKER | Kind.STOP_PRODUCER | Kind.STOP_CONSUMER:
                return Action(at, kind, target, silence)
            case Kind.KILL_WORKER | Kind.KILL_CONSUMER | Kind.RESTART_CONSUMER:
                return Action(at, kind, target, away)
            case Kind.MOVE:
                workers = chance.sample(self.workers, chance.choice((1, 1, 2, 3)))
                return Action(at, kind, f"task {target}", value=f"to {' and to '.join(workers)}")
            case Kind.BLACK_HOLE:
                return Action(at, kind, target, silence, cut=cut)
            case Kind.HALF_OPEN:
                return Action(at, kind, target, silence, chance.choice(list(Direction)), cut)
            case Kind.DELAY:
                return Action(at, kind, target, moment, round(chance.uniform(0.05, 0.5), 2), cut)
            case Kind.THROTTLE:
                return Action(at, kind, target, moment, chance.randint(5, 100) * 1000, cut)
        return Action(at, kind, target)

    def _of(self, kind: Kind) -> Sequence[str | int]:
        if kind is Kind.MOVE:
            return self.tasks
        for word, targets in (
            ("producer", self.producers),
            ("consumer", self.consumers),
            ("worker", self.workers),
            ("control", self.workers),
        ):
            if word in kind:
                return targets
        return self.ways
