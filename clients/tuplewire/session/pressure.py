"""What holds messages up at the moment, noted where each cause begins and ends. For metrics of time."""

from __future__ import annotations

from tuplewire.session.durations import Durations

HELD_SECONDS = 0.005
"""A connection that takes nothing for this long is held up. A shorter pause is usual: it writes, or its peer
gathers acknowledgements."""


class Exhausted:
    """The tasks for which senders have used up their windows, with the number of these senders."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: dict[int, int] = {}

    def add(self, task: int) -> None:
        """Note that one more sender may send nothing to a task."""
        self.tasks[task] = self.tasks.get(task, 0) + 1

    def remove(self, task: int) -> None:
        """Note that one of these senders has room again, or is gone."""
        left = self.tasks[task] - 1
        if left:
            self.tasks[task] = left
        else:
            del self.tasks[task]


class OutboundPressure:
    """What holds messages up in all connections of a process. Belongs to the event loop."""

    __slots__ = ("held", "send_to_ack", "without_credit")

    def __init__(self) -> None:
        self.without_credit = 0
        """How many flows wait for credit, added up over the connections."""
        self.held: dict[object, float] = {}
        """Connections that take nothing while messages wait, and since when by the loop's clock."""
        self.send_to_ack = Durations()
        """From the writing of a frame to its acknowledgement."""

    def hold(self, connection: object, now: float) -> None:
        """Note that a connection takes nothing from now on; a second call changes nothing."""
        self.held.setdefault(connection, now)

    def free(self, connection: object) -> None:
        """Note that a connection takes messages again, or that none wait for it."""
        self.held.pop(connection, None)

    def holds(self, connection: object, now: float) -> bool:
        """Whether a connection has taken nothing for longer than usual."""
        since = self.held.get(connection)
        return since is not None and now - since > HELD_SECONDS

    @property
    def held_since(self) -> float | None:
        """Since when some connection takes nothing; None when all of them do."""
        return next(iter(self.held.values()), None)
