"""The actions of each program of the month, and its ending: drawn from the seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_MOST_MESSAGES = 60
_SIZES = (16, 100, 100, 1000, 20_000)
_FORKS = 8
"""One of this number of programs is a fork."""
_REFUSED = 0.06
_LISTENING = 0.08


class Ending(enum.StrEnum):
    """The way a program ends."""

    CLOSE = "close"
    FLUSH = "flush only"
    DEL = "del"
    EXIT = "sys.exit"
    EXIT_NOW = "os._exit"
    KILL = "SIGKILL"
    TERM = "SIGTERM"

    @property
    def hard(self) -> bool:
        """True if no more Python code runs after it."""
        return self in {Ending.EXIT_NOW, Ending.KILL, Ending.TERM}


class Errand(enum.StrEnum):
    """The purpose of a program."""

    SEND = "send"
    LISTEN = "listen"
    UNKNOWN_TASK = "send to a task that is gone"
    OTHER_TOPOLOGY = "send to another topology"


@dataclass(frozen=True, slots=True)
class Life:
    """One program: `messages` of `size` bytes to each task. flushed: it flushes before a hard ending."""

    source: int
    ending: Ending
    errand: Errand
    address: str
    tasks: tuple[int, ...]
    messages: int
    size: int
    processed: bool
    flushed: bool
    aio: bool = False


@dataclass(frozen=True, slots=True)
class Household:
    """A process with several programs: clients in its threads, forks, and finally the process itself."""

    clients: tuple[Life, ...]
    forks: tuple[Life, ...]
    itself: Life

    @property
    def lives(self) -> tuple[Life, ...]:
        return (*self.clients, *self.forks, self.itself)


@dataclass(frozen=True, slots=True)
class Scenery:
    """The environment of the programs of a generation; `gone` are tasks of the previous one."""

    addresses: Sequence[str]
    tasks: Sequence[int]
    quiet: Sequence[int]
    gone: Sequence[int]


@dataclass(slots=True)
class Told:
    """A program's report about itself before it exits."""

    source: int
    sent: dict[int, int] = field(default_factory=dict)
    owed: bool = False
    """All messages must arrive, regardless of the fate of the process."""
    dropped: bool = False
    """The same, except the losses that the client reports in the log."""
    error: str = ""


def draw_household(chance: random.Random, first_source: int, programs: int, scenery: Scenery) -> Household:
    """Return a process with `programs` programs."""
    forks = max(1, programs // _FORKS)
    clients = programs - forks - 1
    sources = iter(range(first_source, first_source + programs))
    soft = (Ending.CLOSE, Ending.FLUSH, Ending.DEL)
    return Household(
        tuple(_draw(chance, next(sources), scenery, soft) for _ in range(clients)),
        tuple(_draw(chance, next(sources), scenery, tuple(Ending)) for _ in range(forks)),
        _draw(chance, next(sources), scenery, tuple(Ending), aio=chance.random() < 0.25),
    )


def _draw(
    chance: random.Random, source: int, scenery: Scenery, endings: Sequence[Ending], *, aio: bool = False
) -> Life:
    errand, tasks = Errand.SEND, tuple(chance.sample(scenery.tasks, chance.choice((1, 1, 2, 3))))
    dice = chance.random()
    if dice < _REFUSED / 2:
        errand = Errand.OTHER_TOPOLOGY
    elif dice < _REFUSED and scenery.gone:
        errand, tasks = Errand.UNKNOWN_TASK, (chance.choice(scenery.gone),)
    elif dice < _REFUSED + _LISTENING:
        errand, tasks = Errand.LISTEN, (chance.choice(scenery.quiet),)
    ending = chance.choice(endings)
    if aio:
        errand, tasks = Errand.SEND, tuple(chance.sample(scenery.tasks, 2))
        ending = Ending.FLUSH if ending is Ending.DEL else ending  # its loop ends with it
    return Life(
        source,
        ending,
        errand,
        chance.choice(scenery.addresses),
        tasks,
        chance.randint(1, _MOST_MESSAGES),
        chance.choice(_SIZES),
        processed=chance.random() < 0.3,
        flushed=chance.random() < 0.5,
        aio=aio,
    )
