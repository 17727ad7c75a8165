"""What is known of workers that have ended in good order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_ADLER_BASE = 65_521
_MOST_REMEMBERED = 1000
"""So many workers are remembered, those that ended last."""


class TaskContent(NamedTuple):
    """The messages of a task in an epoch, regardless of their order; 0 messages: not known.

    size_bytes: of payloads, keys and headers. checksum: the sum of these bytes, modulo 65,521.
    """

    messages: int = 0
    size_bytes: int = 0
    checksum: int = 0

    def plus(self, other: TaskContent) -> TaskContent:
        """Return both together."""
        return TaskContent(
            self.messages + other.messages,
            self.size_bytes + other.size_bytes,
            (self.checksum + other.checksum) % _ADLER_BASE,
        )


@dataclass(frozen=True, slots=True)
class SinkEpoch:
    """The last epoch of a sink, as far as a worker has had to do with it.

    owner, name: whose sink it is, and its name. tasks: the content of those that have the epoch. run: the
    run of the sink's query that published last.
    """

    owner: str
    name: str
    epoch: int
    tasks: Mapping[int, TaskContent]
    run: str


OfEntry = tuple[int, int]
"""A task, and the number of an entry worker: whose messages to the task are meant."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A worker to which one that has ended had passed messages on."""

    worker_id: str
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker that has ended in good order, and what it left behind.

    incarnation: the worker's. dropped: for each task how many messages it held that nobody took. others: how
    many more were on their way somewhere, at most. sinks: what it knew of sinks. successors: who has messages
    now that it had passed on, and that nobody has processed.
    """

    incarnation: int
    dropped: Mapping[int, int] = field(default_factory=dict)
    others: int = 0
    sinks: Sequence[SinkEpoch] = ()
    successors: Mapping[OfEntry, Successor] = field(default_factory=dict)

    def lost(self, tasks: Container[int]) -> int:
        """Return how many messages of some tasks are gone with it, at most."""
        return self.others + sum(count for task, count in self.dropped.items() if task in tasks)


class Departures:
    """The departures that a worker has heard of. Each goodbye between workers tells all of them.

    A receiver tells its senders, too, before it releases what it had passed on to a worker that has ended.

    So a worker that starts after another has ended learns of it from those that have seen both.
    """

    def __init__(self) -> None:
        self._known: dict[int, Departure] = {}

    def __contains__(self, incarnation: object) -> bool:
        return incarnation in self._known

    def add(self, departure: Departure) -> None:
        """Remember one."""
        self._known[departure.incarnation] = departure
        if len(self._known) > _MOST_REMEMBERED:
            del self._known[next(iter(self._known))]

    def hear(self, departures: Iterable[Departure]) -> list[Departure]:
        """Remember others' departures, but for their sinks; return those that were not known."""
        heard = [replace(each, sinks=()) for each in departures if each.incarnation not in self._known]
        for each in heard:
            self.add(each)
        return heard

    def known(self) -> list[Departure]:
        """Return all of them."""
        return list(self._known.values())

    @property
    def passed_on(self) -> frozenset[int]:
        """The workers that had nothing on its way any more when they said goodbye."""
        return frozenset(each.incarnation for each in self._known.values() if not each.others)

    def of(self, incarnations: Iterable[int]) -> list[Departure]:
        """Return those of some workers."""
        return [self._known[each] for each in incarnations if each in self._known]
