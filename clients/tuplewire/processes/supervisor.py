"""Processes that are started again when they fail. Source: Storm's `Supervisor` and `Slot`."""

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
    """Starts a process and, from watch() until stop(), starts it again when it fails.

    start: makes a child, at once and at each restart, or raises; a restart that raises counts. restarts: how
    often, at growing intervals. given_up: told when it has ended and there is no further start; called in the
    thread.
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
        """The process, as it was started last."""
        name = f"watch {self.child.command.name}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def watch(self) -> None:
        """Begin to watch it; what happens before is for whoever started it to see."""
        self._thread.start()

    def _watch(self) -> None:
        try:
            self._keep_running()
        except BaseException as error:  # noqa: BLE001 - nobody would start it again, and nobody know
            self._given_up(as_tuplewire(error))

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            code = self.child.wait()
            if code is None or self._stopping.is_set():
                return
            name = self.child.command.name
            error: TuplewireError = LaunchError(f"{name} ended with code {code}\n{self.child.last_words()}")
            while True:
                if code == 0 or not self._left:  # with 0 it was told to end, by whomever, and has not failed
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
            self.child.end(time.monotonic())  # it has ended, and lets go of what it held here
            self.child = child
            if self._stopping.is_set():
                child.terminate()

    def no_more(self) -> None:
        """Start it no more: its end is wanted, and no failure."""
        self._stopping.set()

    def stop(self, deadline: float) -> int:
        """End the process, start it no more, and return its exit code; kill it at the deadline."""
        self.no_more()
        with self._lock:
            self.child.terminate()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.child.end(deadline)
