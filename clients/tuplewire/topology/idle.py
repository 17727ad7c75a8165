"""Whether a topology, or one process of it, has come to rest, and what it has exchanged with others."""

from __future__ import annotations

import threading
from collections.abc import Callable


class IdleWatch:
    """Counts the tuples that are in a queue, on the way or being executed; thread-safe.

    A topology is idle when there are none, and every spout has been asked since and had nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._on_the_way = 0
        self._epoch = 0
        self._handed = 0
        self._taken = 0

    @property
    def epoch(self) -> int:
        """The number of times that somebody began to wait."""
        return self._epoch

    def sent(self, tuples: int) -> None:
        """Count tuples, before they can be executed."""
        with self._changed:
            self._on_the_way += tuples

    def executed(self, tuples: int) -> None:
        """Take them off again, after what they have led to was counted."""
        with self._changed:
            self._on_the_way -= tuples
            if not self._on_the_way:
                self._changed.notify_all()

    def handed(self, tuples: int) -> None:
        """Count what goes to other processes, before it does."""
        with self._changed:
            self._handed += tuples

    def taken(self, tuples: int, *, lost: bool = False) -> None:
        """Count what comes from other processes; lost: there is nothing of it to execute."""
        with self._changed:
            self._taken += tuples
            if not lost:
                self._on_the_way += tuples

    def traffic(self, at_rest: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return whether nothing is left to do here, what went to other processes, and what came from them.

        All three are of one moment. at_rest: whether the spouts have nothing, as finished() of each says.
        """
        with self._changed:
            return self._on_the_way == 0 and at_rest(), self._handed, self._taken

    def changed(self) -> None:
        """Have those who wait look again, as a spout has come to rest, or something has failed."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, at_rest: Callable[[int], bool], over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the topology is idle or over; False when the time, in seconds, is over first.

        at_rest: whether every spout has had nothing in a round that began in this epoch, or later.
        """
        with self._changed:
            self._epoch += 1
            epoch = self._epoch
            return self._changed.wait_for(
                lambda: over() or (self._on_the_way == 0 and at_rest(epoch)), timeout
            )
