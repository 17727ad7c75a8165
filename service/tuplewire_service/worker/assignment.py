"""The assignment: which worker holds each task. Source: Storm's `Assignment` (executor -> node + port)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuplewire.addresses import check_reachable, split_host_port
from tuplewire.errors import ConfigError, InvalidTaskError, StaleAssignmentError
from tuplewire.group import check_task


@dataclass(frozen=True, slots=True)
class AssignedWorker:
    """A worker, where it is reached (host:port), its tasks and its node.

    peer_address: where other workers reach it, if not at its address.
    """

    worker_id: str
    address: str
    tasks: tuple[int, ...]
    node: str = ""
    peer_address: str = ""

    @property
    def peer(self) -> tuple[str, str]:
        """The id and the address for other workers, which together name one connection."""
        return self.worker_id, self.peer_address or self.address

    @property
    def host_port(self) -> tuple[str, int]:
        """The address for other workers in two parts; an IPv6 host loses its brackets."""
        return split_host_port(self.peer[1])


@dataclass(frozen=True, slots=True)
class Assignment:
    """A versioned map task -> worker; valid by construction, ConfigError says what is not.

    version: 1 or more, grows with every change.
    """

    version: int
    topology: str
    workers: tuple[AssignedWorker, ...]
    owner_of: Mapping[int, AssignedWorker] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ConfigError(f"an assignment's version is 1 or more, not {self.version}")
        if not self.topology:
            raise ConfigError("an assignment needs the name of its topology")
        owners: dict[int, AssignedWorker] = {}
        seen: set[str] = set()
        for worker in self.workers:
            if not worker.worker_id or worker.worker_id in seen:
                raise ConfigError(f"worker id {worker.worker_id!r} is empty or twice in the assignment")
            seen.add(worker.worker_id)
            for address in (worker.address, worker.peer[1]):
                try:
                    check_reachable(address)
                except ConfigError as error:
                    raise ConfigError(f"worker {worker.worker_id}: address {error}") from None
            for task in worker.tasks:
                if _checked(task, worker.worker_id) in owners:
                    raise ConfigError(
                        f"task {task} is assigned to {owners[task].worker_id} and to {worker.worker_id}"
                    )
                owners[task] = worker
        object.__setattr__(self, "owner_of", owners)

    def tasks_of(self, worker_id: str) -> tuple[int, ...]:
        """Return the tasks of a worker; none when the assignment does not know it."""
        return next((w.tasks for w in self.workers if w.worker_id == worker_id), ())

    def succeeds(self, known: Assignment | None, topology: str) -> bool:
        """Whether it is to be put in force where another, or none, is; False when it is the same.

        Raises StaleAssignmentError for an older version, ConfigError when it is not this topology's.
        """
        if self.topology != topology:
            raise ConfigError(
                f"the assignment is for topology {self.topology!r}, this worker serves {topology!r}"
            )
        if known is None or self.version > known.version:
            return True
        if self == known:
            return False
        raise StaleAssignmentError(
            f"assignment version {self.version} is not newer than {known.version}, which is in force"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that load_assignment reads."""
        return {
            "version": self.version,
            "topology": self.topology,
            "workers": [_as_json(worker) for worker in self.workers],
        }

    @classmethod
    def from_json(cls, value: Any) -> Assignment:
        """Read the form of to_json; ConfigError says what is wrong with it."""
        fields = _object(value, "an assignment", ("version", "topology", "workers"))
        workers = _typed(fields["workers"], list, "workers")
        return cls(
            _typed(fields["version"], int, "version"),
            _typed(fields["topology"], str, "topology"),
            tuple(_worker(worker) for worker in workers),
        )


def _as_json(worker: AssignedWorker) -> dict[str, Any]:
    value = {
        "worker_id": worker.worker_id,
        "address": worker.address,
        "tasks": list(worker.tasks),
        "node": worker.node,
    }
    return {**value, "peer_address": worker.peer_address} if worker.peer_address else value


def _worker(value: Any) -> AssignedWorker:
    fields = _object(value, "a worker", ("worker_id", "address", "tasks"), ("node", "peer_address"))
    tasks = _typed(fields["tasks"], list, "tasks")
    return AssignedWorker(
        _typed(fields["worker_id"], str, "worker_id"),
        _typed(fields["address"], str, "address"),
        tuple(_typed(task, int, "a task id") for task in tasks),
        _typed(fields.get("node", ""), str, "node"),
        _typed(fields.get("peer_address", ""), str, "peer_address"),
    )


def _object(value: Any, what: str, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    fields: dict[str, Any] = _typed(value, dict, what)
    for key in needed:
        if key not in fields:
            raise ConfigError(f"{what} needs the key {key!r}")
    for key in fields:
        if key not in needed and key not in optional:
            raise ConfigError(
                f"{what} has the unknown key {key!r}; known are: {', '.join((*needed, *optional))}"
            )
    return fields


_JSON_NAMES = {list: "a list", dict: "an object", str: "a string", int: "a whole number"}


def _typed(value: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{what} must be {_JSON_NAMES[kind]}, not {value!r}")
    return value


def _checked(task: int, worker_id: str) -> int:
    try:
        return check_task(task)
    except InvalidTaskError as error:
        raise ConfigError(f"worker {worker_id}: {error}") from error


def load_assignment(path: Path) -> Assignment:
    """Read an assignment from a JSON file; ConfigError names the file and what is wrong."""
    try:
        return Assignment.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the assignment {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"assignment {path}: {error}") from error
