"""Who runs what: worked out by every PySpark task alike, from what all of them have said of themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.topology.description import Topology, shares_of
from tuplewire.wire import control_pb2

SUBMITTER_TASK = MAX_TASK
"""The task id by which the program that submitted a topology gets its mail."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker, as a program beside it sees it.

    address: for the program. peer_address: for other workers, host:port. version: of its assignment.
    """

    address: str
    worker_id: str
    peer_address: str
    topology: str
    version: int


@dataclass(frozen=True, slots=True)
class Joined:
    """What a PySpark task says of itself when it begins. problem: why it cannot take part."""

    rank: int
    attempt: int
    place: Place | None
    problem: str = ""

    def to_text(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what to_text() wrote."""
        form = json.loads(text)
        place = form["place"]
        return cls(form["rank"], form["attempt"], place and Place(**place), form["problem"])


class Plan:
    """Which tasks each PySpark task has, under which ids, and which worker holds them.

    generation: the smallest attempt id of all. Spark gives every attempt of a task an id of its own, so that
    it grows each time that the stage is run; attempt *numbers* repeat. The task ids at the workers are those
    of the topology, moved to a place that depends on run and generation: what is still on the way to an
    earlier generation meets nobody.

    Raises ConfigError where the workers do not fit each other.
    """

    def __init__(
        self, topology: Topology, run: str, joined: Sequence[Joined], submitter: Place | None = None
    ) -> None:
        self.generation = min(each.attempt for each in joined)
        self.shares = shares_of(topology, len(joined))
        self._n_tasks = len(topology.tasks)
        width = 1 + self._n_tasks + len(joined)
        places = MAX_TASK // width
        self.first_task = (int(run[:8], 16) + self.generation) % places * width
        self._places = [each.place for each in joined if each.place is not None]
        self._submitter = submitter
        workers = self._places if submitter is None else [*self._places, submitter]
        self.version = 1 + max(place.version for place in workers)
        topologies = sorted({place.topology for place in workers})
        if len(topologies) > 1:
            raise ConfigError(
                f"the workers serve different topologies, {', '.join(map(repr, topologies))}: "
                "start them with one --topology"
            )
        self.topology = topologies[0]

    def place(self, rank: int) -> Place:
        """Return the worker of a PySpark task."""
        return self._places[rank]

    def mailbox(self, rank: int) -> int:
        """Return the task id by which a PySpark task gets its mail."""
        return self.first_task + self._n_tasks + 1 + rank

    def assignment(self) -> control_pb2.Assignment:
        """Return which worker holds each task; a worker may be beside several PySpark tasks."""
        tasks: dict[tuple[str, str], list[int]] = {}
        for rank, (place, share) in enumerate(zip(self._places, self.shares, strict=True)):
            own = tasks.setdefault((place.worker_id, place.peer_address), [])
            own += [self.first_task + task for task in share]
            own.append(self.mailbox(rank))
        if self._submitter is not None:
            place = self._submitter
            tasks.setdefault((place.worker_id, place.peer_address), []).append(SUBMITTER_TASK)
        return control_pb2.Assignment(
            version=self.version,
            topology=self.topology,
            workers=[
                control_pb2.AssignedWorker(worker_id=worker_id, address=address, tasks=held)
                for (worker_id, address), held in tasks.items()
            ],
        )

    def addresses(self, rank: int) -> list[str]:
        """Return the workers to which this PySpark task has to tell the assignment: its own, first.

        The first also tells the submitter's, where that is nobody else's.
        """
        own = [self._places[rank].address]
        if rank == 0 and self._submitter is not None:
            ids = {place.worker_id for place in self._places}
            if self._submitter.worker_id not in ids:
                own.append(self._submitter.peer_address)
        return own
