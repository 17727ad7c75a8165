"""The registered workers and the assignment of tasks to them, as pure state: no I/O, no clock.

Used by Membership, which passes the answers of a poll (`apply_poll`), calls `decide`, sends the assignment
to the workers in `outdated_workers`, and reports each outcome (`apply_outcome`). Owns the members, the
current assignment and its version. Not thread-safe. Design: docs/design/moves.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tuplewire.errors import TuplewireError, UnreachableError
from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.membership.spread import fill, rebalance
from tuplewire.wire import control_pb2

_LEAVING_STATES = {control_pb2.WORKER_STATE_DRAINING, control_pb2.WORKER_STATE_STOPPED}

WorkerReport: TypeAlias = tuple[control_pb2.GetStatusResponse, control_pb2.Assignment | None]
"""A worker's status, and its assignment if may_be_foreign() of the registry is true."""


@dataclass(slots=True)
class _Member:
    address: str
    name: str
    status: control_pb2.GetStatusResponse
    unresponsive_since: float
    """The time of the first call without an answer, if there is a problem."""
    is_listed: bool = True
    problem: str = ""
    """The reason why it does not answer; empty if it does."""
    refusal: str = ""
    """The reason why it refused the assignment; empty if it did not."""
    accepted_version: int = 0
    """The last version of this program that the worker's current incarnation accepted."""

    @property
    def is_leaving(self) -> bool:
        return not self.is_listed or self.status.state in _LEAVING_STATES

    @property
    def phase(self) -> Phase:
        if self.is_leaving:
            return Phase.LEAVING
        return Phase.UNRESPONSIVE if self.problem else Phase.JOINED

    @property
    def peer_address(self) -> str:
        """The address for a separate transport between workers: the reported port, on the known host."""
        if not self.status.peer_addresses:
            return ""
        host, port = self.address.rpartition(":")[0], self.status.peer_addresses[0].rpartition(":")[2]
        return f"{host}:{port}"

    def log_fields(self, **more: Any) -> dict[str, Any]:
        return {"worker": self.status.worker_id, "address": self.address, "owner": self.name, **more}


@dataclass(slots=True)
class Registry:
    """Registers workers, distributes the tasks over them, and expires workers that do not answer.

    A worker keeps its tasks while it is listed, not draining, and silent for less than `expire_seconds`. The
    tasks of leaving or lost workers move immediately. To balance, a task moves only after its last move ends.
    """

    topology: str
    tasks: Collection[int]
    min_workers: int = 1
    expire_seconds: float = 10.0
    version: int = 0
    superseded_reason: str = ""
    """The reason why another program is in charge, as text; this registry then makes no decisions."""
    current: control_pb2.Assignment | None = None
    """The assignment that all workers should have."""
    spouts_inactive: bool = False
    """True if the spouts of the workers' program are deactivated."""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The changes since the caller last cleared this list: the name of a log event, and its fields."""
    _members: dict[str, _Member] = field(default_factory=dict)
    _absent: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The owner and the reason of each listed address without a registered worker."""
    _worker_of: dict[int, str] = field(default_factory=dict)
    """The address of the worker of each assigned task."""
    _recently_moved: set[int] = field(default_factory=set)
    """Tasks that have moved since the last time no task was moving; they do not move for balance."""
    _issued: deque[control_pb2.Assignment] = field(default_factory=lambda: deque(maxlen=10))
    """The last assignments of this registry, and assignments of others that only switched the spouts."""
    _foreign_version: int = 0
    """The highest version that another program has issued."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of the registered workers, which must be polled in addition to the listed ones."""
        return list(self._members)

    # --- answers of a poll -----------------------------------------------------------------------

    def may_be_foreign(self, address: str, version: int) -> bool:
        """Return True if another program may have issued this version; apply_poll() needs its content."""
        member = self._members.get(address)
        return version >= max(self.version, 1) and (member is None or version != member.accepted_version)

    def apply_poll(
        self, now: float, listed: Mapping[str, str], answers: Mapping[str, WorkerReport | TuplewireError]
    ) -> None:
        """Apply the answers of a poll. now: in seconds, of any clock.

        listed: the addresses and their owners. answers: one for each, and for each of `addresses`.
        """
        for member in self._members.values():
            if not member.is_leaving and member.address not in listed:
                self.events.append(("worker.leaving", member.log_fields(reason="it is no longer listed")))
            member.is_listed = member.address in listed
        self._absent = {address: each for address, each in self._absent.items() if address in listed}
        foreign: control_pb2.Assignment | None = None
        for address, answer in answers.items():
            if isinstance(answer, TuplewireError):
                self._apply_no_answer(address, listed.get(address), str(answer), now)
                continue
            status, reported = answer
            self._apply_status(address, listed.get(address), status, now)
            if reported is None or reported.topology != self.topology or reported in self._issued:
                continue
            known = self._members.get(address)
            if not self._adopt_spout_switch(reported) and known is not None and known.accepted_version:
                self._mark_superseded(known, reported.version)  # the worker had this program's version before
            if reported.version > self._foreign_version:
                foreign = reported
                self._foreign_version = reported.version
        # A program that has issued no version yet adopts the assignment of the one before it.
        if foreign is not None and not self.version:
            self._adopt(foreign, listed, now)

    def _apply_no_answer(self, address: str, name: str | None, problem: str, now: float) -> None:
        member = self._members.get(address)
        if member is None:
            if name is not None:
                self._record_absent(address, name, problem)
            return
        previous_problem, member.problem = member.problem, problem
        if not previous_problem:
            member.unresponsive_since = now  # not earlier: this program may have been stopped, without polls
        if member.is_leaving:
            self._forget(member, "worker.left")
        elif now - member.unresponsive_since >= self.expire_seconds:
            self._forget(member, "worker.expired")
        elif not previous_problem:
            self.events.append(("worker.unresponsive", member.log_fields(reason=problem)))

    def _forget(self, member: _Member, event: str) -> None:
        del self._members[member.address]
        self._worker_of = {task: at for task, at in self._worker_of.items() if at != member.address}
        self.events.append((event, member.log_fields()))
        if member.is_listed:
            self._absent[member.address] = (member.name, member.problem)

    def _record_absent(self, address: str, name: str, problem: str) -> None:
        if address not in self._absent:
            fields = {"worker": "", "address": address, "owner": name, "reason": problem}
            self.events.append(("worker.not_registered", fields))
        self._absent[address] = (name, problem)

    def _apply_status(
        self, address: str, name: str | None, status: control_pb2.GetStatusResponse, now: float
    ) -> None:
        before = self._members.get(address)
        if before is not None and before.status.incarnation == status.incarnation:
            if status.state in _LEAVING_STATES and not before.is_leaving:
                self.events.append(("worker.leaving", before.log_fields(reason="it drains")))
            before.status, before.problem = status, ""
            return
        # A restarted worker has no assignment, and must be checked again; it keeps its tasks.
        if name is None:
            if before is not None:
                self._forget(before, "worker.left")
            return
        if problem := self._check_registration(address, status):
            if before is not None:
                before.problem = problem
                self._forget(before, "worker.left")
            self._record_absent(address, name, problem)
            return
        self._absent.pop(address, None)
        member = self._members[address] = _Member(address, name, status, now)
        event = "worker.registered" if before is None else "worker.restarted"
        self.events.append((event, member.log_fields(release=status.version)))

    def _check_registration(self, address: str, status: control_pb2.GetStatusResponse) -> str:
        """Return the reason why a worker cannot be registered; empty if it can."""
        # An adopted worker that drains must learn the new owners of its tasks, to forward its messages.
        if status.state in _LEAVING_STATES and address not in self._members:
            return "it is draining"
        if status.topology != self.topology:
            return (
                f"it serves topology {status.topology!r}, not {self.topology!r}: start it with "
                f"--topology {self.topology}"
            )
        for twin in list(self._members.values()):
            if twin.status.worker_id != status.worker_id or twin.address == address:
                continue
            if not twin.problem and not twin.is_leaving:
                return (
                    f"its id {status.worker_id} is that of the worker at {twin.address}: give each worker a "
                    "--worker-id of its own, and name each once"
                )
            self._forget(twin, "worker.left")  # its id is free: it does not answer, or leaves
        return ""

    def _adopt(self, assignment: control_pb2.Assignment, listed: Mapping[str, str], now: float) -> None:
        """Keep the tasks where the previous program put them, also on workers that have not answered yet."""
        self.spouts_inactive = assignment.inactive
        at = {member.status.worker_id: member.address for member in self._members.values()}
        for worker in assignment.workers:
            if worker.worker_id in at or worker.address not in listed or worker.address in self._members:
                continue
            at[worker.worker_id] = worker.address
            status = control_pb2.GetStatusResponse(
                worker_id=worker.worker_id,
                topology=self.topology,
                peer_addresses=filter(None, [worker.peer_address]),
            )
            name, problem = self._absent.pop(worker.address, (listed[worker.address], ""))
            self._members[worker.address] = _Member(
                worker.address, name, status, now, problem=problem or "it has not answered yet"
            )
        self._worker_of = {
            task: at[worker.worker_id]
            for worker in assignment.workers
            if worker.worker_id in at
            for task in worker.tasks
            if task in self.tasks
        }

    def _adopt_spout_switch(self, reported: control_pb2.Assignment) -> bool:
        """Take over an assignment that only activates or deactivates the spouts; False for any other.

        It may be based on an earlier assignment than the current one, or have the same version as a new one.
        decide() then issues a version above both.
        """
        is_known = any(list(known.workers) == list(reported.workers) for known in self._issued)
        if not is_known or reported.inactive == self.spouts_inactive:
            return False
        self.spouts_inactive = reported.inactive
        self._issued.append(reported)
        return True

    def _mark_superseded(self, member: _Member, version: int) -> None:
        if not self.superseded_reason:
            self.superseded_reason = (
                f"another program has given the worker at {member.address} assignment {version}, and is in "
                "charge now: let one program at a time assign the tasks of a topology"
            )
            self.events.append(("membership.superseded", member.log_fields(version=version)))

    # --- decisions -------------------------------------------------------------------------------

    def decide(self) -> control_pb2.Assignment | None:
        """Return a new assignment if the current one no longer fits; None if it does."""
        if self.superseded_reason:
            return None
        members = list(self._members.values())
        candidates = [each.address for each in members if each.phase is Phase.JOINED]
        if not self.version and len(candidates) < max(1, self.min_workers):
            return None
        if candidates:
            staying = {each.address for each in members if not each.is_leaving}
            placed = {task: address for task, address in self._worker_of.items() if address in staying}
            placed = fill(self.tasks, candidates, placed)
            # Move for balance only if all workers have the current assignment, and not in the same step as
            # tasks of leaving workers.
            if self._is_distributed():
                if not self._is_moving():
                    self._recently_moved.clear()
                if placed == self._worker_of:
                    placed = rebalance(self.tasks, candidates, placed, self._recently_moved)
            self._recently_moved |= {
                task for task, address in placed.items() if self._worker_of.get(task, address) != address
            }
            self._worker_of = placed
        workers, known = self._build_workers(), self.current
        fits = known is not None and (list(known.workers), known.inactive) == (workers, self.spouts_inactive)
        # A version of another program that is not lower also needs a new one: workers refuse older versions.
        if fits and self.version > self._foreign_version:
            return None
        self.version = max(self.version, self._foreign_version) + 1
        self.current = control_pb2.Assignment(
            version=self.version, topology=self.topology, workers=workers, inactive=self.spouts_inactive
        )
        self._issued.append(self.current)
        about = {"version": self.version, "workers": len(workers), "tasks": len(self._worker_of)}
        self.events.append(("assignment.issued", about))
        return self.current

    def _build_workers(self) -> list[control_pb2.AssignedWorker]:
        tasks = self._tasks_by_worker()
        return [
            control_pb2.AssignedWorker(
                worker_id=member.status.worker_id,
                address=member.address,
                peer_address=member.peer_address,
                tasks=tasks[member.address],
            )
            for member in self._members.values()
        ]

    def _tasks_by_worker(self) -> dict[str, list[int]]:
        tasks: dict[str, list[int]] = {address: [] for address in self._members}
        for task, address in sorted(self._worker_of.items()):
            tasks[address].append(task)
        return tasks

    def _is_distributed(self) -> bool:
        """Return True if every worker answers and has the current assignment."""
        return bool(self.version) and all(
            not each.problem and each.accepted_version == self.version == each.status.assignment_version
            for each in self._members.values()
        )

    def _is_moving(self) -> bool:
        return any(each.status.moving_task_count for each in self._members.values())

    def outdated_workers(self) -> list[str]:
        """Return the addresses of the workers that have not accepted the current assignment."""
        if self.current is None or self.superseded_reason:
            return []
        return [
            each.address
            for each in self._members.values()
            if not each.problem and each.accepted_version != self.version
        ]

    def apply_outcome(self, address: str, outcome: TuplewireError | None) -> None:
        """Apply the outcome of sending the current assignment to a worker. None: the worker accepted it."""
        member = self._members[address]
        if outcome is None:
            member.accepted_version, member.refusal = self.version, ""
            return
        if isinstance(outcome, UnreachableError):
            return  # the next poll shows whether the worker still answers
        if not member.refusal:
            self.events.append(("assignment.refused", member.log_fields(reason=str(outcome))))
        member.refusal = str(outcome)

    def status(self) -> MembershipStatus:
        """Return an immutable snapshot of the membership."""
        tasks = self._tasks_by_worker()
        workers = [
            MemberStatus(
                each.address,
                each.name,
                each.phase,
                each.status.worker_id,
                each.status.version,
                tuple(tasks[each.address]),
                each.status.moving_task_count,
                each.problem or each.refusal,
            )
            for each in self._members.values()
        ]
        absent = [
            MemberStatus(address, name, Phase.ABSENT, problem=problem)
            for address, (name, problem) in self._absent.items()
        ]
        counts = [len(tasks[each.address]) for each in self._members.values() if each.phase is Phase.JOINED]
        return MembershipStatus(
            topology=self.topology,
            version=self.version,
            workers=(*workers, *absent),
            unassigned=tuple(task for task in self.tasks if task not in self._worker_of),
            stable=self._is_distributed()
            and not self._is_moving()
            and bool(counts)
            and max(counts) - min(counts) <= 1,
        )
