"""Faults on purpose: which messages of a server's streams are lost, doubled, delayed, cut off or slowed down.

Pure, but for chance. A rule is `lose=0.1 double=0.1 method=Send peer=shop*`; several have `;` between them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import NamedTuple

from tuplewire.errors import ConfigError

FATES = ("lost", "doubled", "cut", "delayed", "slowed")
_KINDS = ("lose", "double", "cut", "delay", "slow")
MOST_RULES = 20
_MOST_SECONDS = 60.0
_FOREVER_METHODS = ("SetFaults",)
"""So that faults can always be ended."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """What happens to messages of some methods and peers.

    lose, double, cut: the share of messages, 0 to 1. delay: in seconds, of each. slow: bytes a second that
    a stream passes on; 0: as many as come. rate: the share of messages that the rule looks at. method, peer:
    patterns like `S*`; a peer is a host, or an id.
    """

    lose: float = 0.0
    double: float = 0.0
    cut: float = 0.0
    delay: float = 0.0
    slow: float = 0.0
    rate: float = 1.0
    method: str = "*"
    peer: str = "*"

    def fits(self, method: str, names: Collection[str]) -> bool:
        """Whether it is about a method, and a peer that goes by these names."""
        return fnmatchcase(method, self.method) and any(fnmatchcase(name, self.peer) for name in names)


def parse_faults(text: str) -> tuple[FaultRule, ...]:
    """Read rules; ConfigError names what is wrong."""
    rules = tuple(_rule(each) for each in text.split(";") if each.strip())
    if len(rules) > MOST_RULES:
        raise ConfigError(f"faults have {MOST_RULES} rules at most, not {len(rules)}")
    return rules


def _rule(text: str) -> FaultRule:
    kinds = {each.name: each.type for each in fields(FaultRule)}
    values: dict[str, float | str] = {}
    for word in text.split():
        name, is_given, value = word.partition("=")
        if name not in kinds or not is_given or not value:
            raise ConfigError(f"a fault is one of {', '.join(kinds)}, with = and a value, not {word[:100]!r}")
        values[name] = value if name in {"method", "peer"} else _number(name, value)
    if not values.get("rate", 1.0) or not any(values.get(name) for name in _KINDS):
        raise ConfigError(
            f"the rule {text.strip()[:100]!r} does nothing: give lose, double, cut, delay or slow"
        )
    return FaultRule(**values)  # type: ignore[arg-type]  # numbers and texts are where they belong


def _number(name: str, value: str) -> float:
    most = {"delay": _MOST_SECONDS, "slow": float("inf")}.get(name, 1.0)
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise ConfigError(f"{name} is a number from 0 to {most:g}, not {value[:100]!r}")
    return number


class Fate(NamedTuple):
    """What becomes of a message. seconds: how long it waits before."""

    seconds: float = 0.0
    lost: bool = False
    doubled: bool = False
    cut: bool = False


UNTOUCHED = Fate()


class Faults:
    """Those of one server; true while there are rules. Belongs to the event loop. counts: fates, by kind."""

    def __init__(self, rules: Sequence[FaultRule] = ()) -> None:
        """Begin with some rules."""
        self.rules = tuple(rules)
        self.counts: Counter[str] = Counter()
        self._random = random.Random()  # noqa: S311 - chance, and no secret

    def __bool__(self) -> bool:
        return bool(self.rules)

    def fate(self, method: str, names: Collection[str], size_bytes: int) -> Fate:
        """Decide what becomes of a message."""
        if method in _FOREVER_METHODS:
            return UNTOUCHED
        seconds, lost, doubled, cut = 0.0, False, False, False
        for rule in self.rules:
            if not rule.fits(method, names) or self._random.random() >= rule.rate:
                continue
            if rule.delay:
                self.counts["delayed"] += 1
            if rule.slow:
                self.counts["slowed"] += 1
                seconds += min(_MOST_SECONDS, size_bytes / rule.slow)
            seconds += rule.delay
            lost |= self._random.random() < rule.lose
            doubled |= self._random.random() < rule.double
            cut |= self._random.random() < rule.cut
        return Fate(seconds, lost, doubled, cut)
