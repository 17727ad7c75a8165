"""What a membership is at, as plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tuplewire.text.html_table import html_table


class Phase(enum.StrEnum):
    """Where a worker is in its membership."""

    JOINED = "joined"
    """It holds its share of the tasks."""
    SILENT = "silent"
    """It does not answer, and keeps its tasks until it has been silent for too long."""
    LEAVING = "leaving"
    """It drains, or its executor is gone; its tasks are at others, and it hands over what it has."""
    ABSENT = "absent"
    """It should be there, and is not; `problem` says why."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker, or an address where one should be.

    name: whose worker it is (`executor 3`); empty: of nobody in particular. release: its version of
    Tuplewire. moving: how many tasks are changing hands, as far as it has to do with it.
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
        said = [self.address, self.phase.value, f"{len(self.tasks)} tasks"]
        said += [self.worker_id, self.name, self.release]
        if self.moving:
            said.append(f"{self.moving} moving")
        return "  ".join(filter(None, [*said, self.problem]))


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The whole membership.

    version: of the assignment in force; 0: none yet. unassigned: tasks that no worker holds. settled: every
    worker that is registered has its share, knows of all others, and nothing moves. ended: why the membership
    does nothing any more; empty while it does.
    """

    topology: str
    version: int
    workers: tuple[MemberStatus, ...]
    unassigned: tuple[int, ...]
    settled: bool
    ended: str = ""

    @property
    def joined(self) -> int:
        """How many workers hold, or may hold, tasks."""
        return sum(worker.phase is Phase.JOINED for worker in self.workers)

    def _repr_html_(self) -> str:
        """Return a table of the workers, for notebooks."""
        rows = [
            (
                each.address,
                each.phase,
                len(each.tasks),
                each.moving,
                f"{each.name} {each.worker_id}",
                each.problem,
            )
            for each in self.workers
        ]
        header = ("address", "phase", "tasks", "moving", "worker", "problem")
        return html_table(self._head(), header, rows)

    def _head(self) -> str:
        head = f"topology {self.topology}: assignment {self.version}, {self.joined} workers"
        if self.unassigned:
            head += f", {len(self.unassigned)} tasks at no worker"
        if self.ended:
            head += f", ended: {self.ended}"
        return head + (", settled" if self.settled else "")

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"  {worker}" for worker in self.workers)])
