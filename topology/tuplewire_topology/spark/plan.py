"""The assignment of tasks to PySpark tasks and workers. Each PySpark task computes it from the same data.

Used by the other modules here. Owns no state. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.wire import control_pb2
from tuplewire_topology.authoring.description import Topology, shares_of

SUBMITTER_TASK = MAX_TASK
"""The task id of mail to the program that submitted the topology."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker, as a program next to it sees it.

    address: for the program. peer_address: for other workers, host:port. version: of its assignment. own:
    True if the run started it, so that it requires the run's token. tls: True if its peers use TLS.
    """

    address: str
    worker_id: str
    peer_address: str
    topology: str
    version: int
    own: bool = False
    tls: bool = False

    def watch_command(self, token_file: str | None) -> str:
        """Return the command to watch the cluster on the program's machine, with the token file, if any."""
        token = f"TUPLEWIRE_TOKEN_FILE={shlex.quote(token_file)} " if token_file else ""
        return f"{token}tuplewire top --web --address {self.address}"


@dataclass(frozen=True, slots=True)
class Joined:
    """The message of a PySpark task to the others at its start. place: None if it cannot take part.

    submitter_version: of the assignment of the submitter's worker; only from the first PySpark task.
    """

    attempt: int
    place: Place | None
    submitter_version: int = 0


class Plan:
    """The tasks of each PySpark task, their ids at the workers, and their worker.

    generation: the smallest attempt id. Attempt ids are unique, so it grows each time that Spark runs the
    stage; attempt *numbers* repeat. The ids at the workers are the topology's plus an offset, which depends
    on run and generation. So messages in flight to an earlier generation reach no task. places: the worker of
    each PySpark task. Raises ConfigError if the workers cannot work together.
    """

    def __init__(
        self, topology: Topology, run: str, joined: Sequence[Joined], submitter: Place | None = None
    ) -> None:
        self.generation = min(each.attempt for each in joined)
        self.shares = shares_of(topology, len(joined))
        self._n_tasks = len(topology.tasks)
        width = 1 + self._n_tasks + len(joined)
        places = MAX_TASK // width  # blocks of ids: each generation uses the next one
        self.first_task = (int(run[:8], 16) + self.generation) % places * width
        self.places = [each.place for each in joined if each.place is not None]
        self._submitter = submitter
        workers = self.places if submitter is None else [*self.places, submitter]
        self.version = 1 + max(  # newer than at any worker, so that all workers accept it
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
        """Return the task id of mail to a PySpark task."""
        return self.first_task + self._n_tasks + 1 + rank

    def assignment(self) -> control_pb2.Assignment:
        """Return the assignment of tasks to workers. PySpark tasks may share a worker."""
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
        """Return the workers that this PySpark task sends the assignment to, and their addresses.

        Its own worker is first. Rank 0 adds the submitter's worker if no PySpark task uses it.
        """
        own = [(self.places[rank].address, self.places[rank])]
        if rank == 0 and self._submitter is not None:
            ids = {place.worker_id for place in self.places}
            if self._submitter.worker_id not in ids:
                own.append((self._submitter.peer_address, self._submitter))
        return own


def _check_admission(places: Sequence[Place]) -> None:
    """Raise ConfigError if a worker of this run, which requires the run's token, would refuse others."""
    others = [place for place in places if not place.own]
    closed = [place for place in places if place.own and not place.tls]
    if closed and others:
        raise ConfigError(
            f"{closed[0].worker_id!r} was started for this run and takes its token only, which "
            f"{others[0].worker_id!r} does not have: set TUPLEWIRE_ADDRESS for the driver and for all "
            "executors, or for none of them, or name workers"
        )
