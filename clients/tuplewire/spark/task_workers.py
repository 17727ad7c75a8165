"""The workers that hold some tasks: asked what they hold, and published at."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar

from tuplewire.config import KIB, SessionSettings
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    DrainingError,
    NotLocalError,
    NotReadyError,
    ResourceLimitError,
    SequenceGapError,
    UnknownTaskError,
    UnreachableError,
    WrongTopologyError,
    WrongWorkerError,
)
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import frame_pieces, wire_bytes
from tuplewire.session.retry import Backoff
from tuplewire.spark.offsets import Held
from tuplewire.wire.control_pb2 import Assignment

_At = tuple[str, str]
"""A worker's address and id."""
_POLL_SECONDS = 0.05
_PIECE_BYTES = 512 * KIB


class TaskWorkers(ExitStack):
    """Finds the workers that have some tasks; keeps a channel to each of them until it is closed.

    address: of any worker of the topology, which tells the others'. timeout: seconds for which a worker that
    does not answer, or that has no assignment or no room yet, is asked again.
    """

    CALL_SECONDS: ClassVar[float]
    """The longest that one call takes."""

    def __init__(self, address: str, topology: str, timeout: float) -> None:
        super().__init__()
        self._address = address
        self._topology = topology
        self._timeout = timeout
        self._version = 0
        self._others: tuple[str, ...] = ()
        """The addresses of the workers that the last assignment has."""
        self._all: dict[int, _At] = {}
        self._controls: dict[str, ControlClient] = {}

    def _control(self, address: str) -> ControlClient:
        if address not in self._controls:
            control = ControlClient(address, min(self._timeout, self.CALL_SECONDS))
            self._controls[address] = self.enter_context(control)
            self.callback(self._controls.clear)
        return self._controls[address]

    def _locate(self, tasks: Iterable[int]) -> dict[int, _At]:
        """Ask for the assignment, and return the tasks' workers, by the addresses that workers use."""
        found = self._assigned(wanted := dict.fromkeys(tasks))
        if unknown := [task for task in wanted if task not in found]:
            raise self._unknown(unknown)
        return found

    def _assigned(self, tasks: Iterable[int]) -> dict[int, _At]:
        """Return the workers of those of these tasks that the assignment has."""
        assignment = self._assignment()
        if assignment is None:
            raise NotReadyError(
                f"the worker at {self._address} has no assignment yet: push one (tuplewire assign), or "
                "configure an assignment file"
            )
        check_topology(self._address, assignment.topology, self._topology)
        self._version = assignment.version
        workers = assignment.workers
        self._others = tuple(each.address for each in workers)
        self._all = {task: (each.address, each.worker_id) for each in workers for task in each.tasks}
        return {task: self._all[task] for task in tasks if task in self._all}

    def _assignment(self) -> Assignment | None:
        """Ask the worker of the option `address`, and the others that are known where it does not answer."""
        try:
            return self._control(self._address).assignment()
        except UnreachableError:
            for address in self._others:
                with suppress(UnreachableError):
                    return self._control(address).assignment()
            raise

    def _unknown(self, tasks: Sequence[int]) -> UnknownTaskError:
        known = ", ".join(map(str, sorted(self._all)[:20])) or "none"
        return UnknownTaskError(
            f"task {', '.join(map(str, tasks[:10]))} is not in assignment version {self._version}, which "
            f"has {known}: use these in the option tasks or the column task, or assign this one"
        )


def check_topology(address: str, found: str, wanted: str) -> None:
    """Raise WrongTopologyError where a worker serves another topology than is wanted."""
    if found != wanted:
        raise WrongTopologyError(
            f"the worker at {address} serves topology {found!r}, not {wanted!r}: set the option topology"
        )


class HeldTasks(TaskWorkers):
    """Asks the workers what they hold of the tasks that a query reads."""

    CALL_SECONDS = 5.0

    def __init__(self, address: str, topology: str, tasks: Iterable[int], timeout: float) -> None:
        super().__init__(address, topology, timeout)
        self._tasks = tuple(tasks)
        self._at: dict[int, _At] = {}

    def look(self) -> dict[int, Held]:
        """Return what is held of each task now.

        Raises UnreachableError, NotReadyError or WrongWorkerError once the timeout has passed,
        WrongTopologyError, or UnknownTaskError for a task that the assignment does not have.
        """
        found = self.look_at(self._tasks)
        if unknown := [task for task in self._tasks if task not in found]:
            raise self._unknown(unknown)
        return found

    def look_at(self, tasks: Collection[int]) -> dict[int, Held]:
        """Return what is held now of those of some tasks that the assignment has. Raises what look() does."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._look(tasks)
            except (UnreachableError, NotReadyError, WrongWorkerError):
                self._at = {}
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _look(self, wanted: Collection[int]) -> dict[int, Held]:
        if not self._at.keys() >= set(wanted):
            self._at |= self._assigned(wanted)
        tasks_at: dict[_At, list[int]] = {}
        for task in wanted:
            if task in self._at:
                tasks_at.setdefault(self._at[task], []).append(task)
        found: dict[int, Held] = {}
        for (address, worker_id), tasks in tasks_at.items():
            status = self._control(address).status()
            if status.worker_id != worker_id:
                raise WrongWorkerError(f"{address} is worker {status.worker_id!r}, not {worker_id!r}")
            here = {each.task: each for each in status.tasks}
            if status.assignment_version > self._version or not here.keys() >= set(tasks):
                raise NotReadyError(f"the worker at {address} lacks some of the tasks {tasks}: they move")
            for task in tasks:
                each = here[task]
                found[task] = Held(
                    address,
                    worker_id,
                    status.incarnation,
                    each.acknowledged_sequence,
                    each.acknowledged_sequence + each.queued_messages,
                    each.queued_bytes,
                    each.congested,
                )
        return {task: found[task] for task in wanted if task in found}


class Publisher(TaskWorkers):
    """Publishes an epoch of a sink: its messages are seen all at once and once, however often it is tried."""

    CALL_SECONDS = 10.0

    def publish(self, sink: str, epoch: int, groups: Iterable[TaskGroup]) -> int:
        """Publish an epoch; return how many messages were not published before.

        Guarantee: at each worker all of its messages are seen at once; each task gets those of an epoch once,
        while its worker lives and the task does not move, whoever publishes the epoch again.

        Raises UnknownTaskError before anything is published; UnreachableError, WrongWorkerError,
        DrainingError or ResourceLimitError once the timeout has passed. Then some workers may have it.
        """
        left = list(groups)
        deadline = time.monotonic() + self._timeout
        published = 0
        while left:
            try:
                with self:
                    worker_of = self._locate(group.task for group in left)
                    for worker in dict.fromkeys(worker_of.values()):
                        part = [group for group in left if worker_of[group.task] == worker]
                        published += self._publish_at(worker, sink, epoch, part)
                        left = [group for group in left if worker_of[group.task] != worker]
            except (NotLocalError, NotReadyError, DrainingError, UnreachableError, WrongWorkerError):
                if time.monotonic() > deadline:  # else its tasks may be at another worker soon
                    raise
                time.sleep(random.random() * 0.2)  # noqa: S311 - no secret
        return published

    def _publish_at(self, worker: _At, sink: str, epoch: int, groups: Sequence[TaskGroup]) -> int:
        pieces = _pieces(groups)
        settings = SessionSettings()
        backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds, random.random)
        deadline = time.monotonic() + self._timeout
        number = published = 0
        address, worker_id = worker
        control = self._control(address)
        while number < len(pieces):
            last = number == len(pieces) - 1
            try:
                what = self._topology, sink, epoch, number, pieces[number]
                published = control.publish(*what, last=last, worker_id=worker_id)
                number += 1
            except SequenceGapError:
                number = 0  # the worker is another one by now, and has no piece
            except ResourceLimitError:
                if not last or time.monotonic() > deadline:
                    raise
                time.sleep(backoff.next())
        return published


def _pieces(groups: Iterable[TaskGroup]) -> list[list[TaskGroup]]:
    """Return the messages in pieces of about a frame, in order."""
    pieces: list[list[TaskGroup]] = [[]]
    room = _PIECE_BYTES
    for group in groups:
        for part in frame_pieces(group, _PIECE_BYTES):
            if wire_bytes(part) > room and pieces[-1]:
                pieces.append([])
                room = _PIECE_BYTES
            pieces[-1].append(part)
            room -= wire_bytes(part)
    return pieces
