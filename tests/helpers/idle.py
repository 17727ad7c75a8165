"""Waiting until executors are idle."""

from __future__ import annotations

from tuplewire_topology.running.executor_worker import ExecutorWorker


def wait_idle(worker: ExecutorWorker, timeout: float) -> bool:
    """Wait until a worker is idle. Return False if the timeout expires first.

    A worker is idle if no tuple is queued or being executed, and every spout is exhausted or inactive. Raises
    the TaskError of a failed worker.
    """
    idle = worker.wait_idle(timeout)
    worker.check()
    return idle
