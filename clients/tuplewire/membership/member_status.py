"""The state of a membership, as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tuplewire.text.formatting import counted, html_table


class Phase(enum.StrEnum):
    """The phase of a worker's membership."""

    JOINED = "joined"
    """It answers, and has tasks or may get some."""
    UNRESPONSIVE = "silent"
    """It does not answer. It keeps its tasks until `expire_seconds` have passed."""
    LEAVING = "leaving"
    """It drains, or is no longer listed. Its tasks belong to other workers; it forwards its messages."""
    ABSENT = "absent"
    """It is listed but not registered; `problem` is the reason."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker, or an address where a worker should be.

    Attributes:
        name: Its owner, such as `executor 3`; may be empty.
        release: Its version of Tuplewire.
        moving: The number of tasks that are moving to or from it.
        problem: The reason why it is absent or silent, or has refused the assignment; empty if there is none.
    """

    address: str
    name: str
    phase: Phase
    worker_id: str = ""
    release: str = ""
    tasks: tuple[int, ...] = ()
    moving: int = 0
    problem: str = ""

    def __str__(self) -> str:
        moving = f"{self.moving} moving" if self.moving else ""
        parts = [self.address, self.phase.value, counted(len(self.tasks), "task"), self.worker_id, self.name]
        return "  ".join(filter(None, [*parts, self.release, moving, self.problem]))


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The whole membership.

    Attributes:
        version: The current assignment's; 0: none yet.
        unassigned: Tasks without a worker.
        stable: Every registered worker has its share and the current assignment, and no task is moving.
        ended: The reason why the membership has stopped; empty while it runs.
    """

    topology: str
    version: int
    workers: tuple[MemberStatus, ...]
    unassigned: tuple[int, ...]
    stable: bool
    ended: str = ""

    @property
    def joined_count(self) -> int:
        """The number of workers that have tasks or may get some."""
        return sum(worker.phase is Phase.JOINED for worker in self.workers)

    def _repr_html_(self) -> str:
        rows = [
            (one.address, one.phase, len(one.tasks), one.moving, f"{one.name} {one.worker_id}", one.problem)
            for one in self.workers
        ]
        return html_table(self._head(), ("address", "phase", "tasks", "moving", "worker", "problem"), rows)

    def _head(self) -> str:
        head = f"topology {self.topology}: assignment {self.version}, {counted(self.joined_count, 'worker')}"
        if self.unassigned:
            head += f", {counted(len(self.unassigned), 'task')} unassigned"
        if self.ended:
            head += f", ended: {self.ended}"
        return head + (", settled" if self.stable else "")

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"  {worker}" for worker in self.workers)])
