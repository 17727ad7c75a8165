"""Why and when the worker process ends: signals, a Drain call, a defect; the first request counts."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 64
"""Bad flags or configuration: EX_USAGE of sysexits.h."""
EXIT_DEFECT = 70
"""An error that nobody expected: EX_SOFTWARE of sysexits.h."""

EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C, as shells have it."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class StopRequest:
    """reason: one word for the log. deadline_seconds: of the drain; None: as configured."""

    reason: str
    exit_code: int = EXIT_OK
    deadline_seconds: float | None = None


def read_signals(action: Callable[[int], None]) -> None:
    """Call `action` with the number of each SIGTERM and SIGINT.

    A thread of its own reads them from a pipe. Python runs handlers in the main thread only, and nothing
    wakes that from a lock when the kernel gives the signal to another thread. A handler that takes a lock, as
    setting an Event does, waits for ever when the main thread has just taken it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)

    def pass_on() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while number := pipe.read(1):
                if number[0] in _SIGNALS:
                    action(number[0])

    threading.Thread(target=pass_on, name="tuplewire-signals", daemon=True).start()


def end_by_force(seconds: float, why: Callable[[], str]) -> threading.Timer:
    """End the process with code 70 in so many seconds, and say what held its orderly end up; why: says it.

    Returns the timer, whose cancel() lets the process live.
    """

    def end() -> None:
        try:
            os.write(2, f"tuplewire worker: not ended after {seconds:g} s: {why()}\n".encode())
        finally:
            os._exit(EXIT_DEFECT)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


class Stop:
    """Gathers requests to stop, from any thread; the main thread waits for the first."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[StopRequest] = queue.SimpleQueue()
        self.requested = False
        """Whether anybody has asked."""
        self._was_signalled = False

    def request(self, request: StopRequest) -> None:
        """Ask the process to stop."""
        self.requested = True
        self._requests.put(request)

    def wait(self, timeout: float) -> StopRequest | None:
        """Block until somebody asks, and return the first request; None when nobody has in that time."""
        try:
            return self._requests.get(timeout=timeout)
        except queue.Empty:
            return None

    def failure(self) -> StopRequest | None:
        """Return a defect that was reported meanwhile, if any; takes what has queued up."""
        while not self._requests.empty():
            request = self._requests.get()
            if request.exit_code:
                return request
        return None

    def on_signals(self) -> None:
        """Turn SIGTERM and SIGINT into requests; the second of them ends the process at once."""
        read_signals(self._signalled)

    def on_end_of_input(self) -> None:
        """Stop when standard input ends: whoever started this process and held it open is gone."""
        threading.Thread(target=self._await_end_of_input, name="tuplewire-stdin", daemon=True).start()

    def _signalled(self, number: int) -> None:
        if self._was_signalled:
            os.write(2, b"tuplewire worker: second signal, exit without draining\n")
            os._exit(128 + number)
        self._was_signalled = True
        self.request(StopRequest(signal.Signals(number).name))

    def _await_end_of_input(self) -> None:
        descriptor = sys.stdin.fileno()
        while os.read(descriptor, 4096):
            pass
        self.request(StopRequest("parent-gone"))
