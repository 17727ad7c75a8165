"""Waiting until executors are idle."""

from __future__ import annotations

import time

from tuplewire_topology.running.executor_worker import ExecutorWorker

_POLL_SECONDS = 0.005


def wait_idle(worker: ExecutorWorker, timeout: float) -> bool:
    """Wait until a worker is idle. Return False if the timeout expires first.

    A worker is idle if no tuple is queued or being executed, and every spout is exhausted or inactive. Raises
    the TaskError of a failed worker.
    """
    deadline, begins = time.monotonic() + timeout, True
    while not worker.report(new_epoch=begins).at_rest:
        worker.check()
        if time.monotonic() > deadline:
            return False
        begins = False
        time.sleep(_POLL_SECONDS)
    worker.check()
    return True
