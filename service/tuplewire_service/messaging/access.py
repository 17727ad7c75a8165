"""What the other side of a stream may do, as whoever admits it has found out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuplewire.errors import RefusedError
from tuplewire.group import TaskGroup


class IAccess:
    """What one caller may do: everything, unless a subclass says otherwise.

    Asked once for each stream, and of messages once for each frame; `refused` must cost next to nothing.
    """

    def open_session(self, topology: str, *, worker: bool) -> None:
        """Take note that it sends for a topology, maybe as another worker; raises RefusedError."""

    def receive(self, topology: str, tasks: Iterable[int]) -> None:
        """Take note that it wants the messages of these tasks; raises RefusedError."""

    def refused(self, groups: Sequence[TaskGroup]) -> Sequence[tuple[TaskGroup, RefusedError]]:
        """Return those groups that it may not send, and why."""
        del groups
        return ()

    def take_over(self, sender_id: str, earlier: IAccess) -> None:
        """Take note that it goes on with, or ends, what another stream has begun; raises RefusedError."""


EVERYTHING = IAccess()
"""Of a caller about whom nobody asks."""
