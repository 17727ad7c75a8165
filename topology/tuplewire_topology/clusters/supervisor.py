"""Restarts processes that fail. Source: Storm's `Supervisor` and `Slot`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tuplewire.errors import TuplewireError, as_tuplewire
from tuplewire.processes.child import Child, LaunchError
from tuplewire.session.retry import Backoff
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_FIRST_SECONDS = 0.5
_MOST_SECONDS = 30.0


class Supervisor:
    """Starts a process and, from watch() until stop(), restarts it if it fails.

    Args:
        start: Starts a child, immediately and at each restart. A restart that raises an error counts.
        restarts: The maximum number of restarts, which follow at growing intervals.
        given_up: Called in the thread, with the reason, if the process has exited and is not restarted.
    """

    def __init__(
        self, start: Callable[[], Child], restarts: int, given_up: Callable[[TuplewireError], None]
    ) -> None:
        self._start = start
        self._left = restarts
        self._backoff = Backoff(_FIRST_SECONDS, _MOST_SECONDS, random.random)
        self._given_up = given_up
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.child = start()
        """The current process: the one that was started last."""
        name = f"watch {self.child.command.name}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def watch(self) -> None:
        """Start to watch the process; its starter must handle an exit before this call."""
        self._thread.start()

    def _watch(self) -> None:
        try:
            self._keep_running()
        except BaseException as error:  # noqa: BLE001 - otherwise no restart, and no report
            self._given_up(as_tuplewire(error))

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            code = self.child.wait()
            if code is None or self._stopping.is_set():
                return
            name = self.child.command.name
            error: TuplewireError = LaunchError(f"{name} ended with code {code}\n{self.child.last_words()}")
            while True:
                if code == 0 or not self._left:  # 0: it was stopped, and did not fail
                    self._given_up(error)
                    return
                self._left -= 1
                delay = self._backoff.next()
                logger.warning("launch.restart", extra={"worker": name, "exit_code": code, "seconds": delay})
                if self._stopping.wait(delay):
                    return
                try:
                    child = self._start()
                except TuplewireError as failed:
                    error = failed
                else:
                    self._replace(child)
                    break

    def _replace(self, child: Child) -> None:
        with self._lock:
            self.child.end(time.monotonic())  # it has exited; this closes its standard input
            self.child = child
            if self._stopping.is_set():
                child.terminate()

    def no_more(self) -> None:
        """Disable restarts: the next exit is expected, and is not a failure."""
        self._stopping.set()

    def stop(self, deadline: float) -> int:
        """Stop the process without a restart, and return its exit code; kill it at the deadline."""
        self.no_more()
        with self._lock:
            self.child.terminate()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.child.end(deadline)
