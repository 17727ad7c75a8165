"""The executors of one process: started, fed, watched and ended together. Source: Storm's `Worker`.

Design: docs/design/topologies.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuplewire import tracing
from tuplewire.errors import TopologyError, TuplewireError
from tuplewire.grouping.grouping import Locality
from tuplewire_topology.acking.acker import Acker, AckerTracker
from tuplewire_topology.acking.acker_tasks import PARTS
from tuplewire_topology.authoring.collector import Emitted
from tuplewire_topology.authoring.component import DeadLetter, TaskError, TopologyContext
from tuplewire_topology.authoring.description import ACKER_COMPONENT, ComponentKind, Topology
from tuplewire_topology.authoring.hooks import WorkerContext, WorkerHooks
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import Tuple
from tuplewire_topology.authoring.user_metrics import UserMetrics
from tuplewire_topology.running.bolt_executor import AckerExecutor, BoltExecutor
from tuplewire_topology.running.executor import Executor, Surroundings
from tuplewire_topology.running.heartbeat import Heartbeats, WorkerHeartbeat
from tuplewire_topology.running.idle import Failure, IdleWatch, ProcessReport
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.running.spout_executor import SpoutExecutor
from tuplewire_topology.running.statistics import ExecutorStatistics
from tuplewire_topology.running.timer import Cancel, SystemTimer, Ticks, Timer
from tuplewire_topology.running.tuple_transfer import Transfer
from tuplewire_topology.serial.serializer import MessagePackTupleSerializer, TupleSerializer

_REFRESH_SECONDS = 1.0
_OPEN_SECONDS = 60.0


class ExecutorWorker:
    """Runs the executors of some tasks of a topology.

    tasks: those that run here, whole executors; by default all. conf: settings by Storm's keys, and the
    user's own. link: to other processes; not needed where all tasks are here. timer: by default one that goes
    with the clock. acker, idle: shared by the workers of one process. Tuples are followed by the topology's
    acker tasks (with_ackers); where it has none by `acker`, without a link by one that is made here, and else
    by nobody. error, dead_letter: told of every error, and given every tuple that is given up, for which it
    returns False if that has no place; called in executors' threads. emitted, received: get everything that
    components emit, and that bolts are given, to look at in a test. state_file: where the worker says that it
    is alive, as JSON, at each heartbeat; removed when it has ended in good order. port: that of the worker,
    for its tasks to know.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Iterable[int] | None = None,
        *,
        topology_id: str = "topology",
        conf: Mapping[str, Any] | None = None,
        link: Link | None = None,
        timer: Timer | None = None,
        acker: Acker | None = None,
        idle: IdleWatch | None = None,
        serializer: TupleSerializer | None = None,
        error: Callable[[TaskError], None] = lambda _: None,
        dead_letter: Callable[[DeadLetter], object] = lambda _: False,
        emitted: Callable[[Sequence[Emitted]], None] | None = None,
        received: Callable[[str, Sequence[Tuple]], None] | None = None,
        state_file: Path | None = None,
        port: int = 0,
    ) -> None:
        conf = dict(conf or {})
        self.settings = TopologySettings.from_conf(conf)
        self.tasks = frozenset(topology.tasks if tasks is None else tasks)
        self.idle = idle or IdleWatch()
        self.failure: TuplewireError | None = None
        self._link = link
        self._host = None if link is None else link.worker
        self._lock = threading.Lock()
        self._closed = False
        self._started = False
        self._own_loads: dict[int, float] = {}
        self._queues: dict[int, ReceiveQueue] = {}
        metrics = UserMetrics(self.settings.metrics_series)
        self._hooks = WorkerHooks(conf, WorkerContext(topology_id, topology, self.tasks))
        self._has_ackers = has_ackers = ACKER_COMPONENT in topology.components
        spans = tracing.active()
        self.transfer = Transfer(
            self._queues,
            serializer or MessagePackTupleSerializer(topology),
            link,
            self.idle,
            always_serialize=self.settings.always_serialize,
            ackers=topology.tasks_of(ACKER_COMPONENT) if has_ackers else None,
            size_metrics=self.settings.size_metrics,
            traced=spans is not None,
        )
        if acker is None and link is None and not has_ackers:
            acker = Acker(self.transfer.tell)
        self._surroundings = Surroundings(
            topology=topology,
            conf=conf,
            context=lambda task: TopologyContext(
                topology_id, topology, task, port, self.tasks, metrics, self._hooks.resources
            ),
            transfer=self.transfer.send,
            failed=self._failed,
            error=error,
            dead_letter=dead_letter,
            track=lambda task: AckerTracker(topology, task) if has_ackers else acker,
            idle=self.idle,
            emitted=emitted,
            received=received,
            ready=lambda: link is None or not link.not_connected,
            locality=lambda: dict.fromkeys(self.tasks, Locality.WORKER),
            loads=self.loads,
            tracing=spans,
            serialize=self.transfer.serializer.serialize if self.settings.always_serialize else None,
            metrics=metrics,
        )
        self.executors: list[Executor[Any]] = []
        for executor_tasks in self._executors_of(self.tasks):
            self._make(executor_tasks)
        self._owns_timer = timer is None
        self._timer = timer or SystemTimer(self._timer_failed)
        self._heartbeats = Heartbeats(topology_id, lambda: self.executors, self._problem, state_file)
        self._recurring: list[Cancel] = []
        self._ticks = Ticks(self._timer, self.idle, self.transfer.tell)

    def _executors_of(self, wanted: frozenset[int]) -> Iterator[range]:
        """Yield the tasks of each executor that is wanted; TopologyError where only some of its tasks are."""
        topology = self._surroundings.topology
        for tasks in (each for name in topology.components for each in topology.executors_of(name)):
            here = wanted.intersection(tasks)
            if here and len(here) < len(tasks):
                raise TopologyError(
                    f"tasks {tasks[0]} to {tasks[-1]} share an executor, and a worker gets all or none"
                )
            if here:
                yield tasks

    def _make(self, tasks: range) -> Executor[Any]:
        component = self._surroundings.topology.component_of(tasks[0])
        kind: type[Executor[Any]] = SpoutExecutor if component.kind is ComponentKind.SPOUT else BoltExecutor
        executor = (AckerExecutor if component.id == ACKER_COMPONENT else kind)(tasks, self._surroundings)
        self.executors = [*self.executors, executor]
        self._queues.update(dict.fromkeys(tasks, executor.queue))
        return executor

    @property
    def bolts(self) -> list[BoltExecutor]:
        """The executors of bolts."""
        return [each for each in self.executors if isinstance(each, BoltExecutor)]

    @property
    def spouts(self) -> list[SpoutExecutor]:
        """The executors of spouts."""
        return [each for each in self.executors if isinstance(each, SpoutExecutor)]

    # --- life -------------------------------------------------------------------------------------------

    def start(self, timeout: float = _OPEN_SECONDS) -> None:
        """Say that it is alive, open every task, then take in what arrives; spouts wait for activate().

        Raises the TaskError of one that cannot be opened, and TimeoutError when that takes too long.
        """
        self._heartbeats.beat()
        self._hooks.start()
        self._recurring.append(self._timer.every(self.settings.heartbeat_seconds, self._heartbeats.beat))
        self._open(self.executors, timeout)
        self._recurring.append(self._timer.every(_REFRESH_SECONDS, self._refresh))
        self._started = True

    def _open(self, executors: Sequence[Executor[Any]], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for executor in executors:
            executor.start()
        for executor in executors:
            if not executor.opened.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"{executor} has not been opened within {timeout} s")
        self.check()
        for executor in executors:
            if isinstance(executor, BoltExecutor) and executor.settings.tick_seconds:
                for task in executor.tasks:
                    self._ticks.add(task, executor.settings.tick_seconds)
            period = self.settings.message_timeout_seconds / PARTS
            if self._has_ackers and period and not isinstance(executor, BoltExecutor):
                self._recurring.append(self._timer.every(period, executor.rotate))
        if self._link is not None:
            self._link.open([executor.tasks for executor in executors], self.transfer.receive, self._failed)

    def activate(self) -> None:
        """Have the spouts asked for tuples, once the link is ready."""
        for spout in self.spouts:
            spout.activate()

    def deactivate(self) -> None:
        """Have them asked no longer; what is on the way goes on."""
        for spout in self.spouts:
            spout.deactivate()

    def tick(self, bolts: Iterable[str]) -> None:
        """Give these bolts' tasks here a tick now: the last one, when the topology is over."""
        topology = self._surroundings.topology
        self._ticks.give_last(task for bolt in bolts for task in topology.tasks_of(bolt))

    def finished(self, epoch: int = 0) -> bool:
        """Whether every spout is inactive, or was exhausted in a round of this epoch or later."""
        return all(spout.finished(epoch) for spout in self.spouts)

    def new_epoch(self) -> int:
        """Begin to wait: have exhausted spouts looked at again; returns the epoch for finished()."""
        epoch = self.idle.new_epoch()
        for spout in self.spouts:
            spout.queue.wake()
        return epoch

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is left to do here, or it has failed; False when the time is over first."""
        with self.idle.moved:
            epoch = self.new_epoch()
            return self.idle.moved.wait_for(
                lambda: self.failure is not None or (self.idle.empty and self.finished(epoch)), timeout
            )

    def report(self) -> ProcessReport:
        """Return what this process has to say to who asks whether the topology is over."""
        at_rest, sent, taken = self.idle.traffic(self.finished)
        lost = 0 if self._link is None else self._link.lost()
        failure = None if self.failure is None else Failure.of(self.failure)
        return ProcessReport(at_rest, sent, taken + lost, failure)

    def check(self) -> None:
        """Raise the error by which the worker has failed, if it has."""
        if self.failure is not None:
            raise self.failure

    def close(self, timeout: float = 10.0) -> None:
        """Deactivate the spouts, let the rest finish for at most so many seconds, and end everything.

        What the link has accepted by then is seen off last. Raises TimeoutError, naming it, for an executor
        that does not end, which then holds its thread. Does nothing the second time.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout
        self.deactivate()
        self.wait_idle(timeout)
        self._end_timer()
        for executor in self.executors:
            executor.stop()
        deadline = max(deadline, time.monotonic() + 1.0)
        stuck = self._still_running(deadline)
        if self._link is not None:
            self._link.close(max(1.0, deadline - time.monotonic()))
            stuck = [each for each in stuck if not each.join(1.0)]  # which may have waited for the link
        self._hooks.shutdown()
        self._heartbeats.beat()
        tracing.flush()
        if stuck:
            raise TimeoutError(f"{', '.join(map(repr, stuck))} did not end within {timeout} s")
        if self.failure is None:
            self._heartbeats.end()

    def _end_timer(self) -> None:
        if self._owns_timer:
            self._timer.close()
        self._ticks.close()
        for cancel in self._recurring:
            cancel()

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End at once, as a process that is killed: nothing more goes out, and nobody is told.

        Returns the executors that are still in the user's code after so many seconds; they end after it. The
        link is left to whoever made it.
        """
        with self._lock:
            self._closed = True
        self._end_timer()
        for executor in self.executors:
            executor.abandon()
        return self._still_running(time.monotonic() + timeout)

    def _still_running(self, deadline: float) -> list[Executor[Any]]:
        return [each for each in self.executors if not each.join(max(0.0, deadline - time.monotonic()))]

    # --- moves ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deactivate the spouts, and keep ticks back, so that what is on the way comes to an end."""
        self.idle.paused = True
        self.deactivate()

    def resume(self) -> None:
        """Let the ticks come that are late, each once; spouts are left as they are."""
        self.idle.paused = False
        self._ticks.catch_up()

    def follow(self, wanted: frozenset[int], timeout: float) -> None:
        """Remove the executors of tasks that are not wanted, and add those that are missing."""
        for executor in self.executors:
            if wanted.isdisjoint(executor.tasks):
                self.remove(executor.tasks, timeout)
        for tasks in self._executors_of(wanted):
            if not self.tasks.issuperset(tasks):
                self.add(tasks, timeout)

    def add(self, tasks: range, timeout: float = _OPEN_SECONDS) -> None:
        """Run an executor more. Raises as start() does."""
        self.tasks |= frozenset(tasks)
        self._open([self._make(tasks)], timeout)

    def remove(self, tasks: range, timeout: float) -> None:
        """End an executor once it has processed what it has; TimeoutError if it does not end in time.

        What others here emit to its tasks from now on goes over the link.
        """
        executor = next(each for each in self.executors if each.tasks == tasks)
        self._ticks.remove(tasks)
        for task in tasks:
            del self._queues[task]
        executor.finish()
        if not executor.join(timeout):
            raise TimeoutError(f"{executor} did not end within {timeout} s")
        self.executors = [each for each in self.executors if each is not executor]
        if self._link is not None:
            self._link.leave(tasks)
        self.tasks -= frozenset(tasks)
        self._surroundings.metrics.forget(tasks)
        self.check()

    def _failed(self, error: TuplewireError) -> None:
        """Note an error that ends the worker, and stop every executor."""
        with self._lock:
            if self.failure is None:
                self.failure = error
        for executor in self.executors:
            executor.stop()
        self.idle.changed()

    def _timer_failed(self, error: BaseException) -> None:
        failed = TuplewireError(f"the timer of a worker has a defect: {error!r}")
        failed.__cause__ = error
        self._failed(failed)

    # --- its parts --------------------------------------------------------------------------------------

    def loads(self) -> dict[int, float]:
        """Return the load, from 0 to 1, of every task that is heard of."""
        return {**({} if self._host is None else self._host.loads()), **self._own_loads}

    def _refresh(self) -> None:
        if self._closed:
            return
        loads = ((each.tasks, each.look_at_load()) for each in self.executors)
        self._own_loads = {task: load for tasks, load in loads for task in tasks}
        if self._host is not None:
            self._host.report_loads(self._own_loads)
        for executor in self.executors:
            executor.refresh()

    def _problem(self) -> str:
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self._closed or not self._started:
            return "stopped" if self._closed else "starting"
        return "" if self._link is None else self._link.not_connected

    @property
    def heartbeat(self) -> WorkerHeartbeat:
        """What the worker and its executors were doing at the last heartbeat; for a status service."""
        return self._heartbeats.last

    @property
    def not_ready(self) -> str:
        """Why it does not do its work now, in one line; empty when it does. For a readiness probe."""
        return self._heartbeats.not_ready

    @property
    def busy(self) -> bool:
        """Whether a drain must wait: it has tuples, or sent messages that the worker has not accepted."""
        if self.failure is not None:
            return False
        return not self.idle.empty or (self._link is not None and self._link.pending > 0)

    def disconnect(self) -> None:
        """See AttachedProgram: executors that wait for free space end."""
        if self._link is not None:
            self._link.abort()

    def statistics(self, *, registered: bool = True) -> Sequence[ExecutorStatistics]:
        """Return a snapshot of every executor; see Executor.statistics."""
        found = [executor.statistics(registered=registered) for executor in self.executors]
        return self.transfer.with_sizes(found, self._surroundings.topology)
