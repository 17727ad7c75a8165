"""The executors of one process: starts, connects, monitors, moves and ends them. Source: Storm's `Worker`.

Used by clusters/ and spark/. Owns the executors, transfer, ticks and heartbeat. Not thread-safe. Exceptions:
statistics and states can be read from any thread. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tuplewire import tracing
from tuplewire.errors import TopologyError, TuplewireError, WaitTimeoutError, fresh_copy, to_tuplewire_error
from tuplewire.grouping.grouping import Locality
from tuplewire_topology.acking.acker import RETAINED_ROTATIONS, AckerClient, LocalTracker
from tuplewire_topology.authoring.collector import EmittedTuples
from tuplewire_topology.authoring.component import DeadLetter, TaskError, TopologyContext, start_hooks
from tuplewire_topology.authoring.description import ACKER_COMPONENT, ComponentKind, Topology, WorkerContext
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import Tuple
from tuplewire_topology.authoring.user_metrics import UserMetrics
from tuplewire_topology.running.component_executors import AckerExecutor, BoltExecutor, SpoutExecutor
from tuplewire_topology.running.executor import Executor, ExecutorServices
from tuplewire_topology.running.heartbeat import Heartbeats
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.statistics import ExecutorStatistics, Failure, ProcessReport
from tuplewire_topology.running.timer import Cancel, SimulatedTimer, SystemTimer, TickScheduler, Timer
from tuplewire_topology.running.tuple_transfer import Transfer

_REFRESH_INTERVAL_SECONDS = 1.0
_OPEN_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.005
"""The interval of checks in close() that the executors are idle."""


class ExecutorGroup:
    """Runs the executors of some tasks of a topology.

    Args:
        tasks: The tasks of whole executors; by default all.
        conf: Settings by Storm's keys, and the user's own.
        link: The connection to the other processes of the topology.
        acker: Tracks tuples if the topology has no acker tasks (with_ackers). All workers must be in this
            process, and share it.
        on_error, on_dead_letter, on_emit, on_receive: See ExecutorServices.
        state_file: Gets each heartbeat as JSON; removed after a clean end.
        port: The worker's port, for the contexts of its tasks.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Iterable[int] | None = None,
        *,
        topology_id: str = "topology",
        conf: Mapping[str, Any] | None = None,
        link: Link,
        timer: SimulatedTimer | None = None,
        acker: LocalTracker | None = None,
        on_error: Callable[[TaskError], None] = lambda _: None,
        on_dead_letter: Callable[[DeadLetter], object] = lambda _: False,
        on_emit: Callable[[Sequence[EmittedTuples]], None] | None = None,
        on_receive: Callable[[str, Sequence[Tuple]], None] | None = None,
        state_file: Path | None = None,
        port: int = 0,
    ) -> None:
        conf = dict(conf or {})
        self.settings = TopologySettings.from_conf(conf)
        self.tasks = frozenset(topology.tasks if tasks is None else tasks)
        self.failure: TuplewireError | None = None
        self.link = link
        self._lock = threading.Lock()
        self._closed = False
        self._started = False
        self._local_loads: dict[int, float] = {}
        metrics = UserMetrics(self.settings.metrics_series)
        self._hook_context = hook_context = WorkerContext(topology_id, topology, self.tasks)
        self._hooks = ExitStack()
        self.transfer = transfer = Transfer(topology, link, self.settings, tracing.get_tracing())
        self.counter = transfer.counter
        self._executor_context = ExecutorServices(
            topology=topology,
            conf=conf,
            new_context=lambda task: TopologyContext(
                topology_id, topology, task, port, self.tasks, metrics, hook_context.resources
            ),
            transfer=transfer,
            on_failure=self._on_failure,
            on_error=on_error,
            on_dead_letter=on_dead_letter,
            tracker_of=lambda task: acker if transfer.acker_tasks is None else AckerClient(topology, task),
            on_emit=on_emit,
            on_receive=on_receive,
            locality=lambda: dict.fromkeys(self.tasks, Locality.WORKER),
            loads=lambda: {**({} if link.worker is None else link.worker.loads()), **self._local_loads},
            metrics=metrics,
        )
        self.executors: list[Executor[Any]] = []
        self._removed_executors: list[Executor[Any]] = []  # that have not ended yet
        for executor_tasks in self._executor_ranges(self.tasks):
            self._create_executor(executor_tasks)
        self._timer: Timer = timer or SystemTimer(lambda error: self._on_failure(to_tuplewire_error(error)))
        self.heartbeats = Heartbeats(topology_id, lambda: self.executors, self._group_problem, state_file)
        self._cancels: list[Cancel] = []
        self._ticks = TickScheduler(self._timer, self.counter, self.transfer.enqueue)

    def _executor_ranges(self, assigned: frozenset[int]) -> Iterator[range]:
        """Yield the tasks of each assigned executor; TopologyError if only some of its tasks are assigned."""
        topology = self._executor_context.topology
        for tasks in (each for name in topology.components for each in topology.executors_of(name)):
            local = assigned.intersection(tasks)
            if local and len(local) < len(tasks):
                names = f"tasks {tasks[0]} to {tasks[-1]}"
                raise TopologyError(f"{names} share an executor: an executor group gets all or none")
            if local:
                yield tasks

    def _create_executor(self, tasks: range) -> Executor[Any]:
        component = self._executor_context.topology.component_of(tasks[0])
        kind: type[Executor[Any]] = SpoutExecutor if component.kind is ComponentKind.SPOUT else BoltExecutor
        executor = (AckerExecutor if component.id == ACKER_COMPONENT else kind)(tasks, self._executor_context)
        self.executors = [*self.executors, executor]  # a new list: other threads iterate over the old one
        self.transfer.queues.update(dict.fromkeys(tasks, executor.queue))
        return executor

    @property
    def spouts(self) -> list[SpoutExecutor]:
        """The executors of spouts."""
        return [each for each in self.executors if isinstance(each, SpoutExecutor)]

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the tasks; spouts wait for set_active(). Raises TopologyError, TaskError, WaitTimeoutError."""
        self.heartbeats.beat()
        start_hooks(self._executor_context.conf, self._hook_context, self._hooks)
        self._cancels.append(self._timer.every(self.settings.heartbeat_seconds, self.heartbeats.beat))
        self._open(self.executors)
        self._cancels.append(self._timer.every(_REFRESH_INTERVAL_SECONDS, self._refresh_loads))
        self._started = True

    def _open(self, executors: Sequence[Executor[Any]]) -> None:
        deadline = time.monotonic() + _OPEN_TIMEOUT_SECONDS
        for executor in executors:  # all start before the first wait, so tasks open in parallel
            executor.start()
        late = [each for each in executors if not each.opened.wait(max(0.0, deadline - time.monotonic()))]
        self.raise_if_failed()
        if self._closed:  # while a task was being opened
            return
        for executor in executors:
            if isinstance(executor, BoltExecutor) and executor.settings.tick_seconds:
                for task in executor.tasks:
                    self._ticks.add(task, executor.settings.tick_seconds)
            period = self.settings.message_timeout_seconds / RETAINED_ROTATIONS
            is_tracking = not isinstance(executor, BoltExecutor)  # ackers and spouts
            if is_tracking and period and self.transfer.acker_tasks is not None:
                self._cancels.append(self._timer.every(period, executor.rotate))
        # After all tasks are open, because the queues fill from now on. A late one still needs its tuples.
        self.link.subscribe([each.tasks for each in executors], self.transfer.receive, self._on_failure)
        if late:
            raise WaitTimeoutError(f"{late[0]} has not been opened within {_OPEN_TIMEOUT_SECONDS:g} s")

    def set_active(self, *, active: bool) -> None:
        """Request tuples from the spouts, once the link is connected, or stop; tuples in flight continue."""
        for spout in self.spouts:
            spout.set_active(active=active)

    def send_final_tick(self, bolts: Iterable[str]) -> None:
        """Send the final tick to the tasks of these bolts, at the end of the topology."""
        topology = self._executor_context.topology
        self._ticks.send_final(task for bolt in bolts for task in topology.tasks_of(bolt))

    def report(self, *, new_epoch: bool = False) -> ProcessReport:
        """Return the state of this process. new_epoch: exhausted spouts count as busy until polled again."""
        if new_epoch:
            self.counter.detection_number += 1
            for spout in self.spouts:
                spout.queue.wake()
        spouts, epoch = self.spouts, self.counter.detection_number
        idle, sent, received = self.counter.snapshot(lambda: all(each.is_finished(epoch) for each in spouts))
        failure = None if self.failure is None else Failure.of(self.failure)
        return ProcessReport(idle, sent, received + self.link.lost_messages(), failure)

    def raise_if_failed(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise fresh_copy(self.failure)

    def close(self, timeout: float = 10.0) -> None:
        """Deactivate the spouts, wait up to `timeout` seconds until idle, then end executors and link.

        Raises WaitTimeoutError if an executor does not end (its thread stays), and errors of Link.close().
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout
        self.set_active(active=False)
        while self.failure is None and not self.report().is_idle and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._end_timer()
        for executor in self.executors:
            executor.stop()
        deadline = max(deadline, time.monotonic() + 1.0)  # also if the wait has used up the time
        running = self._join_executors(deadline)
        with self._hooks:  # shut down also if the link cannot be closed
            self.link.close(max(1.0, deadline - time.monotonic()))
            running = [each for each in running if not each.join(1.0)]  # it may have waited for space
        self.heartbeats.beat()
        tracing.flush()
        if running:
            raise WaitTimeoutError(f"{', '.join(map(repr, running))} did not end within {timeout} s")
        if self.failure is None:  # the state file of a failed worker remains
            self.heartbeats.remove_file()

    def _end_timer(self) -> None:
        if isinstance(self._timer, SystemTimer):
            self._timer.close()
        self._ticks.remove(self.tasks)
        for cancel in self._cancels:
            cancel()

    def _join_executors(self, deadline: float) -> list[Executor[Any]]:
        executors = [*self.executors, *self._removed_executors]
        return [each for each in executors if not each.join(max(0.0, deadline - time.monotonic()))]

    # --- moves ------------------------------------------------------------------------------------------

    def update_tasks(self, assigned: frozenset[int]) -> None:
        """Remove the executors of tasks that are not assigned, and add the missing ones."""
        for executor in self.executors:
            if assigned.isdisjoint(executor.tasks):
                self.remove_executor(executor.tasks, _OPEN_TIMEOUT_SECONDS)
        for tasks in self._executor_ranges(assigned):
            if not self.tasks.issuperset(tasks):
                self.add_executor(tasks)

    def add_executor(self, tasks: range) -> None:
        """Add and start an executor. Raises the errors of start()."""
        self.tasks |= frozenset(tasks)
        self._open([self._create_executor(tasks)])

    def remove_executor(self, tasks: range, timeout: float) -> None:
        """End an executor once it has emptied its queue, and remove it; WaitTimeoutError if it ends later."""
        executor = next(each for each in self.executors if each.tasks == tasks)
        self._ticks.remove(tasks)
        for task in tasks:  # from now on, other executors here send to these tasks over the link
            del self.transfer.queues[task]
        executor.stop_when_empty()
        has_ended = executor.join(timeout)
        self.executors = [each for each in self.executors if each is not executor]
        self.link.unsubscribe(tasks)
        self.tasks -= frozenset(tasks)
        self._executor_context.metrics.remove_tasks(tasks)
        self.raise_if_failed()
        if not has_ended:
            self._removed_executors.append(executor)
            raise WaitTimeoutError(f"{executor} did not end within {timeout} s")

    def _on_failure(self, error: TuplewireError) -> None:
        with self._lock:
            if self.failure is None:  # the first error is the cause; others may follow from it
                self.failure = error
        for executor in self.executors:
            executor.stop()

    # --- state ------------------------------------------------------------------------------------------

    def _refresh_loads(self) -> None:
        if self._closed:  # a shared timer may call this once more
            return
        loads = ((each.tasks, each.update_load()) for each in self.executors)
        self._local_loads = {task: load for tasks, load in loads for task in tasks}
        if self.link.worker is not None:
            self.link.worker.report_loads(self._local_loads)
        for executor in self.executors:
            executor.refresh_groupings()

    def _group_problem(self) -> str:
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self._closed or not self._started:
            return "stopped" if self._closed else "starting"
        return self.transfer.missing_connections

    @property
    def not_ready_reason(self) -> str:
        """The reason, in one line, why the worker is not ready, for a readiness probe; empty if it is."""
        return self.heartbeats.not_ready_reason

    @property
    def is_busy(self) -> bool:
        """True if a drain must wait for tuples, or for sent messages that the worker has not accepted."""
        if self.failure is not None:  # its tuples are never processed
            return False
        return self.counter.in_progress > 0 or self.link.pending_messages > 0

    def disconnect(self) -> None:
        """Close the link, which ends executors that wait for free space. See AttachedProgram in worker.py."""
        self.link.abort()

    def statistics(self) -> Sequence[ExecutorStatistics]:
        """Return a snapshot of every executor; see Executor.statistics."""
        return [each.statistics(self.transfer.received_bytes(each.tasks)) for each in self.executors]
