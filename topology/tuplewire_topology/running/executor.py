"""Executors: a thread that runs some tasks of one component, fed by one receive queue.

Used by executor_group.py. Owns the thread, its queue and its tasks. Spouts and bolts run on this thread;
gauges of users also on threads that read metrics. Not thread-safe. Exceptions: the methods for the worker.
Design: docs/design/acking.md. Source: Storm's `Executor`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from tuplewire.errors import ClosedError
from tuplewire.grouping.grouping import LoadSource, LocalitySource
from tuplewire.text.events import event_logger
from tuplewire_topology.acking.acker import TupleTracker, TupleUpdates
from tuplewire_topology.authoring.collector import EmittedTuples, Outbox
from tuplewire_topology.authoring.component import DeadLetter, TaskError, TaskHook, TopologyContext
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import ErrorPolicy, TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples, Roots, Tuple
from tuplewire_topology.authoring.user_metrics import UserMetrics
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.running.statistics import (
    ExecutorActivity,
    ExecutorLoad,
    ExecutorStatistics,
    Pulse,
    Tally,
)
from tuplewire_topology.running.task_router import TaskRouter
from tuplewire_topology.running.tuple_transfer import Transfer

logger = event_logger(__name__)

MAX_BATCH = 1024
"""The maximum number of tuples that an executor takes from its queue, or emits, before it sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorServices:
    """Services of the process that an executor uses. All callbacks run on the executor's thread.

    Attributes:
        on_failure: Called with the error that ends an executor.
        on_error: Called with each error that a task raises or reports.
        on_dead_letter: Accepts tuples dropped by the error policy; returns False if it cannot store one.
        tracker_of: Returns the tracker of a task's tuples. Without one, a spout's tuple is acked once it is
            sent, as in Storm without ackers.
        on_emit: Called with emitted tuples before they are sent.
        on_receive: Called with each column of a bolt before it is executed.
    """

    topology: Topology
    conf: Mapping[str, Any]
    new_context: Callable[[int], TopologyContext]
    transfer: Transfer
    on_failure: Callable[[TaskError], None]
    on_error: Callable[[TaskError], None]
    on_dead_letter: Callable[[DeadLetter], object]
    tracker_of: Callable[[int], TupleTracker | None] = lambda _: None
    on_emit: Callable[[Sequence[EmittedTuples]], None] | None = None
    on_receive: Callable[[str, Sequence[Tuple]], None] | None = None
    locality: LocalitySource = dict
    loads: LoadSource = dict
    metrics: UserMetrics = field(default_factory=UserMetrics)


@dataclass(slots=True, eq=False)
class Task:
    """State of any task. The next flush reports `pending_acks` and `pending_fails` to the acker."""

    id: int
    outbox: Outbox
    router: TaskRouter
    tracker: TupleTracker | None
    pending_acks: list[Roots] = field(default_factory=list)
    pending_fails: list[Roots] = field(default_factory=list)
    hooks: Sequence[TaskHook] = ()


TaskKind = TypeVar("TaskKind", bound=Task)


class Executor(ABC, Generic[TaskKind]):
    """Runs tasks of one component on its own thread. `tally` has its totals, `pulse` its current activity."""

    open_activity = ExecutorActivity.PREPARE
    close_activity = ExecutorActivity.CLEANUP

    def __init__(self, tasks: range, executor_context: ExecutorServices) -> None:
        self.tasks = tasks
        self.component = executor_context.topology.component_of(tasks[0])
        self.conf = {**executor_context.conf, **self.component.configuration}  # the component's settings win
        self.settings = TopologySettings.from_conf(self.conf)
        self.queue = ReceiveQueue(self.settings.receive_queue_tuples)
        self.tally = Tally()
        self.pulse = Pulse(tasks[0])
        self._executor_context = executor_context
        self._tasks: dict[int, TaskKind] = {}
        self._load = ExecutorLoad()
        self._refresh_due = self._rotation_due = False
        self._stopping = self._stops_when_empty = self._is_killed = False
        self.opened = threading.Event()
        """Set once all tasks are open, or one could not be opened."""
        name = f"executor {self.component.id} {tasks[0]}-{tasks[-1]}"
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.component.id!r} tasks {self.tasks[0]}-{self.tasks[-1]}>"

    # --- for its worker, from any thread ------------------------------------------------------------

    def start(self) -> None:
        """Open or prepare the tasks, then run them, on a new thread."""
        self.thread.start()

    def refresh_groupings(self) -> None:
        """Have the groupings read loads and distances again before the next send."""
        self._refresh_due = True

    def rotate(self) -> None:
        """Request to advance the message timeout by half, which fails expired tuples."""
        self._rotation_due = True
        self.queue.wake()

    def stop(self) -> None:
        """Request the end after the current tuple; queued tuples are not processed. Does not wait."""
        self._stopping = True
        self.queue.close()

    def stop_when_empty(self) -> None:
        """Request the end once the queue is empty. Does not wait."""
        self._stops_when_empty = True
        self.queue.wake()

    def kill(self) -> None:
        """End like a killed process: send nothing more, and do not close spouts and bolts."""
        self._is_killed = True
        self.stop()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; return False after `timeout` seconds."""
        if self.thread.ident is not None:  # join() raises for a thread that was never started
            self.thread.join(timeout)
        return not self.thread.is_alive()

    def update_load(self) -> float:
        """Return the current load, 0 to 1; call this about once a second. See ExecutorLoad."""
        counts, queue = self.tally.live_totals(self.pulse), self.queue.statistics()
        busy_seconds = counts.execute.seconds + counts.sending_seconds
        wait = self._load.update(queue.arrived, counts.executed, busy_seconds)
        return max(queue.fill_ratio, wait)  # a nearly full queue is a load even if tuples are fast

    @property
    def pending_tuples(self) -> int:
        """The number of tracked tuples of spouts in flight; 0 for bolts, and without a tracker."""
        return 0

    def statistics(self, received_bytes: Mapping[str, int]) -> ExecutorStatistics:
        """Return a snapshot with the metrics of tasks, which may call gauges of the user."""
        metrics = self._executor_context.metrics
        return ExecutorStatistics(
            self.component.id,
            self.tasks,
            self.tally.snapshot(),
            self.queue.statistics(),
            self.pending_tuples,
            metrics.collect(self.tasks),
            metrics.count_omitted(self.tasks),
            received_bytes,
        )

    # --- its thread -----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            for task in self.tasks:
                self.pulse.enter(task, self.open_activity)
                self._tasks[task] = self._call_user_code(task, partial(self._open_task, task))
            self.pulse.activity = ExecutorActivity.WAITING
            self.opened.set()
            while not self._stopping:
                self.pulse.iteration_start = self.pulse.clock()
                self._run_once()
                if self._stops_when_empty and self.queue.close_if_empty():
                    break
        except TaskError as error:
            self._executor_context.on_failure(error)
        except ClosedError:
            # Killed, its link was closed, or a target executor has stopped. Another report has the cause.
            extra = {"component": self.component.id, "tasks": list(self.tasks)}
            logger.info("executor.interrupted", extra=extra)
        except BaseException as error:  # noqa: BLE001 - a user's sys.exit(), or a defect here
            self._executor_context.on_failure(self._report_error(self.pulse.task, error))
        finally:
            self.queue.close()
            self.opened.set()  # the starter must not wait for tasks that could not be opened
            if not self._is_killed:
                self._close_all()
            self.pulse.activity = ExecutorActivity.ENDED

    def _close_all(self) -> None:
        for task in self._tasks.values():
            self.pulse.enter(task.id, self.close_activity)
            for close in (partial(self._close_task, task), *(partial(hook.cleanup) for hook in task.hooks)):
                try:
                    close()
                except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                    self._executor_context.on_failure(self._report_error(task.id, error))

    def _call_user_code(self, task: int, call: Callable[[], Any]) -> Any:
        """Call user code; an error from it ends the executor under every policy."""
        try:
            return call()
        except Exception as error:
            raise self._report_error(task, error) from error

    @abstractmethod
    def _open_task(self, task: int) -> TaskKind:
        """Return a task with its spout or bolt open."""

    def _run_once(self) -> None:
        self.pulse.activity = ExecutorActivity.WAITING
        for column in self.queue.consume(MAX_BATCH, self._poll_timeout()):
            self._process(column)
        if self._rotation_due:  # requested by a timer, done here: trees and pending tuples have no lock
            self._rotation_due = False
            self._rotate()

    def _poll_timeout(self) -> float | None:
        """Return the seconds to wait for tuples, or None to wait without limit."""
        return None

    @abstractmethod
    def _process(self, column: AddressedTuples) -> None:
        """Process a column, and then call _on_processed() with it."""

    def _on_processed(self, column: AddressedTuples) -> None:
        if column.on_executed is not None:
            column.on_executed()
        self._executor_context.transfer.counter.add(-len(column.tuples))

    def _rotate(self) -> None:
        """Drop tracked tuples that exceed the timeout; bolts track none."""

    def _close_task(self, task: TaskKind) -> None:
        """Let a task's spout or bolt release its resources; acker tasks have none."""

    def _task_arguments(self, task: int) -> tuple[int, Outbox, TaskRouter, TupleTracker | None]:
        """Return the arguments that all kinds of Task share."""
        context = self._executor_context
        router = TaskRouter(context.topology, task, context.locality, context.loads)
        outbox = Outbox(context.topology, task)
        if context.transfer.settings.always_serialize:
            outbox.serialize = context.transfer.serializer.serialize
        return task, outbox, router, context.tracker_of(task)

    # --- errors -----------------------------------------------------------------------------------------

    def _report_error(self, task: int, error: BaseException, message: Tuple | None = None) -> TaskError:
        task_error = TaskError(self.component.id, task, error, message)
        self.tally.errors += 1
        logger.warning("task.error", extra={"task": task, "reason": str(task_error)})
        self._executor_context.on_error(task_error)
        return task_error

    def _use_policy(self, task: int, error: Exception, message: Tuple | None = None, tries: int = 0) -> bool:
        """Apply the error policy after `tries` calls; return True for a dead letter, or raise TaskError."""
        task_error = self._report_error(task, error, message)
        policy = self.settings.error_policy
        if policy is ErrorPolicy.FAIL:
            raise task_error from error
        if policy is not ErrorPolicy.DEAD_LETTER or message is None:  # next_tuple() raises without a tuple
            return False
        return self._executor_context.on_dead_letter(DeadLetter(message, task_error, tries)) is not False

    # --- emitted tuples -----------------------------------------------------------------------------------

    def _flush(self, task: TaskKind) -> list[EmittedTuples]:
        """Send and return the tuples that a task has emitted; report acked and failed tuples to the acker."""
        if self._is_killed:
            raise ClosedError("this executor's worker was killed")
        if self._refresh_due:  # requested by a timer, done here: only this thread uses the groupings
            self._refresh_due = False
            for each in self._tasks.values():
                each.router.refresh()
        self.tally.count_acked()
        emitted = task.outbox.take_all()
        started_keys = self._start_tracking(task, emitted)
        unsent: list[Tuple] = []
        columns: list[AddressedTuples] = []
        for batch in emitted:
            copies = self._route_columns(task, batch, unsent)
            stream = batch.source.stream.name
            self.tally.emitted_by[stream] += len(batch.tuples)
            for hook in task.hooks:
                self._call_user_code(task.id, partial(hook.on_emit, batch.tuples))
            self.tally.transferred_by[stream] += sum(len(column.tuples) for column in copies)
            columns += copies
        # The acker gets each copy before it is in flight, so no count is 0 too early (docs/design/acking.md).
        columns += self._take_acker_reports(task, started_keys, columns, unsent)
        if emitted and self._executor_context.on_emit is not None:
            self._executor_context.on_emit(emitted)
        if columns:
            self._transfer(task, columns)
        if task.pending_fails:  # copies that could not be sent
            self._transfer(task, self._take_acker_reports(task))
        return emitted

    def _transfer(self, task: Task, columns: Sequence[AddressedTuples]) -> None:
        """Send columns, waiting for free space, and measure the time."""
        pulse = self.pulse
        activity, began = pulse.activity, pulse.clock()
        pulse.activity = ExecutorActivity.SENDING  # a wait for free space is not a stuck call
        self.tally.send_start = began
        self._executor_context.transfer.send(columns, partial(self._on_undeliverable, task))
        pulse.enter(pulse.task, activity)
        self.tally.send_start = None
        self.tally.sending_seconds += pulse.clock() - began

    def _route_columns(self, task: Task, batch: EmittedTuples, unsent: list[Tuple]) -> list[AddressedTuples]:
        """Return the columns of a batch; add tuples to `unsent` if a grouping raises an error for them."""
        if batch.target_task is not None:
            return [AddressedTuples(batch.target_task, batch.tuples)]
        try:
            routes = task.router.route(batch.source.stream.name, batch.tuples)
        except Exception as error:  # noqa: BLE001 - a grouping may be the user's code
            if len(batch.tuples) > 1:  # only the tuple that caused the error may fail
                singles = [EmittedTuples(batch.source, None, [message]) for message in batch.tuples]
                return [column for single in singles for column in self._route_columns(task, single, unsent)]
            unsent += batch.tuples
            self._use_policy(task.id, error, batch.tuples[0])
            return []
        take = batch.tuples.__getitem__
        return [AddressedTuples(target, list(map(take, positions))) for target, positions in routes.items()]

    def _take_acker_reports(
        self,
        task: Task,
        started_keys: Sequence[Any] = (),
        columns: Sequence[AddressedTuples] = (),
        unsent: Sequence[Tuple] = (),
    ) -> list[AddressedTuples]:
        acked, task.pending_acks = task.pending_acks, []
        failed, task.pending_fails = task.pending_fails, []
        if task.tracker is None:
            return []
        return task.tracker.report(TupleUpdates(task.id, started_keys, columns, unsent, acked, failed))

    def _start_tracking(self, task: TaskKind, emitted: Sequence[EmittedTuples]) -> list[Any]:
        """Start to track emitted tuples; return the tracker's keys for tuples of spouts."""
        if task.tracker is not None:
            task.tracker.renumber(emitted)
        return []

    def _on_undeliverable(self, task: Task, message: Tuple, error: Exception) -> None:
        if message.roots:
            task.pending_fails.append(message.roots)
        self._use_policy(task.id, error, message)
