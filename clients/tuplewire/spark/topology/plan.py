"""Who runs what, and beside which worker: worked out by every PySpark task alike, from what all have said."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tuplewire.addresses import ADDRESS_VARIABLE
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes import Child, bound_addresses, worker_command
from tuplewire.topology.description import Topology, shares_of
from tuplewire.wire import control_pb2

SUBMITTER_TASK = MAX_TASK
"""The task id by which the program that submitted a topology gets its mail."""

_DRAIN_SECONDS = 5.0
_STOP_MARGIN_SECONDS = 5.0
_SECURITY = ("TUPLEWIRE_TLS_", "TUPLEWIRE_TOKEN_FILE", "TUPLEWIRE_PERMISSIONS_FILE")
"""The variables that hold for a worker that is started, too."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


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
    """What a PySpark task says of itself when it begins. place: None where it cannot take part."""

    attempt: int
    place: Place | None

    def to_text(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what to_text() wrote."""
        form = json.loads(text)
        return cls(form["attempt"], form["place"] and Place(**form["place"]))


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
        self.version = 1 + max(place.version for place in workers)
        topologies = sorted({place.topology for place in workers})
        if len(topologies) > 1:
            raise ConfigError(
                f"the workers serve different topologies, {', '.join(map(repr, topologies))}: "
                "start them with one --topology"
            )
        self.topology = topologies[0]

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

    def addresses(self, rank: int) -> list[str]:
        """Return the workers to which this PySpark task has to tell the assignment: its own, first.

        The first also tells the submitter's, where that is nobody else's.
        """
        own = [self.places[rank].address]
        if rank == 0 and self._submitter is not None:
            ids = {place.worker_id for place in self.places}
            if self._submitter.worker_id not in ids:
                own.append(self._submitter.peer_address)
        return own


@contextmanager
def nearest_worker(address: str | None, host: str, topology: str, timeout: float) -> Iterator[Place]:
    """Find the worker at an address, by default TUPLEWIRE_ADDRESS, or start one, which ends with the block.

    host: this machine's name for others. topology: of a worker that is started; others have theirs. timeout:
    for the worker to answer, in seconds. Raises UnreachableError when none does, LaunchError when one that is
    started does not bind, and ConfigError where none can be started.
    """
    with ExitStack() as stack:
        address = address or os.environ.get(ADDRESS_VARIABLE)
        address = address or stack.enter_context(_embedded(host, topology, timeout))
        with ControlClient(address, timeout) as control:
            status = control.status()
        tcp = next((each for each in status.addresses if not each.startswith("unix:")), "")
        named, _, port = tcp.rpartition(":")
        peer = f"{host}:{port}" if named in _WILDCARDS else tcp
        yield Place(address, status.worker_id, peer, status.topology, status.assignment_version)


@contextmanager
def _embedded(host: str, topology: str, timeout: float) -> Iterator[str]:
    """Run a worker process; it does not outlive this one, even when that is killed."""
    if find_spec("tuplewire_service") is None:
        raise ConfigError(
            f"there is no worker beside this process ({ADDRESS_VARIABLE} is not set), and none can be "
            "started: install tuplewire[service] for Spark's executors, or name workers"
        )
    environment = {key: value for key, value in os.environ.items() if key.startswith(_SECURITY)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # Whoever runs a topology without workers of its own has Spark's network for it as it is.
    flags = [] if Credentials.from_environment().secures(f"{host}:0") else ["--allow-plaintext"]
    with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
        worker = Child(
            worker_command(
                f"{host}-{os.getpid()}",
                topology,
                Path(directory, "worker.log"),
                listen=f"{host}:0",
                drain_seconds=_DRAIN_SECONDS,
                flags=flags,
                environment=environment,
            )
        )
        try:
            yield str(bound_addresses(worker, time.monotonic() + timeout)["unix_address"])
        finally:
            worker.terminate()
            worker.end(time.monotonic() + _DRAIN_SECONDS + _STOP_MARGIN_SECONDS)
