"""Whether a topology, or one process of it, has come to rest, and what it has exchanged with others."""

from __future__ import annotations

import threading
from collections.abc import Callable


class IdleWatch:
    """Counts the tuples that are in a queue of a worker, or being executed there; thread-safe.

    A worker is idle when there are none, and every spout has been asked since and had nothing.

    moved: notified of every change that may matter; the watches of several workers may share it. While it is
    held, none of them counts anything.
    """

    def __init__(self, moved: threading.Condition | None = None) -> None:
        self.moved = moved or threading.Condition()
        self._present = 0
        self._epoch = 0
        self._handed = 0
        self._taken = 0
        self._begun = 0
        self._paused = False

    @property
    def epoch(self) -> int:
        """The number of times that somebody began to wait."""
        return self._epoch

    @property
    def begun(self) -> int:
        """Everything that was ever counted: whoever reads the same twice knows that nothing was added."""
        return self._begun

    @property
    def empty(self) -> bool:
        """Whether there are no tuples now."""
        return not self._present

    def new_epoch(self) -> int:
        """Begin to wait: return the number that spouts are to be asked in."""
        self._epoch += 1
        return self._epoch

    def sent(self, tuples: int) -> None:
        """Count tuples, before they can be executed."""
        with self.moved:
            self._present += tuples
            self._begun += tuples

    def executed(self, tuples: int) -> None:
        """Take them off again, after what they have led to was counted."""
        with self.moved:
            self._present -= tuples
            if not self._present:
                self.moved.notify_all()

    def pause(self) -> None:
        """Let nothing enter from outside."""
        with self.moved:
            self._paused = True

    def resume(self) -> None:
        """Let it enter again."""
        with self.moved:
            self._paused = False

    def enter(self) -> bool:
        """Count one thing that comes from outside, as a tick does; False, and nothing, while paused."""
        with self.moved:
            if self._paused:
                return False
            self._present += 1
            self._begun += 1
            return True

    def handed(self, tuples: int) -> None:
        """Count what goes to other processes, before it does."""
        with self.moved:
            self._handed += tuples
            self._begun += tuples

    def taken(self, tuples: int, *, lost: bool = False) -> None:
        """Count what comes from other processes; lost: there is nothing of it to execute."""
        with self.moved:
            self._taken += tuples
            self._begun += tuples
            if not lost:
                self._present += tuples

    def traffic(self, at_rest: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return whether nothing is left to do here, what went to other processes, and what came from them.

        All three are of one moment. at_rest: whether the spouts have nothing, as finished() of each says.
        """
        with self.moved:
            return self._present == 0 and at_rest(), self._handed, self._taken

    def changed(self) -> None:
        """Have those who wait look again, as a spout has come to rest, or something has failed."""
        with self.moved:
            self.moved.notify_all()

    def wait(self, at_rest: Callable[[int], bool], over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the worker is idle or over; False when the time, in seconds, is over first.

        at_rest: whether every spout has had nothing in a round that began in this epoch, or later.
        """
        with self.moved:
            epoch = self.new_epoch()
            return self.moved.wait_for(lambda: over() or (self.empty and at_rest(epoch)), timeout)
