"""A topology of a local cluster, with all workers in this process. Source: Storm's `ILocalTopology`.

Used by cluster.py. Owns workers, acker and assignment. Thread-safe. Exception: LocalWorker. Changes of
workers and of spouts exclude each other. Design: docs/design/topologies.md (changes in a local cluster).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import ClosedError, TuplewireError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.events import event_logger
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.process.embedded_worker import EmbeddedWorker
from tuplewire_topology.acking.acker import LocalTracker, TreeKey
from tuplewire_topology.authoring.component import DeadLetter, TaskError
from tuplewire_topology.authoring.description import Topology, schedule_evenly
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.clusters.running_topology import (
    DEFAULT_CLOSE_SECONDS,
    WAIT_SECONDS,
    RunningTopology,
    TopologyStatus,
)
from tuplewire_topology.coordination.coordinator import Coordinator, Order
from tuplewire_topology.coordination.executor_reports import metric_families
from tuplewire_topology.running.component_executors import BoltExecutor
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.statistics import ProcessReport
from tuplewire_topology.running.task_router import outbound_tasks
from tuplewire_topology.running.timer import SimulatedTimer

logger = event_logger(__name__)

_USER_CODE_SECONDS = 1.0
"""The time that a killed worker's executors have to return from user code."""
_MAX_RECORDS = 1000


class LocalWorker(ExecutorGroup):
    """Executors and their embedded worker. Source: Storm's `Worker`, run by its `LocalContainer`."""

    def __init__(
        self,
        topology: Topology,
        tasks: Collection[int],
        embedded: EmbeddedWorker,
        conf: Mapping[str, Any],
        **settings: Any,
    ) -> None:
        self.is_killed = False
        self.embedded = embedded
        try:
            link = Link.for_worker(embedded.handle, topology, conf)
            super().__init__(topology, tasks, link=link, port=embedded.port, conf=conf, **settings)
            embedded.handle.attach(self, topology.tasks, partial(outbound_tasks, topology))
        except BaseException:
            embedded.abort()
            raise

    def report(self, *, new_epoch: bool = False) -> ProcessReport:
        """See ExecutorGroup.report. Idle also means that all messages for other workers have arrived."""
        report = super().report(new_epoch=new_epoch)
        pending = self.link.pending_messages + messaging_thread().call(lambda: self.embedded.held_messages)
        return replace(report, is_idle=report.is_idle and not pending)

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End like a killed process; return the executors still in user code after `timeout` seconds."""
        with self._lock:
            self.is_killed = self._closed = True
        self._end_timer()
        for executor in self.executors:
            executor.kill()
        self.disconnect()
        self.embedded.abort()
        return self._join_executors(time.monotonic() + timeout)

    def close(self, timeout: float = 10.0) -> None:
        try:
            super().close(timeout)
        finally:
            if not self.is_killed:
                self.embedded.close(timeout)


class LocalTopology(RunningTopology):
    """A running topology. Created by LocalCluster.submit, which activates the spouts.

    Attributes:
        captured: The emitted and received tuples; with `collect`, only tuples emitted by these components.
        errors: The last thousand errors.
        dead_letters: The last thousand dead letters.
    """

    _exact = False  # a killed worker loses its counts; reports include all messages in flight instead

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any],
        topology: Topology,
        timer: SimulatedTimer | None,
        collect: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, conf, CapturedTuples(collect))
        self.topology = topology
        self._records_received = collect is None
        self.errors: deque[TaskError] = deque(maxlen=_MAX_RECORDS)
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_MAX_RECORDS)
        self._timer = timer
        self._active = False
        self._changing_thread: int | None = None
        """The thread that changes workers, if any."""
        self._version = 0
        self._acker = LocalTracker(self._deliver_outcomes)
        self._workers: list[LocalWorker] = []
        self._worker_by_task: dict[int, LocalWorker] = {}
        self._stuck_executors: list[Executor[Any]] = []
        try:
            for rank, tasks in enumerate(schedule_evenly(topology, TopologySettings.from_conf(conf).workers)):
                self._workers.append(self._make_worker(rank, tasks))
            self._push_assignment()
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.close(0.0)
            raise

    def __repr__(self) -> str:
        state = "active" if self._active else "inactive"
        return f"<LocalTopology {self.name} {state} workers={len(self._workers)} {self.topology!r}>"

    def _repr_html_(self) -> str:
        return self.topology._repr_html_()

    def _make_worker(self, number: int, tasks: Collection[int]) -> LocalWorker:
        return LocalWorker(
            self.topology,
            tasks,
            EmbeddedWorker(f"{self.name}-worker-{number}", self.name, self._conf),
            topology_id=self.name,
            conf=self._conf,
            timer=self._timer,
            acker=self._acker,
            on_error=self.errors.append,
            on_dead_letter=self.dead_letters.append,
            on_emit=self.captured.record_emitted,
            on_receive=self.captured.record_received if self._records_received else None,
        )

    def _push_assignment(self) -> None:
        self._worker_by_task = {task: worker for worker in self._workers for task in worker.tasks}
        self._version += 1
        tasks_by_peer = {worker.embedded.peer: sorted(worker.tasks) for worker in self._living()}
        dead_peers = [worker.embedded.peer for worker in self._workers if worker.is_killed]
        for worker in self._living():
            worker.embedded.assign(self._version, tasks_by_peer, dead_peers)

    def _deliver_outcomes(self, column: AddressedTuples) -> None:
        worker = self._worker_by_task[column.task]
        try:
            worker.transfer.enqueue(column)
        except ClosedError:
            if not worker.is_killed:  # a killed worker loses outcomes, as a crashed one does
                raise

    # --- life -------------------------------------------------------------------------------------------

    def _set_active(self, *, active: bool) -> None:
        with self._change_lock:
            self._active = active
            for worker in self._workers:
                worker.set_active(active=active)

    def _apply_order(self, _: Coordinator, rank: int, order: Order) -> ProcessReport | None:
        worker = self._workers[rank]
        at_rest = ProcessReport(is_idle=True, sent=0, received=0)
        report = at_rest if worker.is_killed else order.execute(worker)
        # A topology that is paused for a change is at rest for this change only, not for other callers.
        if report is not None and self._changing_thread not in {None, threading.get_ident()}:
            return replace(report, is_idle=False)
        return report

    def _timeout_reason(self) -> str:
        spouts = [spout for worker in self._living() for spout in worker.spouts if not spout.is_finished()]
        ids = ", ".join(sorted({repr(spout.component.id) for spout in spouts}))
        return f": {ids} may emit more; set `exhausted` when they are done, or deactivate()" if ids else ""

    @property
    def failure(self) -> TuplewireError | None:
        """The error that made the topology fail, if any."""
        failures = (worker.failure for worker in self._living())
        return next((failure for failure in failures if failure is not None), None)

    def status(self) -> TopologyStatus:
        state = "FAILED" if self.failure is not None else "ACTIVE" if self._active else "INACTIVE"
        executors = [each for worker in self._workers for each in worker.statistics()]
        return TopologyStatus(self.name, state, executors)

    def ledgers(self) -> dict[str, LedgerSnapshot]:
        """Return the ledger of each worker, in messages."""
        return {worker.embedded.peer.worker_id: worker.embedded.handle.ledger() for worker in self._living()}

    def heartbeats(self) -> list[ExecutorHeartbeat]:
        """Return the activity of every executor at its worker's last heartbeat."""
        return [beat for worker in self._living() for beat in worker.heartbeats.last]

    def metrics(self) -> list[pb.MetricFamily]:
        """Return the metrics of all executors, for a ProgramCollector in a registry of prometheus_client."""
        return metric_families(self.status().executors, self.heartbeats())

    def close(self, timeout: float = DEFAULT_CLOSE_SECONDS) -> None:
        """Deactivate, wait up to `timeout` seconds until it has finished, then close all workers."""
        deadline = time.monotonic() + timeout
        if not self._closed:
            self.deactivate()
            with contextlib.suppress(TuplewireError):  # the workers end in any case
                self.wait(timeout)
        with self._change_lock:  # a change of workers ends first, and none begins later
            self._closed = True
        with contextlib.ExitStack() as stack:
            for worker in self._workers:
                remaining_seconds = 0.0 if self.failure is not None else max(0.0, deadline - time.monotonic())
                stack.callback(worker.close, remaining_seconds)
            for executor in self._stuck_executors:
                stack.callback(executor.join, max(0.0, deadline - time.monotonic()))

    # --- changes of workers -----------------------------------------------------------------------------

    def worker_index(self, task: int) -> int:
        self.topology.component_of(task)
        return self._workers.index(self._worker_by_task[task])

    def move_task(self, task: int, worker: int, timeout: float = WAIT_SECONDS) -> None:
        """Move the executor of a task to another worker while tuples flow. Source: Storm's `rebalance`.

        Pauses spouts until all tuples in flight are executed. Then closes the executor's tasks, and opens
        them on the other worker. No tuple is lost, duplicated or reordered, except that unacked tuples of a
        moved bolt fail, and a moved spout starts again without outcomes of its earlier tuples.

        Args:
            worker: The number of the new worker, from 0.
            timeout: The maximum wait in seconds for tuples in flight.

        Raises:
            TopologyError: There is no such task or worker.
            WaitTimeoutError: Tuples are still in flight: nothing has moved. Or a task opens or closes slowly:
                it has moved, and continues once it is open.
            TaskError: A task cannot be opened.
        """
        tasks = self._executor_tasks(task)
        self._check_worker(worker)
        target = self._workers[worker]
        with self._paused(timeout):
            source = self._worker_by_task[task]
            if source is target:
                return
            try:
                source.remove_executor(tasks, timeout)
            finally:  # even if it still runs cleanup(), because it takes no tuples any longer
                self._fail_lost_tuples(tasks)
                target.tasks |= frozenset(tasks)
                self._push_assignment()  # first: a link can receive only for tasks that its worker owns
                target.add_executor(tasks)

    def kill_worker(self, worker: int, timeout: float = WAIT_SECONDS) -> None:
        """Crash a worker, then start it again like Storm's supervisor, while tuples flow.

        Its executors stop without closing spouts and bolts, and tuples in queues and connections are lost.
        On other workers, spout tuples with a lost copy fail immediately, and no others; in Storm, after
        topology.message.timeout.secs. Its own spouts start again without outcomes of their earlier tuples.

        Raises:
            TopologyError: There is no such worker.
            WaitTimeoutError: Tuples are still in flight after `timeout` seconds. The topology then continues
                without the worker, until it is killed again.
            TaskError: A task cannot be opened.
        """
        self._check_worker(worker)
        killed_worker = self._workers[worker]
        with self._paused(timeout, killed_worker):
            self._fail_lost_tuples(())
            self._workers[worker] = self._make_worker(worker, killed_worker.tasks)
            self._push_assignment()
            self._workers[worker].start()

    @contextlib.contextmanager
    def _paused(self, timeout: float, killed: LocalWorker | None = None) -> Iterator[None]:
        """Kill a worker, if any; pause spouts and ticks until no tuple is in flight. Raises errors of wait().

        While this happens, no other change begins, and wait() in other threads does not return.
        """
        with self._change_lock:
            self._check_open()
            self._changing_thread = threading.get_ident()
            try:
                if killed is not None:
                    self._stuck_executors += killed.kill(_USER_CODE_SECONDS)
                    self._push_assignment()  # others drop messages for the dead one, so the pause can end
                for worker in self._living():
                    worker.counter.paused = True
                    worker.set_active(active=False)
                self.wait(timeout)
                yield
            finally:
                for worker in self._living():
                    worker.counter.paused = False
                if self._active:
                    self.activate()
                self._changing_thread = None

    def _living(self) -> list[LocalWorker]:
        return [worker for worker in self._workers if not worker.is_killed]

    def _fail_lost_tuples(self, moved_tasks: Collection[int]) -> None:
        """Fail lost tuples at their spouts, while none is in flight. `moved_tasks` are moving."""
        killed_tasks = {task for worker in self._workers if worker.is_killed for task in worker.tasks}
        removed_tasks = killed_tasks.union(moved_tasks)
        held = Counter[TreeKey]()  # bolts hold the only copies left, so a tree with more has lost some
        for executor in (each for worker in self._living() for each in worker.executors):
            if isinstance(executor, BoltExecutor):
                held += executor.prune_unacked(removed_tasks)
        self._acker.fail_lost(held, removed_tasks)
