"""The workers that hold some tasks, and what they hold of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    NotReadyError,
    UnknownTaskError,
    UnreachableError,
    WrongTopologyError,
    WrongWorkerError,
)
from tuplewire.spark.entry_runs import Runs
from tuplewire.spark.offsets import Former, Held, Standing
from tuplewire.wire.control_pb2 import Assignment

At = tuple[str, str]
"""A worker's address and id."""
_POLL_SECONDS = 0.05
_MOST_OTHERS = 100
"""So many workers' addresses are tried where the first is out of reach."""


class TaskWorkers(ExitStack):
    """Finds the workers that have some tasks; keeps a channel to each of them until it is closed.

    address: of any worker of the topology, which tells the others'; or several, with commas.
    timeout: seconds for which a worker that does not answer, or that has no assignment or no room yet, is
    asked again.
    """

    CALL_SECONDS: ClassVar[float]
    """The longest that one call takes."""

    def __init__(self, address: str, topology: str, timeout: float) -> None:
        super().__init__()
        self._address, *more = address.split(",")
        self.reached = self._address
        """The address of the worker that has answered last."""
        self._topology = topology
        self._timeout = timeout
        self._version = 0
        self.max_message_bytes = 0
        """The largest payload that the worker takes that was asked for the assignment."""
        self._others = tuple(more)
        """The addresses of other workers: those that assignments have had, the last ones first."""
        self._all: dict[int, At] = {}
        self._present: dict[str, str] = {}
        """The workers of the last assignment: address to id."""
        self._controls: dict[str, ControlClient] = {}

    def _control(self, address: str) -> ControlClient:
        if address not in self._controls:
            control = ControlClient(address, min(self._timeout, self.CALL_SECONDS))
            self._controls[address] = self.enter_context(control)
            self.callback(self._controls.clear)
        return self._controls[address]

    def _assigned(self, tasks: Iterable[int]) -> dict[int, At]:
        """Return the workers of those of these tasks that are assigned, by the addresses that workers use."""
        assignment = self._assignment()
        if assignment is None:
            raise NotReadyError(
                f"the worker at {self._address} has no assignment yet: push one (tuplewire assign), or "
                "configure an assignment file"
            )
        check_topology(self._address, assignment.topology, self._topology)
        self._version = assignment.version
        workers = assignment.workers
        self._present = {each.address: each.worker_id for each in workers}
        self._others = tuple(dict.fromkeys((*(each.address for each in workers), *self._others)))[
            :_MOST_OTHERS
        ]
        self._all = {task: (each.address, each.worker_id) for each in workers for task in each.tasks}
        return {task: self._all[task] for task in tasks if task in self._all}

    def _assignment(self) -> Assignment | None:
        """Ask the worker of the option `address`, and the others that are known where it does not answer."""
        try:
            return self._assignment_of(self._address)
        except UnreachableError:
            for address in self._others:
                with suppress(UnreachableError):
                    return self._assignment_of(address)
            raise

    def _assignment_of(self, address: str) -> Assignment | None:
        control = self._control(address)
        assignment = control.assignment()
        self.max_message_bytes = control.max_message_bytes
        self.reached = address
        return assignment

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

    def __init__(
        self, address: str, topology: str, tasks: Iterable[int], timeout: float, others: Sequence[str] = ()
    ) -> None:
        """Ask nobody yet. others: the addresses of more workers, if the first is out of reach."""
        super().__init__(address, topology, timeout)
        self._others += tuple(others)
        self._tasks = tuple(tasks)
        self._at: dict[int, At] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the workers that are known."""
        return self._others

    def look(self) -> dict[int, Held]:
        """Return what is held of each task now.

        Raises UnreachableError, NotReadyError or WrongWorkerError once the timeout has passed,
        WrongTopologyError, or UnknownTaskError for a task that the assignment does not have.
        """
        found = self.look_at(self._tasks)
        if unknown := [task for task in self._tasks if task not in found]:
            raise self._unknown(unknown)
        return found

    def glance(self) -> dict[int, Held]:
        """Do as look_at() with the tasks, by the newest assignment, and once."""
        self._at = {}
        return self._look(self._tasks)

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
        tasks_at: dict[At, list[int]] = {}
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
                    each.begin_sequence,
                )
        return {task: found[task] for task in wanted if task in found}

    def runs(self, last: Mapping[int, int], held: Mapping[int, Held]) -> dict[int, Runs]:
        """Return how messages are numbered, of those tasks that have not moved since `held` was looked at.

        last: for each task the sequence up to which; 0: all. Raises UnreachableError.
        """
        tasks_at: dict[tuple[str, int], list[int]] = {}
        for task in last:
            tasks_at.setdefault((held[task].address, held[task].worker), []).append(task)
        found: dict[int, Runs] = {}
        for (address, worker), tasks in tasks_at.items():
            answer = self._control(address).entries({task: last[task] for task in tasks})
            if answer.incarnation != worker:
                continue
            for each in answer.tasks:
                if each.begin == held[each.task].begin:
                    numbered = zip(each.messages, each.workers, each.entry_sequences, strict=True)
                    found[each.task] = Runs(each.first, each.begin, tuple(numbered))
        return found

    def standing(self, task: int, worker: int, address: str) -> Standing:
        """Return what is known of a worker (its incarnation) that had a task, at an address.

        Waits while it hands messages over, or is out of reach, for the timeout at most.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            former = self._standing(task, worker, address)
            if former.former is not Former.HANDS_OVER:
                return former
            if time.monotonic() > deadline:
                return Standing(Former.GONE)
            time.sleep(_POLL_SECONDS)

    def _standing(self, task: int, worker: int, address: str) -> Standing:
        replaced = silent = False
        for where in dict.fromkeys((address, *self._others, self._address)):
            if not where:
                continue
            try:
                answer = self._control(where).entries({task: 1}, [worker])
            except UnreachableError:
                silent = silent or where in self._present
                continue
            if answer.incarnation == worker:
                return Standing(Former.HANDS_OVER if task in answer.leaving else Former.DONE)
            for each in answer.departed:
                return Standing(Former.DONE, each.dropped)
            replaced = replaced or where == address
        return Standing(Former.GONE if replaced and not silent else Former.HANDS_OVER)
