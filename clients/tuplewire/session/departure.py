"""Records of workers that shut down cleanly: dropped messages, successors, and epochs of sinks.

Used by the worker's router, sinks and connections, and by Spark's sink (spark/publisher.py). Workers exchange
Departures when a session ends. Owns the last 1,000 departures that a worker knows of. Not thread-safe.
Design: docs/design/drain.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_ADLER_BASE = 65_521
_MOST_REMEMBERED = 1000
"""The number of departures that are stored. The oldest one is removed first."""


class TaskContent(NamedTuple):
    """A summary of the messages of a task in an epoch, regardless of their order.

    Attributes:
        messages: The number of messages; 0 if the content is unknown.
        size_bytes: Bytes of payloads, keys and headers.
        checksum: The sum of these bytes, modulo 65,521.
    """

    messages: int = 0
    size_bytes: int = 0
    checksum: int = 0

    def plus(self, other: TaskContent) -> TaskContent:
        """Return the summary of both contents together."""
        return TaskContent(
            self.messages + other.messages,
            self.size_bytes + other.size_bytes,
            (self.checksum + other.checksum) % _ADLER_BASE,
        )


@dataclass(frozen=True, slots=True)
class SinkEpoch:
    """The last epoch of a sink that a worker knows of, with the content of each task that has the epoch.

    `run` is the last run of the sink's query that published.
    """

    owner: str
    name: str
    epoch: int
    tasks: Mapping[int, TaskContent]
    run: str


OfEntry = tuple[int, int]
"""A task and the number of an entry worker: the messages to this task that this worker accepted."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A worker that holds messages forwarded by a departed worker."""

    worker_id: str
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Departure:
    """The final report of a worker that shut down cleanly.

    Attributes:
        dropped: The number of queued messages for each task that no consumer or worker accepted.
        others: An upper bound on further messages that were in flight.
        sinks: The last epochs of the sinks that the worker knew.
        successors: The workers that hold messages which it forwarded and which are not processed.
    """

    incarnation: int
    dropped: Mapping[int, int] = field(default_factory=dict)
    others: int = 0
    sinks: Sequence[SinkEpoch] = ()
    successors: Mapping[OfEntry, Successor] = field(default_factory=dict)

    def lost(self, tasks: Container[int]) -> int:
        """Return an upper bound on the messages for `tasks` that were lost with this worker."""
        return self.others + sum(count for task, count in self.dropped.items() if task in tasks)


class Departures:
    """The departures that a worker knows of. Not thread-safe.

    Each goodbye between workers contains all departures. A receiver also reports them to its senders before
    it releases messages that it had forwarded to a departed worker. A worker that starts later therefore
    learns of earlier departures.
    """

    def __init__(self) -> None:
        self._known: dict[int, Departure] = {}

    def __contains__(self, incarnation: object) -> bool:
        return incarnation in self._known

    def add(self, departure: Departure) -> None:
        """Store a departure."""
        self._known[departure.incarnation] = departure
        if len(self._known) > _MOST_REMEMBERED:  # the first key was added first
            del self._known[next(iter(self._known))]

    def hear(self, departures: Iterable[Departure]) -> list[Departure]:
        """Store departures reported by other workers, without their sinks; return the new ones."""
        heard = [replace(each, sinks=()) for each in departures if each.incarnation not in self._known]
        for each in heard:
            self.add(each)
        return heard

    def known(self) -> list[Departure]:
        """Return all departures."""
        return list(self._known.values())

    @property
    def for_receiver(self) -> frozenset[int]:
        """The incarnations of workers that had no messages in flight when they shut down."""
        return frozenset(each.incarnation for each in self._known.values() if not each.others)

    def of(self, incarnations: Iterable[int]) -> list[Departure]:
        """Return the departures of the workers with these incarnations."""
        return [self._known[each] for each in incarnations if each in self._known]
