"""Common parts of topologies in clusters: wait for the end, and find the workers of tasks.

Used by local_topology.py and distributed_topology.py. Owns the captured tuples. Thread-safe.
Design: docs/design/acking.md (the end of a topology).
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.errors import ClosedError, TopologyError, WaitTimeoutError
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.coordination.control_channel import ControlKind
from tuplewire_topology.coordination.coordinator import Coordinator, Order
from tuplewire_topology.running.statistics import ExecutorStatistics, ProcessReport

WAIT_SECONDS = 60.0
DEFAULT_CLOSE_SECONDS = 10.0
_WORKER_ORDERS = frozenset({ControlKind.GET_REPORT, ControlKind.FINAL_TICK})


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """A snapshot of a topology. state: ACTIVE, INACTIVE or FAILED, as Storm's."""

    name: str
    state: str
    executors: Sequence[ExecutorStatistics]


class RunningTopology(ABC):
    """A topology in a cluster. `captured` has the recorded tuples."""

    topology: Topology
    _workers: Sequence[object]
    _exact = True  # see TerminationDetector
    _closed = False

    def __init__(self, name: str, conf: Mapping[str, Any], captured: CapturedTuples) -> None:
        self.name = name
        self.captured = captured
        self._conf = conf
        self._change_lock = threading.RLock()
        self._finish_lock = threading.Lock()
        self._finish_count = 0

    @abstractmethod
    def _apply_order(self, coordinator: Coordinator, rank: int, order: Order) -> ProcessReport | None:
        """Execute an order in a worker."""

    def _timeout_reason(self) -> str:
        """Return why wait() timed out, to append to the error text; empty if unknown."""
        return ""

    def wait(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the topology has finished: all spouts exhausted or inactive, and no tuple in flight.

        Raises:
            TaskError: The topology has failed in a local cluster.
            ProcessFailedError: A process has failed. A note has the traceback of the user's code.
            LaunchError: A process has exited, and is not restarted.
            WaitTimeoutError: `timeout` seconds have passed; names this process's unfinished spouts.
        """
        self._wait(timeout)

    def _wait(self, timeout: float, levels: Sequence[Sequence[str]] = ()) -> None:
        now = time.monotonic()
        deadline = now + timeout
        coordinator = Coordinator(self.n_workers, now, levels, already_open=True, exact=self._exact)
        while True:
            for order in coordinator.next_orders(time.monotonic()):
                # A task that moves at the same time would get no final tick.
                with self._change_lock if order.kind is ControlKind.FINAL_TICK else contextlib.nullcontext():
                    for rank in range(self.n_workers) if order.kind in _WORKER_ORDERS else ():
                        if (report := self._apply_order(coordinator, rank, order)) is not None:
                            coordinator.handle_report(rank, order.values[0], report, time.monotonic())
            if coordinator.is_done:
                return
            now = time.monotonic()
            seconds = coordinator.wait_seconds(now)
            if seconds and now >= deadline:
                reason = self._timeout_reason()
                raise WaitTimeoutError(f"topology {self.name!r} has not finished after {timeout:g} s{reason}")
            time.sleep(min(seconds, max(0.0, deadline - now)))

    def finish(self, timeout: float = WAIT_SECONDS) -> CapturedTuples:
        """Wait until the topology has finished, send the final ticks, wait, and return the recorded tuples.

        A bolt that aggregates can emit its result on the final tick. Bolts get this tick after the results of
        earlier bolts; the bolts of a cycle get it together. Raises the errors of wait(), and
        ProcessFailedError if a process has collected a tuple with a value that no message can carry.
        """
        finish_count, deadline = self._finish_count, time.monotonic() + timeout
        with self._finish_lock:
            if self._finish_count == finish_count:  # otherwise, a call in another thread has finished it
                self._wait(deadline - time.monotonic(), self.topology.tick_levels(self._conf))
                self._finish_count += 1
        return self.captured

    def activate(self) -> None:
        """Start to request tuples from the spouts. Source: Storm's `activate`. Raises ClosedError."""
        self._check_open()
        self._set_active(active=True)

    def deactivate(self) -> None:
        """Stop requesting tuples, and process those in flight. Source: `deactivate`. Raises ClosedError."""
        self._check_open()
        self._set_active(active=False)

    @abstractmethod
    def _set_active(self, *, active: bool) -> None:
        """Activate or deactivate the spouts of all workers."""

    @property
    def n_workers(self) -> int:
        """The number of workers."""
        return len(self._workers)

    @abstractmethod
    def worker_index(self, task: int) -> int:
        """Return the number, from 0, of the worker that owns a task; TopologyError for an unknown task."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"topology {self.name!r} is closed: submit it again")

    def _check_worker(self, worker: int) -> None:
        self._check_open()
        if not 0 <= worker < self.n_workers:
            raise TopologyError(
                f"there is no worker {worker}: topology {self.name!r} has the workers 0 to "
                f"{self.n_workers - 1}; topology.workers sets their number"
            )

    def _executor_tasks(self, task: int) -> range:
        """Return the tasks of the executor that runs a task; TopologyError for an unknown task."""
        executors = self.topology.executors_of(self.topology.component_of(task).id)
        return next(tasks for tasks in executors if task in tasks)

    @abstractmethod
    def status(self) -> TopologyStatus:
        """Return the state, and the statistics of the executors."""
