"""Where messages are that a worker had passed on which has ended: later ones go there, and stay behind them.

A worker that ends has passed on what it had, and nobody may have processed it yet. If its task moves again, a
message that came by the new route would overtake these. docs/design/moves.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tuplewire.session.departure import Departure, Departures, OfEntry, Successor
from tuplewire_service.worker.connections import Peer


class Successors:
    """Knows, for each task and entry worker, to whom the next message goes. Belongs to the event loop.

    It is for one message: those after it follow that one.
    """

    def __init__(self, own: int, incarnation: int) -> None:
        """Know of nothing. own: this worker's number as an entry worker, incarnation: its own."""
        self._own = own
        self._incarnation = incarnation
        self._known: dict[OfEntry, Successor] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hear(
        self, heard: Iterable[Departure], unreleased: Iterable[tuple[Peer, int, Mapping[OfEntry, int]]]
    ) -> None:
        """Take in workers that have ended just now, also where others had passed our messages on to them.

        These others release now what nobody has processed. unreleased: see Connections.unreleased.
        """
        ours = {(task, number or self._own) for _, _, keys in unreleased for task, number in keys}
        for departure in heard:
            for key in ours.intersection(departure.successors):
                self._known[key] = departure.successors[key]

    def learn(
        self, departures: Departures, unreleased: Iterable[tuple[Peer, int, Mapping[OfEntry, int]]]
    ) -> None:
        """Take in which workers have ended; before what these had counts as released.

        unreleased: see Connections.unreleased.
        """
        for _, incarnation, keys in unreleased:
            for departure in departures.of([incarnation]):
                for task, entry_worker in keys:
                    key = task, entry_worker or self._own
                    if key in departure.successors:
                        self._known[key] = departure.successors[key]
        for key in list(self._known):
            while found := departures.of([self._known[key].incarnation]):
                if key not in found[0].successors:
                    del self._known[key]
                    break
                self._known[key] = found[0].successors[key]
        # What was passed on to this worker is here, or went on from here.
        self._known = {
            key: each for key, each in self._known.items() if each.incarnation != self._incarnation
        }

    @property
    def peers(self) -> set[Peer]:
        """Those workers."""
        return {(each.worker_id, each.address) for each in self._known.values()}

    def take(self, task: int, entry_worker: int) -> Successor | None:
        """Take out to whom the next message goes; None: wherever the task is."""
        return self._known.pop((task, entry_worker), None)

    def left(self, unreleased: Iterable[tuple[Peer, int, Mapping[OfEntry, int]]]) -> dict[OfEntry, Successor]:
        """Return who has what this worker has passed on, as it ends."""
        last: dict[OfEntry, int] = {}
        found = dict(self._known)
        for (worker_id, address), incarnation, keys in unreleased:
            for (task, entry_worker), entry_sequence in keys.items():
                key = task, entry_worker or self._own
                if entry_sequence >= last.get(key, 0):
                    last[key] = entry_sequence
                    found[key] = Successor(worker_id, address, incarnation)
        return found
