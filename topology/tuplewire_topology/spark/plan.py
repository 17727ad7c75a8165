"""The workers of a topology on Spark, and the assignment of its tasks to them.

Each PySpark task uses the worker next to it, or starts one that requires the run's own token. All of them
compute the same plan from the same data. Used by the other modules here. Owns started workers and the token's
file. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import (
    ADDRESS_VARIABLE,
    TOPOLOGY_VARIABLE,
    Peer,
    is_loopback,
    join_host_port,
    split_host_port,
)
from tuplewire.wire import control_pb2
from tuplewire_topology.authoring.description import Topology, schedule_evenly

SUBMITTER_TASK = MAX_TASK
"""The task id of control messages to the program that submitted the topology."""
START_SECONDS = 60.0
_DRAIN_SECONDS = 5.0
_TLS = "TUPLEWIRE_TLS_"
"""The prefix of the environment variables that a started worker inherits."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A worker, as a program next to it sees it.

    address: for the program. peer_address: for other workers, host:port. is_own: True if the run started
    it, so that it requires the run's token. tls: True if its peers use TLS.
    """

    address: str
    worker_id: str
    peer_address: str
    topology_name: str
    assignment_version: int
    is_own: bool = False
    tls: bool = False

    def watch_command(self, token_file: str | None) -> str:
        """Return the command to watch the cluster on the program's machine, with the token file, if any."""
        prefix = f"TUPLEWIRE_TOKEN_FILE={shlex.quote(token_file)} " if token_file else ""
        return f"{prefix}tuplewire top --web --address {self.address}"


@dataclass(frozen=True, slots=True)
class Member:
    """The message of a PySpark task to the others at its start. worker_ref: its worker, or None.

    submitter_version: the assignment version at the submitter's worker; only from the first PySpark task.
    """

    attempt_id: int
    worker_ref: WorkerRef | None
    submitter_version: int = 0


class Plan:
    """The tasks of each PySpark task, their ids at the workers, and their worker.

    generation: the smallest attempt id. Attempt ids are unique, so it grows each time that Spark runs the
    stage; attempt *numbers* repeat. The ids at the workers are the topology's plus an offset, which depends
    on run and generation. So messages in flight to an earlier generation reach no task. worker_refs: the
    worker of each PySpark task. Raises ConfigError if the workers cannot work together.
    """

    def __init__(
        self, topology: Topology, run_id: str, members: Sequence[Member], submitter: WorkerRef | None = None
    ) -> None:
        self.generation = min(each.attempt_id for each in members)
        self.tasks_by_rank = schedule_evenly(topology, len(members))
        self._n_tasks = len(topology.tasks)
        block_size = 1 + self._n_tasks + len(members)
        n_blocks = MAX_TASK // block_size  # blocks of ids: each generation uses the next one
        self.task_offset = (int(run_id[:8], 16) + self.generation) % n_blocks * block_size
        self.worker_refs = [each.worker_ref for each in members if each.worker_ref is not None]
        self._submitter = submitter
        workers = self.worker_refs if submitter is None else [*self.worker_refs, submitter]
        self.version = 1 + max(  # newer than at any worker, so that all workers accept it
            *(worker.assignment_version for worker in workers), *(each.submitter_version for each in members)
        )
        topologies = sorted({worker.topology_name for worker in workers})
        if len(topologies) > 1:
            raise ConfigError(
                f"the workers serve different topologies, {', '.join(map(repr, topologies))}: "
                "start them with one --topology; or set TUPLEWIRE_TOPOLOGY to that name for started workers"
            )
        self.topology_name = topologies[0]
        _check_admission(workers)

    def control_task(self, rank: int) -> int:
        """Return the task id of control messages to a PySpark task."""
        return self.task_offset + self._n_tasks + 1 + rank

    def assignment(self) -> control_pb2.Assignment:
        """Return the assignment of tasks to workers. PySpark tasks may share a worker."""
        tasks: dict[Peer, list[int]] = {}
        for rank, (owner, rank_tasks) in enumerate(zip(self.worker_refs, self.tasks_by_rank, strict=True)):
            ids = tasks.setdefault(Peer(owner.worker_id, owner.peer_address), [])
            ids += [*(self.task_offset + task for task in rank_tasks), self.control_task(rank)]
        if (submitter := self._submitter) is not None:
            tasks.setdefault(Peer(submitter.worker_id, submitter.peer_address), []).append(SUBMITTER_TASK)
        return control_pb2.Assignment(
            version=self.version,
            topology=self.topology_name,
            workers=[control_pb2.AssignedWorker(**peer._asdict(), tasks=ids) for peer, ids in tasks.items()],
        )

    def assignment_targets(self, rank: int) -> list[tuple[str, WorkerRef]]:
        """Return the workers that this PySpark task sends the assignment to, and their addresses.

        Its own worker is first. Rank 0 adds the submitter's worker if no PySpark task uses it.
        """
        targets = [(self.worker_refs[rank].address, self.worker_refs[rank])]
        ids = {worker_ref.worker_id for worker_ref in self.worker_refs}
        if rank == 0 and self._submitter is not None and self._submitter.worker_id not in ids:
            targets.append((self._submitter.peer_address, self._submitter))
        return targets


def _check_admission(workers: Sequence[WorkerRef]) -> None:
    """Raise ConfigError if a worker started for this run would refuse the other workers."""
    others = [worker for worker in workers if not worker.is_own]
    token_workers = [worker for worker in workers if worker.is_own and not worker.tls]
    if token_workers and others:
        raise ConfigError(
            f"{token_workers[0].worker_id!r} was started for this run and accepts only its token, which "
            f"{others[0].worker_id!r} does not have: set TUPLEWIRE_ADDRESS for the driver and for all "
            "executors, or for none of them, or name workers"
        )


@dataclass(frozen=True, slots=True)
class RunToken:
    """The token that a run's own workers require from its members. It travels in Spark's closure.

    Guarantee: it is in no repr, argument, environment, log or error; only in files of mode 0600.
    """

    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @contextmanager
    def as_file(self) -> Iterator[Path]:
        """Yield a file of this process with the token, and delete the file after the block."""
        with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
            file = Path(directory, "token")
            file.touch(0o600, exist_ok=False)
            file.write_text(f"run {self.secret}\n", encoding="ascii")
            yield file


def credentials(token_file: Path, *, is_own: bool) -> Credentials:
    """Return a worker's credentials: the environment's, with the run's token if the run started it."""
    found = Credentials.from_environment()
    # Plaintext is acceptable: the token is valid only during the run, and only at its own workers.
    return replace(found, token_file=str(token_file), allow_plaintext=True) if is_own else found


@contextmanager
def ensure_worker(address: str | None, host: str, topology: str, token_file: Path) -> Iterator[WorkerRef]:
    """Yield the worker at `address` or TUPLEWIRE_ADDRESS; with neither, start one and stop it at the end.

    host: this machine's name for other machines. topology: of a started worker, unless TUPLEWIRE_TOPOLOGY is
    set. token_file: the token that a started worker requires. Raises UnreachableError without an answer
    within START_SECONDS, LaunchError if a started one does not bind, and ConfigError if none can be started.
    """
    with ExitStack() as stack:
        address = address or os.environ.get(ADDRESS_VARIABLE)
        own = not address
        if not address:
            worker = _new_worker(host, topology, token_file)
            stack.callback(worker.stop)
            worker.start(START_SECONDS)
            address = worker.endpoints[0].unix_address
        access = credentials(token_file, is_own=own)
        with ControlClient(address, START_SECONDS, credentials=access) as control:
            status = control.status()
        tcp = next((each for each in status.addresses if not each.startswith("unix:")), "")
        listen_host, _, port = tcp.rpartition(":")  # peers cannot connect to a wildcard address
        peer = join_host_port(_host_of(address, host), int(port)) if listen_host in _WILDCARDS else tcp
        tls = access.uses_tls(peer)
        yield WorkerRef(address, status.worker_id, peer, status.topology, status.assignment_version, own, tls)


def _host_of(address: str, own_host: str) -> str:
    """Return the host of a worker that listens on all addresses; `own_host` if its address is local."""
    address_host = "" if address.startswith("unix:") else split_host_port(address)[0]
    return own_host if not address_host or is_loopback(address_host) else address_host


def _new_worker(host: str, topology: str, token_file: Path) -> WorkerProcesses:
    """Return a worker that is not started yet."""
    if find_spec("tuplewire_service") is None:
        raise ConfigError(
            f"there is no worker next to this process ({ADDRESS_VARIABLE} is not set), and none can be "
            "started: install tuplewire[service] for Spark's executors, or name workers"
        )
    return WorkerProcesses(
        1,
        os.environ.get(TOPOLOGY_VARIABLE) or topology,
        # Without TLS, the token crosses the network in plaintext, like Spark's own data by default.
        flags=[
            f"--worker-id={host}-{os.getpid()}",
            f"--listen={host}:0",
            f"--token-file={token_file}",
            "--allow-plaintext",
        ],
        drain_seconds=_DRAIN_SECONDS,
        environment={name: value for name, value in os.environ.items() if name.startswith(_TLS)},
    )
