"""The assignment: which worker holds each task. Source: Storm's `Assignment` (executor -> node + port)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.message import check_task


@dataclass(frozen=True, slots=True)
class AssignedWorker:
    """A worker, where others reach it (host:port), its tasks and its node."""

    worker_id: str
    address: str
    tasks: tuple[int, ...]
    node: str = ""

    @property
    def host_port(self) -> tuple[str, int]:
        """The address in two parts; an IPv6 host loses its brackets."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)


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
        owners: dict[int, AssignedWorker] = {}
        seen: set[str] = set()
        for worker in self.workers:
            if not worker.worker_id or worker.worker_id in seen:
                raise ConfigError(f"worker id {worker.worker_id!r} is empty or twice in the assignment")
            seen.add(worker.worker_id)
            host, _, port = worker.address.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"worker {worker.worker_id}: address {worker.address!r} is not host:port")
            for task in worker.tasks:
                if check_task(task) in owners:
                    raise ConfigError(
                        f"task {task} is assigned to {owners[task].worker_id} and to {worker.worker_id}"
                    )
                owners[task] = worker
        object.__setattr__(self, "owner_of", owners)

    def tasks_of(self, worker_id: str) -> tuple[int, ...]:
        """Return the tasks of a worker; none when the assignment does not know it."""
        return next((w.tasks for w in self.workers if w.worker_id == worker_id), ())

    def to_json(self) -> dict[str, Any]:
        """Return the form that load_assignment reads."""
        return {
            "version": self.version,
            "topology": self.topology,
            "workers": [
                {"worker_id": w.worker_id, "address": w.address, "tasks": list(w.tasks), "node": w.node}
                for w in self.workers
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> Assignment:
        """Read the form of to_json; ConfigError says what is wrong with it."""
        try:
            return cls(
                version=int(value["version"]),
                topology=str(value["topology"]),
                workers=tuple(
                    AssignedWorker(
                        str(worker["worker_id"]),
                        str(worker["address"]),
                        tuple(int(task) for task in worker["tasks"]),
                        str(worker.get("node", "")),
                    )
                    for worker in value["workers"]
                ),
            )
        except TuplewireError:
            raise
        except KeyError as error:
            raise ConfigError(f"an assignment needs the key {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"an assignment is an object of version, topology and workers: {error}"
            ) from error


def load_assignment(path: Path) -> Assignment:
    """Read an assignment from a JSON file; ConfigError names the file and what is wrong."""
    try:
        return Assignment.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the assignment {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"assignment {path}: {error}") from error
