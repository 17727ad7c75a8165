"""Who runs what, and beside which worker: worked out by every PySpark task alike, from what all have said."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.wire import control_pb2
from tuplewire_topology.authoring.description import Topology, shares_of

SUBMITTER_TASK = MAX_TASK
"""The task id by which the program that submitted a topology gets its mail."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker, as a program beside it sees it.

    address: for the program. peer_address: for other workers, host:port. version: of its assignment. own:
    whether the run has started it, so that it asks for the run's token. tls: whether peers reach it by TLS.
    """

    address: str
    worker_id: str
    peer_address: str
    topology: str
    version: int
    own: bool = False
    tls: bool = False

    def watch_command(self, token_file: str | None) -> str:
        """Return the command that shows the cluster live, to type on the machine of the program.

        token_file: which has the token to show to this worker.
        """
        token = f"TUPLEWIRE_TOKEN_FILE={shlex.quote(token_file)} " if token_file else ""
        return f"{token}tuplewire top --web {self.address}"


@dataclass(frozen=True, slots=True)
class Joined:
    """What a PySpark task says of itself when it begins. place: None where it cannot take part.

    submitter_version: that of the assignment of the submitter's worker, from the first PySpark task.
    """

    attempt: int
    place: Place | None
    submitter_version: int = 0

    def to_text(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what to_text() wrote."""
        form = json.loads(text)
        return cls(form["attempt"], form["place"] and Place(**form["place"]), form["submitter_version"])


class Plan:
    """Which tasks each PySpark task has, under which ids, and which worker holds them.

    generation: the smallest attempt id of all. Spark gives every attempt of a task an id of its own, so that
    it grows each time that the stage is run; attempt *numbers* repeat. The task ids at the workers are those
    of the topology, moved to a place that depends on run and generation: what is still on the way to an
    earlier generation meets nobody.

    places: the worker of each PySpark task. Raises ConfigError where the workers do not fit each other.
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
        self.places = [each.place for each in joined if each.place is not None]
        self._submitter = submitter
        workers = self.places if submitter is None else [*self.places, submitter]
        self.version = 1 + max(
            *(place.version for place in workers), *(each.submitter_version for each in joined)
        )
        topologies = sorted({place.topology for place in workers})
        if len(topologies) > 1:
            raise ConfigError(
                f"the workers serve different topologies, {', '.join(map(repr, topologies))}: "
                "start them with one --topology; set TUPLEWIRE_TOPOLOGY to it where a run starts its own"
            )
        self.topology = topologies[0]
        _check_admission(workers)

    def mailbox(self, rank: int) -> int:
        """Return the task id by which a PySpark task gets its mail."""
        return self.first_task + self._n_tasks + 1 + rank

    def assignment(self) -> control_pb2.Assignment:
        """Return which worker holds each task; a worker may be beside several PySpark tasks."""
        tasks: dict[tuple[str, str], list[int]] = {}
        for rank, (place, share) in enumerate(zip(self.places, self.shares, strict=True)):
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

    def told(self, rank: int) -> list[tuple[str, Place]]:
        """Return the workers, and their addresses, that this PySpark task has to tell the assignment.

        Its own is the first. The first PySpark task also tells the submitter's, where that is nobody else's.
        """
        own = [(self.places[rank].address, self.places[rank])]
        if rank == 0 and self._submitter is not None:
            ids = {place.worker_id for place in self.places}
            if self._submitter.worker_id not in ids:
                own.append((self._submitter.peer_address, self._submitter))
        return own


def _check_admission(places: Sequence[Place]) -> None:
    """Raise ConfigError where workers would refuse each other, for one of them is of the run alone."""
    others = [place for place in places if not place.own]
    closed = [place for place in places if place.own and not place.tls]
    if closed and others:
        raise ConfigError(
            f"{closed[0].worker_id!r} was started for this run and takes its token only, which "
            f"{others[0].worker_id!r} does not have: set TUPLEWIRE_ADDRESS for the driver and for all "
            "executors, or for none of them, or name workers"
        )
