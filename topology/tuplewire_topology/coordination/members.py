"""Gives the orders of a coordinator to workers that this process can call.

Used by clusters; processes on Spark send mail instead. Owns no state. Thread-safe.
Design: docs/design/acking.md (the end of a topology).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tuplewire_topology.coordination.coordinator import Coordinator, Order
from tuplewire_topology.coordination.mail import MailKind
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.idle import ProcessReport

_TO_WORKERS = frozenset({MailKind.ASK, MailKind.TICK})

Obey = Callable[[int, Order], ProcessReport | None]
"""Executes an order in a worker, by its rank; returns the report if the order requests it."""


def obey(worker: ExecutorWorker, order: Order) -> ProcessReport | None:
    """Execute an order in a worker of this process. Raises its failure if the order requests a report."""
    match order.kind:
        case MailKind.ACTIVATE:
            worker.activate()
        case MailKind.DEACTIVATE:
            worker.deactivate()
        case MailKind.TICK:
            worker.tick(order.values)
        case MailKind.ASK:
            (wave,) = order.values
            report = worker.report(anew=wave == 1)
            worker.check()
            return report
    return None


def run_to_end(coordinator: Coordinator, ranks: int, obey: Obey, timeout: float) -> bool:
    """Give orders until the topology has finished; return False after `timeout` seconds.

    Raises the errors of `obey`.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()  # never set
    while True:
        for order in coordinator.orders(time.monotonic()):
            for rank in range(ranks) if order.kind in _TO_WORKERS else ():
                report = obey(rank, order)
                if report is not None:
                    coordinator.take_report(rank, order.values[0], report, time.monotonic())
        if coordinator.over:
            return True
        now = time.monotonic()
        seconds = coordinator.wait_seconds(now)
        if seconds and now >= deadline:
            return False
        pause.wait(min(seconds, max(0.0, deadline - now)))
