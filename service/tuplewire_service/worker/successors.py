"""Tracks the workers that hold messages forwarded by departed workers. Design: docs/design/moves.md.

Later messages follow the same route. If a task moves again before these messages are processed, a message on
a new route would be delivered before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tuplewire.settings.addresses import Peer
from tuplewire.wire.messaging_pb2 import Departure
from tuplewire_service.worker.departures import Departures, Successor, TaskAndEntry, successors_of


@dataclass(eq=False, repr=False)
class Successors:
    """The destination of the next message of each task and entry worker; later ones follow that message.

    Call only from the event loop. `own_number` is this worker's number as an entry worker.
    """

    own_number: int
    incarnation: int
    by_task: dict[TaskAndEntry, Successor] = field(default_factory=dict)

    def add_departures(
        self, reports: Iterable[Departure], unreleased: Iterable[tuple[Peer, int, Mapping[TaskAndEntry, int]]]
    ) -> None:
        """Add departed workers, including workers to which others had forwarded messages of this worker.

        These other workers now release messages that are not processed. See Connections.unreleased_by_peer().
        """
        own_keys = {(task, number or self.own_number) for _, _, keys in unreleased for task, number in keys}
        for departure in reports:
            successors = successors_of(departure)
            for key in own_keys.intersection(successors):
                self.by_task[key] = successors[key]

    def refresh(
        self, departures: Departures, unreleased: Iterable[tuple[Peer, int, Mapping[TaskAndEntry, int]]]
    ) -> None:
        """Add departed workers before messages count as released; see Connections.unreleased_by_peer()."""
        for each in unreleased:
            self.add_departures(departures.find([each[1]]), [each])

        @cache  # many tasks have the same successor
        def successors_after(incarnation: int) -> Mapping[TaskAndEntry, Successor] | None:
            return next(map(successors_of, departures.find([incarnation])), None)

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

    def take(self, task: int, entry_worker: int) -> Successor | None:
        """Remove and return the destination of the next message; None: the owner of the task."""
        return self.by_task.pop((task, entry_worker), None)

    def snapshot_at_shutdown(
        self, unreleased: Iterable[tuple[Peer, int, Mapping[TaskAndEntry, int]]]
    ) -> dict[TaskAndEntry, Successor]:
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
