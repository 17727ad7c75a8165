"""Where a PySpark task of a topology waits: for mail, and for what its bolts hand out."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tuplewire.errors import TuplewireError
from tuplewire.spark.topology.mail import Mail
from tuplewire.topology.collector import Emitted

_MOST_ROWS = 65_536


class Mailbox:
    """Mail, and runs of tuples to put out; thread-safe.

    A bolt that hands out more than is taken waits, so that a slow reader of the output slows the topology.
    """

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._changed = threading.Condition()
        self._mail: list[Mail] = []
        self._runs: list[Emitted] = []
        self._rows = 0
        self._discards = False
        self._failure: TuplewireError | None = None

    def put_mail(self, mail: Mail) -> None:
        """Add a mail."""
        with self._changed:
            self._mail.append(mail)
            self._changed.notify_all()

    def fail(self, error: TuplewireError) -> None:
        """Say that there will be no more mail, and why."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def put_runs(self, runs: Sequence[Emitted]) -> None:
        """Add tuples, waiting for room."""
        with self._changed:
            self._changed.wait_for(lambda: self._discards or self._rows < self._most_rows)
            if self._discards:
                return
            self._runs += runs
            self._rows += sum(len(run.tuples) for run in runs)
            self._changed.notify_all()

    def discard(self) -> None:
        """Throw away all tuples, these and what comes: nobody wants them any more."""
        with self._changed:
            self._discards = True
            self._runs, self._rows = [], 0
            self._changed.notify_all()

    def take(self, timeout: float) -> tuple[list[Mail], list[Emitted]]:
        """Return everything, waiting until there is something, at most so many seconds.

        Raises the error for which there will be no more mail.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._mail or self._runs or self._failure), timeout)
            if self._failure is not None:
                raise self._failure
            mail, self._mail = self._mail, []
            runs, self._runs, self._rows = self._runs, [], 0
            self._changed.notify_all()
            return mail, runs
