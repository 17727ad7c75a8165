"""Workers that shut down cleanly: their dropped messages, and the workers that hold forwarded ones.

A Departure is the final report of a worker; workers exchange Departures when a session ends. Used by
router.py, moves.py and control/spark_servicers.py. Owns the last 1,000 departures that a worker knows of, and
the successors of departed workers. Not thread-safe. Design: docs/design/drain.md and docs/design/moves.md.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from tuplewire.settings.addresses import Peer
from tuplewire.wire import messaging_pb2 as pb

_MAX_DEPARTURES = 1000
"""The number of departures that are stored. The oldest one is removed first."""
TaskAndEntry = tuple[int, int]
"""A task and the number of an entry worker: the messages to this task that the entry worker accepted."""
UnreleasedAtPeer = tuple[Peer, int, Mapping[TaskAndEntry, int]]
"""A worker, its incarnation, and last_unreleased_sequences() of the connection to it."""


class Successor(NamedTuple):
    """A worker that holds messages forwarded by a departed worker."""

    worker_id: str
    address: str
    incarnation: int


def successors_to_wire(successors: Mapping[TaskAndEntry, Successor]) -> Collection[pb.Successor]:
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


class Departures(dict[int, pb.Departure]):
    """The departures that a worker knows of, by incarnation. Not thread-safe.

    Each goodbye between workers contains all departures. A receiver also reports them to its senders before
    it releases messages that it had forwarded to a departed worker. So workers that start later know them.
    """

    def add(self, departure: pb.Departure) -> None:
        """Store a departure."""
        self[departure.incarnation] = departure
        if len(self) > _MAX_DEPARTURES:  # the first key was added first
            del self[next(iter(self))]

    def merge(self, departures: Iterable[pb.Departure]) -> list[pb.Departure]:
        """Store departures reported by other workers, without their sinks; return the new ones."""
        added = []
        for each in departures:
            if each.incarnation not in self:
                new = pb.Departure()
                new.CopyFrom(each)
                new.ClearField("sink_epochs")  # only their own worker reports them
                self.add(new)
                added.append(new)
        return added

    @property
    def without_messages_in_flight(self) -> frozenset[int]:
        """The incarnations of workers that had no messages in flight when they shut down."""
        return frozenset(each.incarnation for each in self.values() if not each.in_flight_messages)

    def find(self, incarnations: Iterable[int]) -> list[pb.Departure]:
        """Return the departures of the workers with these incarnations."""
        return [self[each] for each in incarnations if each in self]


@dataclass(eq=False, repr=False)
class Successors:
    """The destination of the next message of each task and entry worker; later ones follow that message.

    If a task moves again before the messages at its successor are processed, a message on a new route would
    be delivered before them. Call only from the event loop.
    """

    own_number: int
    """This worker's number as an entry worker."""
    incarnation: int
    by_task: dict[TaskAndEntry, Successor] = field(default_factory=dict)

    def add_departures(self, reports: Iterable[pb.Departure], unreleased: Iterable[UnreleasedAtPeer]) -> None:
        """Add departed workers, including workers to which others had forwarded messages of this worker.

        These other workers now release messages that are not processed. See Connections.unreleased_by_peer().
        """
        own_keys = {(task, number or self.own_number) for _, _, keys in unreleased for task, number in keys}
        for departure in reports:
            successors = successors_of(departure)
            for key in own_keys.intersection(successors):
                self.by_task[key] = successors[key]

    def refresh(self, departures: Departures, unreleased: Iterable[UnreleasedAtPeer]) -> None:
        """Add departed workers, before their messages count as released."""
        for each in unreleased:
            self.add_departures(departures.find([each[1]]), [each])

        @cache  # many tasks have the same successor
        def successors_after(incarnation: int) -> Mapping[TaskAndEntry, Successor] | None:
            departure = departures.get(incarnation)
            return None if departure is None else successors_of(departure)

        for key in list(self.by_task):
            # A successor may have departed, too: its messages are processed, or at its own successor.
            while (next_successors := successors_after(self.by_task[key].incarnation)) is not None:
                if key not in next_successors:
                    del self.by_task[key]
                    break
                self.by_task[key] = next_successors[key]
        # Messages that were forwarded to this worker are here, or were forwarded from here.
        self.by_task = {key: new for key, new in self.by_task.items() if new.incarnation != self.incarnation}

    @property
    def peers(self) -> set[Peer]:
        """The known successors."""
        return {Peer(each.worker_id, each.address) for each in self.by_task.values()}

    def snapshot_at_shutdown(self, unreleased: Iterable[UnreleasedAtPeer]) -> dict[TaskAndEntry, Successor]:
        """Return the workers that hold unreleased messages of this worker, for its departure notice."""
        last: dict[TaskAndEntry, int] = {}
        successors = dict(self.by_task)
        for peer, incarnation, keys in unreleased:
            for (task, entry_worker), entry_sequence in keys.items():
                key = task, entry_worker or self.own_number
                # Later messages must follow the last ones, which are at this worker.
                if entry_sequence >= last.get(key, 0):
                    last[key] = entry_sequence
                    successors[key] = Successor(*peer, incarnation)
        return successors
