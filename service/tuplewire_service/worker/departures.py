"""Workers that shut down cleanly: their dropped messages, and the workers that hold forwarded ones.

A Departure is the final report of a worker; workers exchange Departures when a session ends. Used by
router.py, successors.py and control/spark_servicers.py. Owns the last 1,000 departures that a worker knows
of. Not thread-safe. Design: docs/design/drain.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from tuplewire.wire import messaging_pb2 as pb

_MAX_DEPARTURES = 1000
"""The number of departures that are stored. The oldest one is removed first."""
TaskAndEntry = tuple[int, int]
"""A task and the number of an entry worker: the messages to this task that the entry worker accepted."""


class Successor(NamedTuple):
    """A worker that holds messages forwarded by a departed worker."""

    worker_id: str
    address: str
    incarnation: int


def successors_to_wire(successors: Mapping[TaskAndEntry, Successor]) -> Iterable[pb.Successor]:
    """Return the successors for a Departure, each once, with all its tasks."""
    wire_successors: dict[Successor, pb.Successor] = {}
    for (task, entry_worker), each in successors.items():
        if each not in wire_successors:
            wire_successors[each] = pb.Successor(**each._asdict())
        wire_successors[each].tasks.append(task)
        wire_successors[each].entry_workers.append(entry_worker)
    return wire_successors.values()


def successors_of(departure: pb.Departure) -> dict[TaskAndEntry, Successor]:
    """Return the workers that hold messages which a worker forwarded and which are not processed."""
    return {
        key: Successor(each.worker_id, each.address, each.incarnation)
        for each in departure.successors
        for key in zip(each.tasks, each.entry_workers, strict=False)
    }


def max_lost_messages(departure: pb.Departure, tasks: Container[int]) -> int:
    """Return an upper bound on the messages for `tasks` that were lost with a worker."""
    dropped = departure.dropped_messages.items()
    return departure.in_flight_messages + sum(count for task, count in dropped if task in tasks)


class Departures:
    """The departures that a worker knows of. Not thread-safe.

    Each goodbye between workers contains all departures. A receiver also reports them to its senders before
    it releases messages that it had forwarded to a departed worker. So workers that start later know them.
    """

    def __init__(self) -> None:
        self._known: dict[int, pb.Departure] = {}

    def __contains__(self, incarnation: object) -> bool:
        return incarnation in self._known

    def add(self, departure: pb.Departure) -> None:
        """Store a departure."""
        self._known[departure.incarnation] = departure
        if len(self._known) > _MAX_DEPARTURES:  # the first key was added first
            del self._known[next(iter(self._known))]

    def merge(self, departures: Iterable[pb.Departure]) -> list[pb.Departure]:
        """Store departures reported by other workers, without their sinks; return the new ones."""
        added = []
        for each in departures:
            if each.incarnation not in self._known:
                new = pb.Departure()
                new.CopyFrom(each)
                new.ClearField("sink_epochs")
                self.add(new)
                added.append(new)
        return added

    def all_departures(self) -> list[pb.Departure]:
        """Return all departures."""
        return list(self._known.values())

    @property
    def cleanly_departed(self) -> frozenset[int]:
        """The incarnations of workers that had no messages in flight when they shut down."""
        return frozenset(each.incarnation for each in self._known.values() if not each.in_flight_messages)

    def find(self, incarnations: Iterable[int]) -> list[pb.Departure]:
        """Return the departures of the workers with these incarnations."""
        return [self._known[each] for each in incarnations if each in self._known]
