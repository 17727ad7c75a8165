"""The state of one process of a topology: its count of tuples in progress, its report, and its failure.

Used by executors, transfers and ticks, which count tuples, and by code that waits for the end of a topology.
Owns the counts of tuples. Thread-safe. Design: docs/design/acking.md (the end of a topology).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tuplewire.errors import TuplewireError


class IdleWatch:
    """Counts the tuples in the queues and executors of a worker. Thread-safe.

    A worker is idle if there are none, and every spout is inactive or exhausted. `epoch` is the number of
    waits that were started; each needs another round of the spouts. `paused`, set on any thread, rejects
    ticks and other input from outside.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._present = 0
        self.epoch = 0
        self._sent = 0
        self._received = 0
        self.paused = False

    @property
    def empty(self) -> bool:
        """True if there are no tuples now."""
        return not self._present

    def count(self, present: int, *, sent: int = 0, received: int = 0) -> None:
        """Count tuples: a change of the present ones, and the ones sent to or received from other processes.

        Count new tuples before they can be executed or sent. Subtract executed ones after the tuples that
        they caused were counted. A lost tuple is received, but never present.
        """
        with self._lock:
            self._present += present
            self._sent += sent
            self._received += received

    def enter(self) -> bool:
        """Count one input from outside, such as a tick; while paused, return False and count nothing."""
        with self._lock:
            if not self.paused:
                self.count(1)
                return True
            return False

    def traffic(self, finished: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return, for one moment, whether the process is at rest, its tuples sent, and its tuples received.

        `finished` returns True if every spout is inactive or exhausted.
        """
        with self._lock:
            return self._present == 0 and finished(), self._sent, self._received


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a failed process, as text. `traceback` includes the user's code."""

    summary: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return an error as text, with its causes."""
        return cls(str(error), "".join(traceback.format_exception(error)))


class ProcessFailedError(TuplewireError):
    """A process of a topology has failed. The message has the error, and a note its traceback there."""

    def __init__(self, process: str, failure: Failure) -> None:
        super().__init__(f"{process} has failed: {failure.summary}")
        self.process = process
        self.failure = failure
        self.add_note(f"In {process}:\n{failure.traceback.rstrip()}")


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The state of one process at one moment, with the number of tuples passed to the link so far.

    `at_rest` is True if no tuple is queued or executed, and all spouts are exhausted or inactive. `taken` is
    the number of tuples received from the link, plus the lost ones.
    """

    at_rest: bool
    sent: int
    taken: int
    failure: Failure | None = None
