"""Requests to stop the worker process: signals, Drain calls, defects. The first one starts the drain.

Used by process/, control/, the command and the demos. Owns the queued requests, and the threads that read
signals and the standard input. Thread-safe. Exception: only the main thread may start to read signals.
Design: docs/design/drain.md (deadlines).
"""

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
"""An unexpected error: EX_SOFTWARE of sysexits.h."""

EXIT_INTERRUPTED = 130
"""Interrupted by Ctrl-C: the code that shells use."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop. None for the time limit of the drain: the configured one."""

    reason: str
    exit_code: int = EXIT_OK
    drain_seconds: float | None = None


def read_signals(on_signal: Callable[[int], None]) -> None:
    """Call `on_signal` with the number of each SIGTERM and SIGINT.

    A separate thread reads them from a pipe. Python runs handlers only in the main thread, and nothing wakes
    it from a lock if the kernel delivers the signal to another thread. A handler that acquires a lock, as
    Event.set() does, deadlocks if the main thread holds that lock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)

    def forward_signals() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while number := pipe.read(1):
                if number[0] in _SIGNALS:
                    on_signal(number[0])

    threading.Thread(target=forward_signals, name="tuplewire-signals", daemon=True).start()


def exit_after(seconds: float, get_reason: Callable[[], str]) -> threading.Timer:
    """Exit with code 70 after `seconds`, and print the reason on standard error. Returns the timer."""

    def end() -> None:
        try:
            os.write(2, f"tuplewire worker: did not exit within {seconds:g} s: {get_reason()}\n".encode())
        finally:
            os._exit(EXIT_DEFECT)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


class Stop:
    """Collects requests to stop. Thread-safe; the main thread waits for the first request."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[StopRequest] = queue.SimpleQueue()
        self.is_requested = False
        self.exit_code = EXIT_OK
        """The exit code of the first request that reports a failure."""
        self._was_signalled = False

    def request(self, request: StopRequest) -> None:
        """Request a stop of the process."""
        self.is_requested = True
        self.exit_code = self.exit_code or request.exit_code
        self._requests.put(request)

    def wait(self, timeout: float) -> StopRequest | None:
        """Wait for the next request and return it, or None after `timeout` seconds."""
        try:
            return self._requests.get(timeout=timeout)
        except queue.Empty:
            return None

    def watch_signals(self) -> None:
        """Turn SIGTERM and SIGINT into requests; a second signal exits immediately."""
        read_signals(self._on_signal)

    def watch_stdin(self) -> None:
        """Stop at the end of standard input: the parent process that held it open has exited."""

        def await_end() -> None:
            while os.read(sys.stdin.fileno(), 4096):
                pass
            self.request(StopRequest("stdin_eof"))

        threading.Thread(target=await_end, name="tuplewire-stdin", daemon=True).start()

    def _on_signal(self, number: int) -> None:
        if self._was_signalled:
            os.write(2, b"tuplewire: exiting on the second signal, without waiting\n")
            os._exit(128 + number)
        self._was_signalled = True
        self.request(StopRequest(signal.Signals(number).name))
