"""The executors of one process: started, fed, watched and ended together. Source: Storm's `Worker`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tuplewire.errors import ClosedError, TopologyError, TuplewireError
from tuplewire.topology.acker import Acker
from tuplewire.topology.acker_executor import AckerExecutor
from tuplewire.topology.bolt_executor import BoltExecutor
from tuplewire.topology.collector import Emitted
from tuplewire.topology.description import ACKER_COMPONENT, Kind, Topology
from tuplewire.topology.executor import Executor, ExecutorStatistics, Surroundings
from tuplewire.topology.failure import DeadLetter, TaskError
from tuplewire.topology.follower import AckerFollower, Follower, LocalFollower
from tuplewire.topology.grouping import Locality
from tuplewire.topology.idle import IdleWatch
from tuplewire.topology.link import Link
from tuplewire.topology.receive_queue import AddressedTuples, ReceiveQueue
from tuplewire.topology.rotating_map import PARTS
from tuplewire.topology.serializer import MessagePackTupleSerializer, TupleSerializer
from tuplewire.topology.settings import TopologySettings
from tuplewire.topology.spout_executor import SpoutExecutor
from tuplewire.topology.termination import Failure, ProcessReport
from tuplewire.topology.timer import SystemTimer, Timer
from tuplewire.topology.transfer import Deserializing, Transfer
from tuplewire.topology.tuples import tick

_REFRESH_SECONDS = 1.0
_OPEN_SECONDS = 60.0


def log_only(_: Any) -> None:
    """Leave what is told to the log, where it is already."""


class ExecutorWorker:
    """Runs the executors of some tasks of a topology.

    tasks: those that run here, whole executors; by default all. conf: settings by Storm's keys, and the
    user's own. link: to other processes; not needed where all tasks are here. timer: by default one that goes
    with the clock. acker, idle: shared by the workers of one process; without them tuples are followed by an
    acker of this process where there is no link, and else by the acker tasks of the topology (with_ackers),
    or by nobody. error, dead_letter: told of every error, and given every tuple that is given up; called in
    executors' threads. emitted: gets everything that components emit, to look at in a test.
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
        error: Callable[[TaskError], None] = log_only,
        dead_letter: Callable[[DeadLetter], None] = log_only,
        emitted: Callable[[Sequence[Emitted]], None] | None = None,
    ) -> None:
        conf = dict(conf or {})
        self.settings = TopologySettings.of(conf)
        self.tasks = frozenset(topology.tasks if tasks is None else tasks)
        self.idle = idle or IdleWatch()
        self.failure: TuplewireError | None = None
        self._link = link
        self._lock = threading.Lock()
        self._closed = False
        serializer = serializer or MessagePackTupleSerializer(topology)
        queues: dict[int, ReceiveQueue] = {}
        self._transfer = Transfer(
            queues,
            serializer,
            link,
            self.idle,
            always_serialize=self.settings.always_serialize,
            counts_remote=idle is not None,
        )
        self._has_ackers = has_ackers = ACKER_COMPONENT in topology.components
        if acker is None and link is None and not has_ackers:
            acker = Acker(self.tell)
        surroundings = Surroundings(
            topology_id=topology_id,
            topology=topology,
            conf=conf,
            transfer=self._transfer.send,
            failed=self._failed,
            error=error,
            dead_letter=dead_letter,
            follow=partial(_follower, topology, acker),
            idle=self.idle,
            emitted=emitted,
            locality=lambda: dict.fromkeys(self.tasks, Locality.WORKER),
            loads=self.loads,
        )
        self.spouts: list[SpoutExecutor] = []
        self.bolts: list[BoltExecutor] = []
        self.ackers: list[AckerExecutor] = []
        for component in topology.components.values():
            for executor_tasks in topology.executors_of(component.id):
                if not self._runs(executor_tasks):
                    continue
                if component.id == ACKER_COMPONENT:
                    self.ackers.append(AckerExecutor(executor_tasks, surroundings))
                elif component.kind is Kind.SPOUT:
                    self.spouts.append(SpoutExecutor(executor_tasks, surroundings))
                else:
                    self.bolts.append(BoltExecutor(executor_tasks, surroundings))
        self.executors: list[Executor[Any]] = [*self.ackers, *self.bolts, *self.spouts]
        queues.update({task: executor.queue for executor in self.executors for task in executor.tasks})
        self.deserializing = Deserializing(
            serializer,
            self._transfer.deliver,
            self.idle.executed if idle is not None else partial(self.idle.taken, lost=True),
            ackers=topology.tasks_of(ACKER_COMPONENT) if has_ackers else None,
            size_metrics=self.settings.size_metrics,
        )
        self._owns_timer = timer is None
        self._timer = timer or SystemTimer(self._timer_failed)

    def _runs(self, tasks: range) -> bool:
        here = self.tasks.intersection(tasks)
        if here and len(here) < len(tasks):
            raise TopologyError(
                f"tasks {tasks[0]} to {tasks[-1]} share an executor, and a worker gets all of them or none"
            )
        return bool(here)

    # --- life -------------------------------------------------------------------------------------------

    def start(self, timeout: float = _OPEN_SECONDS) -> None:
        """Open and prepare every task, then take in what arrives; spouts wait for activate().

        Raises the TaskError of one that cannot be opened, and TimeoutError when that takes too long.
        """
        deadline = time.monotonic() + timeout
        for executor in self.executors:
            executor.start()
        for executor in self.executors:
            if not executor.wait_opened(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"{executor} has not been opened within {timeout} s")
        self.check()
        if self._link is not None:
            tasks = [executor.tasks for executor in self.executors]
            self._link.open(tasks, self.deserializing.receive, self._failed)
        for bolt in self.bolts:
            if bolt.settings.tick_seconds:
                for task in bolt.tasks:
                    self._timer.every(bolt.settings.tick_seconds, _Ticks(task, bolt, self.tell))
        self._timer.every(_REFRESH_SECONDS, self._refresh)
        if self._has_ackers and self.settings.message_timeout_seconds:
            rotates: list[AckerExecutor | SpoutExecutor] = [*self.ackers, *self.spouts]
            for each in rotates:
                self._timer.every(self.settings.message_timeout_seconds / PARTS, each.rotate)

    def activate(self) -> None:
        """Have the spouts asked for tuples."""
        for spout in self.spouts:
            spout.activate()

    def deactivate(self) -> None:
        """Have them asked no longer; what is on the way goes on."""
        for spout in self.spouts:
            spout.deactivate()

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do here; False when the time is over first.

        That is: no tuple is queued or being executed, and every spout has had nothing when it was asked
        since, or is inactive. Raises the TaskError by which the worker has failed.
        """
        idle = self.idle.wait(self.at_rest, lambda: self.failure is not None, timeout)
        self.check()
        return idle

    def at_rest(self, epoch: int) -> bool:
        """Whether every spout has had nothing in a round that began in this epoch or later."""
        return all(spout.at_rest(epoch) for spout in self.spouts)

    def report(self) -> ProcessReport:
        """Return what this process has to say to who asks whether the topology is over."""
        at_rest, sent, taken = self.idle.traffic(self._finished)
        lost = 0 if self._link is None else self._link.lost()
        failure = None if self.failure is None else Failure.of(self.failure)
        return ProcessReport(at_rest, sent, taken + lost, failure)

    def _finished(self) -> bool:
        return all(spout.finished for spout in self.spouts)

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
        self.idle.wait(self.at_rest, lambda: self.failure is not None, timeout)
        if self._owns_timer:
            self._timer.close()
        for executor in self.executors:
            executor.stop()
        stuck = [each for each in self.executors if not each.join(max(1.0, deadline - time.monotonic()))]
        if self._link is not None:
            self._link.close(max(1.0, deadline - time.monotonic()))
            stuck = [each for each in stuck if not each.join(1.0)]  # which may have waited for the link
        if stuck:
            raise TimeoutError(f"{', '.join(map(repr, stuck))} did not end within {timeout} s")

    def _failed(self, error: TuplewireError) -> None:
        """Note an error that ends the worker, and stop every executor."""
        with self._lock:
            if self.failure is None:
                self.failure = error
        for executor in self.executors:
            executor.stop()
        self.idle.changed()

    def _timer_failed(self, error: Exception) -> None:
        failed = TuplewireError(f"the timer of a worker has a defect: {error!r}")
        failed.__cause__ = error
        self._failed(failed)

    # --- its parts --------------------------------------------------------------------------------------

    def tell(self, column: AddressedTuples) -> None:
        """Hand a task what no component has emitted: a tick, or what has become of a spout's tuples."""
        self._transfer.tell(column)

    def loads(self) -> dict[int, float]:
        """Return the load, from 0 to 1, of every task that is heard of."""
        loads = dict(self._link.loads()) if self._link is not None else {}
        return loads | self._own_loads()

    def _own_loads(self) -> dict[int, float]:
        return {task: executor.queue.load for executor in self.executors for task in executor.tasks}

    def _refresh(self) -> None:
        if self._closed:
            return
        if self._link is not None:
            self._link.report(self._own_loads())
        for executor in self.executors:
            executor.refresh()

    def statistics(self) -> list[ExecutorStatistics]:
        """Return a snapshot of every executor."""
        return [executor.statistics() for executor in self.executors]


def _follower(topology: Topology, acker: Acker | None, task: int) -> Follower | None:
    if acker is not None:
        return LocalFollower(acker, task)
    return AckerFollower(topology, task) if ACKER_COMPONENT in topology.components else None


class _Ticks:
    """Gives a task its ticks; one that has not come to the last yet gets no other."""

    def __init__(self, task: int, bolt: BoltExecutor, tell: Callable[[AddressedTuples], None]) -> None:
        self._tell = tell
        self._waits = False
        self._column = AddressedTuples(task, [tick(bolt.settings.tick_seconds)], self._done)

    def _done(self) -> None:
        self._waits = False

    def __call__(self) -> None:
        if self._waits:
            return
        self._waits = True
        try:
            self._tell(self._column)
        except ClosedError:
            return  # the executor has ended, and needs none
