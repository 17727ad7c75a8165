"""The JVM that PySpark starts for this process, seen from its first moment, so that it can end at any."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

_END_SECONDS = 5.0
"""How long the JVM has to end by SIGTERM."""
_STOP_SECONDS = 60.0
"""How long it has to end when it is asked to: it may have an archive to write."""

_PY4J_LOGS = ("", "py4j.clientserver", "py4j.java_gateway")


class GatewayProcess:
    """What PySpark's launch_gateway() starts: spark-submit, which becomes the JVM; in a group of its own."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[Any]] = []
        self._answers = False

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Take note of what PySpark starts within the block.

        It keeps the process in a local variable until the JVM answers: whoever is interrupted before has no
        other way to it.
        """
        from pyspark import java_gateway

        started = self._started

        class Noted(subprocess.Popen[Any]):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                started.append(self)
                super().__init__(*args, process_group=0, **kwargs)

        module: Any = java_gateway
        before = module.Popen
        module.Popen = Noted
        try:
            yield
            self._answers = True
        finally:
            module.Popen = before

    def stop(self) -> bool:
        """Ask the JVM to end, and wait; return whether it has ended by itself, and not only by end()."""
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is None:
            return False
        gateway.shutdown()
        _forget_gateway()
        gateway.proc.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_STOP_SECONDS)
        return not self.end()

    def end(self) -> bool:
        """End it and all that it has started, if it still runs; return whether it did.

        A second interrupt ends it by force.
        """
        _forget_gateway()
        left = [each for each in self._started if getattr(each, "pid", None) and each.poll() is None]
        for process in left:
            try:
                # Before it has answered it has nothing to put in order, and would complain.
                _signal_group(process, signal.SIGTERM if self._answers else signal.SIGKILL)
                process.wait(_END_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                _signal_group(process, signal.SIGKILL)
                process.wait()
        return bool(left)


def _signal_group(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _forget_gateway() -> None:
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None


@contextlib.contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block, and nothing else.

    PySpark would have a handler of its own, which asks the JVM to cancel all jobs in the middle of whatever
    is asked of it just then; and Py4J would log a traceback.
    """
    from pyspark import SparkContext

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    module: Any = sys.modules[SparkContext.__module__]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    telling = _NoInterrupts()
    logs = [logging.getLogger(name) for name in _PY4J_LOGS]
    for log in logs:
        log.addFilter(telling)
    module.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        module.signal = signal
        for log in logs:
            log.removeFilter(telling)
        signal.signal(signal.SIGINT, before)


class _NoInterrupts(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        return error is None
