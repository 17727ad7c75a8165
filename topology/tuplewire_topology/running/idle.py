"""What a process of a topology knows of its own work: tuples on the way, its state, and its failure.

Used by executors, and by whoever coordinates the processes of a topology. Thread-safe.
Design: docs/design/topologies.md (end of a topology).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self


class IdleWatch:
    """Counts the tuples that are in a queue of a worker, or being executed there; thread-safe.

    A worker is idle when there are none, and every spout is inactive or exhausted.

    moved: notified of every change that may matter; the watches of several workers may share it. While it is
    held, none of them counts anything. epoch: the number of times that somebody began to wait. begun:
    everything that was ever counted: whoever reads the same twice knows that nothing was added. paused: to be
    set, from any thread, where nothing is to enter from outside.
    """

    def __init__(self, moved: threading.Condition | None = None) -> None:
        self.moved = moved or threading.Condition()
        self._present = 0
        self.epoch = 0
        self._handed = 0
        self._taken = 0
        self.begun = 0
        self.paused = False

    @property
    def empty(self) -> bool:
        """Whether there are no tuples now."""
        return not self._present

    def new_epoch(self) -> int:
        """Begin to wait: return the number that spouts are to be asked in."""
        self.epoch += 1
        return self.epoch

    def sent(self, tuples: int) -> None:
        """Count tuples, before they can be executed."""
        with self.moved:
            self._present += tuples
            self.begun += tuples

    def executed(self, tuples: int) -> None:
        """Take them off again, after what they have led to was counted."""
        with self.moved:
            self._present -= tuples
            if not self._present:
                self.moved.notify_all()

    def enter(self) -> bool:
        """Count one thing that comes from outside, as a tick does; False, and nothing, while paused."""
        with self.moved:
            if not self.paused:
                self.sent(1)
                return True
            return False

    def handed(self, tuples: int) -> None:
        """Count what goes to other processes, before it does."""
        with self.moved:
            self._handed += tuples
            self.begun += tuples

    def taken(self, tuples: int, *, lost: bool = False) -> None:
        """Count what comes from other processes; lost: there is nothing of it to execute."""
        with self.moved:
            self._taken += tuples
            self.begun += tuples
            if not lost:
                self._present += tuples

    def traffic(self, finished: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return whether nothing is left to do here, what went to other processes, and what came from them.

        All three are of one moment. finished: whether every spout is inactive or exhausted.
        """
        with self.moved:
            return self._present == 0 and finished(), self._handed, self._taken

    def changed(self) -> None:
        """Have those who wait look again, as a spout has come to rest, or something has failed."""
        with self.moved:
            self.moved.notify_all()


@dataclass(frozen=True, slots=True)
class Failure:
    """The error by which a process has failed, as text. traceback: with that of the user's code."""

    summary: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Describe an error, with its causes."""
        return cls(str(error), "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What one process says of itself, all at one moment.

    at_rest: no tuple is queued or being executed there, and its spouts are exhausted, or inactive. sent:
    tuples handed to the link so far. taken: those taken from it, and those that will never arrive.
    """

    at_rest: bool
    sent: int
    taken: int
    failure: Failure | None = None
