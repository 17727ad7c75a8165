"""Waiting for executors to have nothing to do."""

from __future__ import annotations

from tuplewire_topology.running.executor_worker import ExecutorWorker


def wait_idle(worker: ExecutorWorker, timeout: float) -> bool:
    """Wait until nothing is left to do in a worker; False when the time is over first.

    That is: no tuple is queued or being executed, and every spout is exhausted or inactive. Raises the
    TaskError by which the worker has failed.
    """
    idle = worker.wait_idle(timeout)
    worker.check()
    return idle
