"""The assignment: the worker that owns each task. Source: Storm's `Assignment` (executor -> node + port).

Used by worker/, control/, process/ and command/. Owns the JSON form and the watch of an assignment file.
Assignments are immutable. Thread-safe, except AssignmentFile. Design: docs/design/moves.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuplewire.errors import (
    ConfigError,
    InvalidTaskError,
    StaleAssignmentError,
    TuplewireError,
    WrongTopologyError,
)
from tuplewire.settings.addresses import Peer, check_address_syntax
from tuplewire.text.events import event_logger
from tuplewire.values.group import check_task

logger = event_logger(__name__)

MAX_VERSION = 2**63 - 1
MAX_STEP = 2**32
"""Maximum step of a version, and of a sink's epoch. A counter never advances this far; a mistake may."""
_POLL_SECONDS = 1.0
_MAX_NAME_LENGTH = 200
_MAX_QUOTED_LENGTH = 80


@dataclass(frozen=True, slots=True)
class AssignedWorker:
    """A worker at an address (host:port). `peer_address` is the one for other workers, if it differs."""

    worker_id: str
    address: str
    tasks: tuple[int, ...]
    node: str = ""
    peer_address: str = ""

    @property
    def peer(self) -> Peer:
        """The id and the address for other workers; together they identify a connection."""
        return Peer(self.worker_id, self.peer_address or self.address)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A versioned map from tasks to workers, validated at construction (ConfigError)."""

    version: int
    """At least 1; grows with every change."""
    topology: str
    workers: tuple[AssignedWorker, ...]
    active: bool = True
    """False if the spouts of the workers' program emit nothing."""
    owner_by_task: Mapping[int, AssignedWorker] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ConfigError(f"an assignment's version is 1 or more, not {_quote(self.version)}")
        if self.version > MAX_VERSION:
            raise ConfigError(f"an assignment's version is at most {MAX_VERSION}, not {_quote(self.version)}")
        if not self.topology:
            raise ConfigError("an assignment needs the name of its topology")
        _check_text("a topology", self.topology)
        owners: dict[int, AssignedWorker] = {}
        seen: set[str] = set()
        id_by_address: dict[str, str] = {}
        for worker in self.workers:
            if not worker.worker_id or worker.worker_id in seen:
                raise ConfigError(f"worker id {_quote(worker.worker_id)} is empty or twice in the assignment")
            seen.add(worker.worker_id)
            _check_text("a worker id", worker.worker_id)
            _check_text("a node", worker.node)
            for address in (worker.address, worker.peer.address):
                _check_text("an address", address)
                try:
                    check_address_syntax(address)
                except ConfigError as error:
                    raise ConfigError(f"worker {worker.worker_id}: address {error}") from None
                if (other := id_by_address.setdefault(address, worker.worker_id)) != worker.worker_id:
                    raise ConfigError(
                        f"address {address} is both {other}'s and {worker.worker_id}'s; a worker has its own"
                    )
            for task in worker.tasks:
                try:
                    check_task(task)
                except InvalidTaskError as error:
                    raise ConfigError(f"worker {worker.worker_id}: {error}") from error
                if task in owners:
                    other = owners[task].worker_id
                    raise ConfigError(f"task {task} is assigned to {other} and {worker.worker_id}")
                owners[task] = worker
        object.__setattr__(self, "owner_by_task", owners)

    def tasks_of(self, worker_id: str) -> tuple[int, ...]:
        """Return the tasks of a worker; empty if the assignment does not name it."""
        return next((w.tasks for w in self.workers if w.worker_id == worker_id), ())

    def replaces(self, known: Assignment | None, topology: str, *, force: bool = False) -> bool:
        """Return True if this assignment replaces `known`, or False if they are equal.

        `force` skips the check that later versions remain possible. Raises StaleAssignmentError for an older
        version, WrongTopologyError for another topology, and ConfigError for a version too far ahead.
        """
        if self.topology != topology:
            raise WrongTopologyError(
                f"the assignment is for topology {self.topology!r}, this worker serves {topology!r}"
            )
        if known is None or self.version > known.version:
            max_version = MAX_VERSION - MAX_STEP if known is None else known.version + MAX_STEP
            # Such a version is probably a mistake, and would block all later versions.
            if self.version > max_version and not force:
                raise ConfigError(
                    f"assignment version {self.version} is too far ahead (current: "
                    f"{'none' if known is None else known.version}; at most {max_version}): all lower ones "
                    "would be refused from then on; correct it, or force it (tuplewire assign --force)"
                )
            return True
        # The same version with other content is an error: two drivers or files contradict each other.
        if self == known:
            return False
        raise StaleAssignmentError(
            f"assignment version {self.version} is not newer than the current one, {known.version}; raise it"
        )

    @classmethod
    def from_json(cls, value: Any) -> Assignment:
        """Read the JSON form of an assignment file. Raises ConfigError with the problem."""
        fields = _object(value, "an assignment", ("version", "topology", "workers"), ("active",))
        workers = _typed(fields["workers"], list, "workers")
        return cls(
            _typed(fields["version"], int, "version"),
            _typed(fields["topology"], str, "topology"),
            tuple(map(_parse_worker, workers)),
            _typed(fields.get("active", True), bool, "active"),
        )


def _parse_worker(value: Any) -> AssignedWorker:
    fields = _object(value, "a worker", ("worker_id", "address", "tasks"), ("node", "peer_address"))
    tasks = tuple(_typed(task, int, "a task id") for task in _typed(fields["tasks"], list, "tasks"))
    strings = {key: _typed(value, str, key) for key, value in fields.items() if key != "tasks"}
    return AssignedWorker(tasks=tasks, **strings)


def _object(value: Any, name: str, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    fields: dict[str, Any] = _typed(value, dict, name)
    for key in needed:
        if key not in fields:
            raise ConfigError(f"{name} needs the key {key!r}")
    for key in fields:
        if key not in needed and key not in optional:
            raise ConfigError(
                f"{name} has the unknown key {_quote(key)}; known are: {', '.join((*needed, *optional))}"
            )
    return fields


def _check_text(name: str, text: str) -> None:
    """Raise ConfigError for a name that cannot be sent, displayed or looked up."""
    if len(text) > _MAX_NAME_LENGTH or not text.isprintable():
        raise ConfigError(
            f"{name} has at most {_MAX_NAME_LENGTH} characters, all of them printable, not {_quote(text)}"
        )


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_LENGTH else f"{text[:_MAX_QUOTED_LENGTH]}..."


_NAMES = {list: "a list", dict: "an object", str: "a string", int: "a whole number", bool: "true or false"}


def _typed(value: Any, expected_type: type[Any], name: str) -> Any:
    # isinstance() would accept true as a version or a task.
    if type(value) is not expected_type:
        raise ConfigError(f"{name} must be {_NAMES[expected_type]}, not {_quote(value)}")
    return value


def load_assignment(path: Path) -> Assignment:
    """Read an assignment from a JSON file. Raises ConfigError with the file and the problem."""
    try:
        return parse_assignment(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"cannot read the assignment {path}: {error.strerror}") from error


def parse_assignment(content: bytes, path: Path) -> Assignment:
    """Read an assignment from the content of a file. Raises ConfigError for any invalid bytes."""
    try:
        # Some editors write a byte order mark, which is not JSON.
        return Assignment.from_json(json.loads(content.decode("utf-8-sig")))
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as the JSON of an assignment: {error}") from error


@dataclass(eq=False)
class AssignmentFile:
    """Polls a file, such as a mounted ConfigMap, and applies its assignment after each change.

    The content is compared: a ConfigMap swaps a symlink in the path, and quick writes may have equal times.
    """

    path: Path
    update: Callable[[Assignment], bool]
    """Called with the assignment. Its errors, such as a stale version, count as the file's."""
    problem: str = ""
    """The reason that the previous assignment remains in use instead of the file's, or empty."""
    _last_content: bytes | str | None = None

    async def check(self) -> bool:
        """Check the file now. Return True if a new assignment was applied."""
        try:
            assignment = await asyncio.to_thread(self._read)  # a large file would block the event loop
            if assignment is None:
                return False
            changed = self.update(assignment)
        except TuplewireError as error:
            self.problem = f"the assignment file is refused: {error}"
            logger.warning("assignment_file.refused", extra={"path": str(self.path), "reason": str(error)})
            return False
        self.problem = ""
        if changed:
            extra = {"path": str(self.path), "version": assignment.version}
            logger.info("assignment_file.applied", extra=extra)
        return changed

    def _read(self) -> Assignment | None:
        """Return the assignment of the file, or None if it is unchanged. Raises ConfigError."""
        content: bytes | str
        try:
            content = self.path.read_bytes()
        except OSError as error:
            content = f"cannot read the assignment {self.path}: {error.strerror}"
        # Read errors are compared as well, so that each is reported once.
        if content == self._last_content:
            return None
        self._last_content = content
        if isinstance(content, str):
            raise ConfigError(content)
        return parse_assignment(content, self.path)

    async def watch(self) -> None:
        """Check the file every second until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_POLL_SECONDS)
