"""The executors of spouts, of bolts and of acker tasks.

Used by executor_group.py. Owns the spouts and their pending tuples, the bolts and their unacked tuples, and
the trees of the acker. Not thread-safe. All methods run on the thread of the executor. Exceptions: methods
marked "Thread-safe". Source: `SpoutExecutor`, `BoltExecutor` and `Acker` of Storm, where the acker is a bolt.
Design: docs/design/acking.md.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tuplewire.errors import MalformedTupleError
from tuplewire_topology.acking.acker import AckerTrees, RotatingMap, TreeKey, pack_uint64, tracking_keys
from tuplewire_topology.authoring.collector import EmittedTuples, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.component import Bolt, Spout
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, AddressedTuples, Tuple, TupleSource
from tuplewire_topology.running.executor import MAX_BATCH, Executor, ExecutorServices, Task
from tuplewire_topology.running.statistics import CurrentColumn, ExecutorActivity
from tuplewire_topology.running.tuple_transfer import TaskTracer

_TASK_BUDGET_SECONDS = 0.001
"""The time after which a task stops emitting, so that its tuples are sent."""

_CONNECT_POLL_SECONDS = 0.01
"""The interval at which the executor checks the connections before it becomes active."""

_NOT_FINISHED = -1

InFlightTuple = tuple[Any, TupleSource, float]
"""The message id of a tuple in flight, its stream, and the time of its emission, by the pulse's clock."""


@dataclass(slots=True, eq=False)
class SpoutTask(Task):
    """A task of a spout. `pending` has its tuples in flight, by the tracker's keys."""

    spout: Spout = field(kw_only=True)
    pending: RotatingMap[Any, InFlightTuple] = field(default_factory=RotatingMap)


class SpoutExecutor(Executor[SpoutTask]):
    """Requests tuples from spouts while it is active, and passes the outcomes of their tuples to them.

    Backpressure: the transfer waits for free space, and a task that has reached `max_spout_pending` is not
    called. If no task can be called, the executor waits on its queue; if none emits, it polls again after
    `spout_wait_seconds`. It becomes active once the required connections exist.
    """

    open_activity = ExecutorActivity.OPEN
    close_activity = ExecutorActivity.CLOSE

    def __init__(self, tasks: range, executor_context: ExecutorServices) -> None:
        super().__init__(tasks, executor_context)
        self._target_active = False
        self._active = False
        self._has_emitted = False
        self._may_emit = False
        self._finished_epoch = _NOT_FINISHED
        """The epoch of the last round if every task was exhausted in it, else _NOT_FINISHED."""
        has_ackers = executor_context.transfer.acker_tasks is not None  # LocalTracker has no timeout
        self._has_timeout = has_ackers and self.settings.message_timeout_seconds > 0

    @property
    def pending_tuples(self) -> int:
        """The number of tracked tuples in flight; 0 without a tracker."""
        return sum(len(task.pending) for task in list(self._tasks.values()))

    def set_active(self, *, active: bool) -> None:
        """Start or stop to request tuples from the spouts. Thread-safe."""
        self._target_active = active
        self.queue.wake()

    def is_finished(self, epoch: int = 0) -> bool:
        """Return True if inactive, or if a round since this epoch found every task exhausted. Thread-safe."""
        if not self._target_active:
            return not self._active
        return self._active and self._finished_epoch >= epoch

    def _open_task(self, task: int) -> SpoutTask:
        opened = SpoutTask(*self._task_arguments(task), spout=deepcopy(self.component.prototype))
        if (tracing := self._executor_context.transfer.tracing) is not None:
            opened.outbox.on_emit = TaskTracer(tracing, self.component, task).trace_emit
        collector = SpoutOutputCollector(opened.outbox, partial(self._report_error, task), self.queue.wake)
        context = self._executor_context.new_context(task)
        opened.spout.open(self.conf, context, collector)
        opened.hooks = context.hooks
        return opened

    def _close_task(self, task: SpoutTask) -> None:
        task.spout.close()

    def _run_once(self) -> None:
        super()._run_once()
        # Activation waits for the connections to other workers; deactivation does not.
        needs_change = self._active != self._target_active
        if needs_change and (self._active or not self._executor_context.transfer.missing_connections):
            self._apply_target_state()
        if self._active and not self._stopping:
            self._poll_spouts()

    def _poll_timeout(self) -> float | None:
        if self._active and self._has_emitted:
            return 0.0
        if self._active and self._may_emit:
            return self.settings.spout_wait_seconds
        return _CONNECT_POLL_SECONDS if self._target_active and not self._active else None

    def _apply_target_state(self) -> None:
        active = self._target_active
        for task in self._tasks.values():
            self.pulse.enter(task.id, ExecutorActivity.ACTIVATE if active else ExecutorActivity.DEACTIVATE)
            self._call_user_code(task.id, task.spout.activate if active else task.spout.deactivate)
            self._send(task)  # deactivate() may emit the last tuples
        self._finished_epoch = _NOT_FINISHED
        self._active = active

    def _process(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        now = self.pulse.clock()
        self.pulse.task = task.id
        for outcome in column.tuples:
            try:
                keys = tracking_keys(outcome)
            except MalformedTupleError as error:
                self._report_error(task.id, error)
                continue
            processed = outcome.source_stream == ACK_STREAM
            for key in keys:
                if (pending := task.pending.pop(key)) is not None:  # otherwise it has timed out
                    self._deliver(task, pending, now, processed=processed)
        self._send_after_outcomes(task)
        self._on_processed(column)

    def _send_after_outcomes(self, task: SpoutTask) -> None:
        """Send tuples that a spout emitted when it got outcomes; the spout may have more tuples now."""
        self._finished_epoch = _NOT_FINISHED
        self._send(task)

    def _deliver(self, task: SpoutTask, pending: InFlightTuple, now: float, *, processed: bool) -> None:
        message_id, source, emit_time = pending
        tally, pulse = self.tally, self.pulse
        pulse.activity = ExecutorActivity.ACK if processed else ExecutorActivity.FAIL
        pulse.step_count += 1
        try:
            if processed:
                tally.uncounted_acks.append(source)
                tally.complete.count += 1
                tally.complete.seconds += now - emit_time
                task.spout.ack(message_id)
            else:
                tally.failed_by[source.stream_id] += 1
                task.spout.fail(message_id)
            for hook in task.hooks:
                (hook.on_ack if processed else hook.on_fail)(message_id)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._use_policy(task.id, error)

    def _rotate(self) -> None:
        for task in self._tasks.values():
            expired = task.pending.rotate()
            self.pulse.task = task.id
            for pending in expired.values():
                self._deliver(task, pending, self.pulse.clock(), processed=False)
            if expired:
                self._send_after_outcomes(task)

    def _poll_spouts(self) -> None:
        """Request tuples from each task that may emit, for a short time each."""
        # Read first: a wait that starts now needs another round.
        epoch = self._executor_context.transfer.counter.detection_number
        self._has_emitted = self._may_emit = False
        for task in self._tasks.values():
            self._may_emit |= self._poll_task(task)
            if len(task.outbox):
                self._has_emitted = True
                self._finished_epoch = _NOT_FINISHED  # before the send: tuples may be processed immediately
                self._send(task)
        is_round_finished = not self._has_emitted and all(map(self._is_exhausted, self._tasks.values()))
        self._finished_epoch = epoch if is_round_finished else _NOT_FINISHED

    def _is_exhausted(self, task: SpoutTask) -> bool:
        """Return True if a task is exhausted, and no pending tuple can time out and be emitted again."""
        exhausted = self._call_user_code(task.id, lambda: task.spout.exhausted)
        return exhausted and not (self._has_timeout and len(task.pending))

    def _poll_task(self, task: SpoutTask) -> bool:
        """Let a task emit until it has no tuples, or reaches a limit; return False if it may not emit."""
        deadline = time.monotonic() + _TASK_BUDGET_SECONDS
        bound = self.settings.max_spout_pending or sys.maxsize  # 0: no limit
        outbox, pulse = task.outbox, self.pulse
        polled = False
        pulse.enter(task.id, ExecutorActivity.NEXT_TUPLE)
        try:
            while len(task.pending) + len(outbox) < bound and not task.spout.exhausted:
                polled = True
                before = len(outbox)
                pulse.step_count += 1
                task.spout.next_tuple()
                if len(outbox) == before or len(outbox) >= MAX_BATCH or time.monotonic() >= deadline:
                    break
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._use_policy(task.id, error)
        return polled

    def _send(self, task: SpoutTask) -> None:
        """Send the tuples that a task has emitted; without a tracker they are then acked."""
        emitted = self._flush(task)
        if task.tracker is None:
            for batch in emitted:
                for message in batch.tuples:
                    for _, message_id in message.roots:
                        self.tally.acked_by[batch.source.stream_id] += 1
                        self.pulse.enter(task.id, ExecutorActivity.ACK)
                        for ack in (task.spout.ack, *(hook.on_ack for hook in task.hooks)):
                            self._call_user_code(task.id, partial(ack, message_id))

    def _start_tracking(self, task: SpoutTask, emitted: Sequence[EmittedTuples]) -> list[Any]:
        if task.tracker is None:
            return []
        sources = [batch.source for batch in emitted for message in batch.tuples if message.roots]
        started = task.tracker.start_tracking(emitted)
        now = self.pulse.clock()
        for (key, message_id), source in zip(started, sources, strict=True):
            task.pending.put(key, (message_id, source, now))
        return [key for key, _ in started]


@dataclass(slots=True, eq=False)
class BoltTask(Task):
    """A task of a bolt. `execute` calls the bolt, within a span if the tuple is traced.

    `unacked` has the tracked tuples neither acked nor failed, with their start time, or 0 if not timed.
    """

    bolt: Bolt = field(kw_only=True)
    execute: Callable[[Tuple], None] = field(kw_only=True)
    unacked: dict[Tuple, float] = field(default_factory=dict)


class BoltExecutor(Executor[BoltTask]):
    """Executes bolts, one column at a time. Sends emitted tuples after each column, or MAX_BATCH tuples."""

    def prune_unacked(self, removed_spouts: Collection[int]) -> Counter[TreeKey]:
        """Return the number of unacked tuples by root; forget tuples of `removed_spouts`. Only at rest."""
        held: Counter[TreeKey] = Counter()
        for task in self._tasks.values():
            for message in list(task.unacked):
                if any(root[0] in removed_spouts for root in message.roots):
                    del task.unacked[message]
                else:
                    held.update(message.roots)
        return held

    def _open_task(self, task: int) -> BoltTask:
        bolt = deepcopy(self.component.prototype)  # each task has its own bolt
        bolt_task = BoltTask(*self._task_arguments(task), bolt=bolt, execute=bolt.execute)
        collector = OutputCollector(
            bolt_task.outbox,
            partial(self._on_ack, bolt_task),
            partial(self._on_fail, bolt_task),
            partial(self._report_error, task),
        )
        context = self._executor_context.new_context(task)
        bolt.prepare(self.conf, context, collector)
        bolt_task.hooks = context.hooks
        if (tracing := self._executor_context.transfer.tracing) is not None:
            tracer = TaskTracer(tracing, self.component, task)
            bolt_task.outbox.on_emit, bolt_task.execute = tracer.trace_emit, tracer.wrap(bolt.execute)
        return bolt_task

    def _close_task(self, task: BoltTask) -> None:
        task.bolt.cleanup()

    def _process(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        if self._executor_context.on_receive is not None:
            self._executor_context.on_receive(self.component.id, column.tuples)
        execute, pulse, tuples = task.execute, self.pulse, column.tuples
        began, sending = pulse.clock(), self.tally.sending_seconds
        self.tally.column = CurrentColumn(began, sending, pulse.step_count, tuples[0].source, len(tuples))
        pulse.enter(task.id, ExecutorActivity.EXECUTE)
        start_time = began
        for message in tuples:
            if self._stopping:  # without _on_processed(), so the column's sender gets no acknowledgement
                self.tally.column = None
                self.tally.executed_by[message.source.stream_id] += tuples.index(message)
                return
            pulse.step_count += 1
            if message.roots:
                task.unacked[message] = start_time
                start_time = 0.0  # only the first tracked tuple is timed: a clock per tuple would be slow
            try:
                execute(message)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._retry_or_fail(task, message, error)
            if len(task.outbox) >= MAX_BATCH:
                self._flush(task)
        self.tally.column = None
        seconds = pulse.clock() - began - (self.tally.sending_seconds - sending)
        self.tally.execute.seconds += seconds
        for hook in task.hooks:
            self._call_user_code(task.id, partial(hook.on_execute, tuples, seconds))
        self.tally.count_executed(tuples)
        self._flush(task)
        self._on_processed(column)

    def _retry_or_fail(self, task: BoltTask, message: Tuple, error: Exception) -> None:
        """Retry a tuple that the bolt has not acked or failed, then apply the error policy."""
        tries = 1
        while tries < self.settings.error_tries and (message in task.unacked or not message.roots):
            self._report_error(task.id, error, message)
            tries += 1
            try:
                return task.execute(message)
            except Exception as raised:  # noqa: BLE001 - the user's code may raise anything
                error = raised
        is_dead_letter = False
        try:
            is_dead_letter = self._use_policy(task.id, error, message, tries)
        finally:  # a dead letter is acked, or its spout would emit it again; any other tuple fails
            try:
                self._on_fail(task, message, is_dead_letter=is_dead_letter)
            except Exception as raised:  # noqa: BLE001 - the user's hooks may raise anything
                self._use_policy(task.id, raised)
        return None

    def _on_ack(self, task: BoltTask, message: Tuple) -> None:
        self.tally.uncounted_acks.append(message.source)
        start_time = task.unacked.pop(message, None)
        if start_time is not None:
            task.pending_acks.append(message.roots)
            if start_time:
                self.tally.process.count += 1
                self.tally.process.seconds += self.pulse.clock() - start_time
        for hook in task.hooks:
            hook.on_ack(message)

    def _on_fail(self, task: BoltTask, message: Tuple, *, is_dead_letter: bool = False) -> None:
        self.tally.failed_by[message.source.stream_id] += 1
        if task.unacked.pop(message, None) is not None:
            (task.pending_acks if is_dead_letter else task.pending_fails).append(message.roots)
        for hook in task.hooks:
            hook.on_fail(message)


@dataclass(slots=True, eq=False)
class AckerTask(Task):
    """A task of the acker, with the tuple trees that it tracks."""

    trees: AckerTrees = field(default_factory=AckerTrees)


class AckerExecutor(Executor[AckerTask]):
    """Applies the reports of other executors to its trees, and sends the outcomes to spouts."""

    def _open_task(self, task: int) -> AckerTask:
        return AckerTask(*self._task_arguments(task))

    def _rotate(self) -> None:
        for task in self._tasks.values():
            task.trees.rotate()

    def _process(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        roots: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for message in column.tuples:
            try:
                for spout, root, processed in task.trees.apply_report(message):
                    roots[spout, ACK_STREAM if processed else FAIL_STREAM].append(root)
            except MalformedTupleError as error:  # counted and logged: it may come from another process
                self._report_error(task.id, error, message)
        topology = self._executor_context.topology
        columns = [
            AddressedTuples(spout, [Tuple([pack_uint64(root_numbers)], topology.source(task.id, stream))])
            for (spout, stream), root_numbers in roots.items()
        ]
        if columns:
            self._transfer(task, columns)
        self.tally.count_executed(column.tuples)
        self._on_processed(column)
