"""Waiting until executors are idle."""

from __future__ import annotations

import time

from tuplewire_topology.running.executor_worker import ExecutorWorker

_POLL_SECONDS = 0.005


def wait_idle(worker: ExecutorWorker, timeout: float) -> bool:
    """Wait until no tuple is queued and no spout emits. Return False after the timeout; raise TaskError."""
    deadline, begins = time.monotonic() + timeout, True
    while not worker.report(new_epoch=begins).at_rest:
        worker.check()
        if time.monotonic() > deadline:
            return False
        begins = False
        time.sleep(_POLL_SECONDS)
    worker.check()
    return True
