"""The executors of spouts, of bolts and of acker tasks.

Used by executor_worker.py. Owns the spouts and their pending tuples, the bolts and their unacked tuples, and
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
from tuplewire_topology.acking.acker import Root, RotatingMap, Trees, keys_of, to_block
from tuplewire_topology.authoring.collector import Emitted, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.component import Bolt, Spout
from tuplewire_topology.authoring.description import ACKER_COMPONENT
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, AddressedTuples, Tuple, TupleSource
from tuplewire_topology.running.executor import BATCH, Executor, ExecutorContext, Task
from tuplewire_topology.running.statistics import ColumnAtWork, ExecutorActivity
from tuplewire_topology.running.tuple_transfer import TaskObserver

_ROUND_SECONDS = 0.001
"""The time after which a task stops emitting, so that its tuples are sent."""

_READY_SECONDS = 0.01
"""The interval at which the executor checks `ready` before it becomes active."""

_BUSY = -1

Pending = tuple[Any, TupleSource, float]
"""The message ID of a tuple in flight, its stream, and the time of its emission, by the pulse's clock."""


@dataclass(slots=True, eq=False)
class SpoutTask(Task):
    """A task of a spout. `pending` has its tuples in flight, by the tracker's keys."""

    spout: Spout = field(kw_only=True)
    pending: RotatingMap[Any, Pending] = field(default_factory=RotatingMap)


class SpoutExecutor(Executor[SpoutTask]):
    """Requests tuples from spouts while it is active, and passes the outcomes of their tuples to them.

    Backpressure: the transfer waits for free space, and a task that has reached `max_spout_pending` is not
    called. If no task can be called, the executor waits on its queue; if none emits, it polls again after
    `spout_wait_seconds`. It becomes active once the required connections exist.
    """

    opening = ExecutorActivity.OPEN
    closing = ExecutorActivity.CLOSE

    def __init__(self, tasks: range, executor_context: ExecutorContext) -> None:
        super().__init__(tasks, executor_context)
        self._wanted = False
        self._active = False
        self._emitted = False
        self._askable = False
        self._finished_in = _BUSY
        """The epoch of the last round if every task was exhausted in it, else _BUSY."""
        self._expires = bool(  # the acker of a single process has no timeout
            ACKER_COMPONENT in executor_context.topology.components and self.settings.message_timeout_seconds
        )

    @property
    def pending(self) -> int:
        """The number of tuples in flight that have a message ID."""
        return sum(len(task.pending) for task in list(self._tasks.values()))

    def switch(self, *, active: bool) -> None:
        """Start or stop to request tuples from the spouts. Thread-safe."""
        self._wanted = active
        self.queue.wake()

    def finished(self, epoch: int = 0) -> bool:
        """Return True if inactive, or if a round since this epoch found every task done. Thread-safe."""
        if not self._wanted:
            return not self._active
        return self._active and self._finished_in >= epoch

    def _open(self, task: int) -> SpoutTask:
        opened = SpoutTask(*self._parts(task), spout=deepcopy(self.component.template))
        if (tracing := self._executor_context.transfer.tracing) is not None:
            opened.outbox.observe = TaskObserver(tracing, self.component, task).emitted
        collector = SpoutOutputCollector(opened.outbox, partial(self._told, task), self.queue.wake)
        context = self._executor_context.context(task)
        opened.spout.open(self.conf, context, collector)
        opened.hooks = context.hooks
        return opened

    def _close(self, task: SpoutTask) -> None:
        task.spout.close()

    def _turn(self) -> None:
        super()._turn()
        # Only the start waits for the connections to other workers; the end does not.
        changes = self._active != self._wanted
        if changes and (self._active or not self._executor_context.transfer.not_connected):
            self._change()
        if self._active and not self._stopping:
            self._round()

    def _patience(self) -> float | None:
        if self._active and self._emitted:
            return 0.0
        if self._active and self._askable:
            return self.settings.spout_wait_seconds
        return _READY_SECONDS if self._wanted and not self._active else None

    def _change(self) -> None:
        wanted = self._wanted
        for task in self._tasks.values():
            self.pulse.enter(task.id, ExecutorActivity.ACTIVATE if wanted else ExecutorActivity.DEACTIVATE)
            self._always(task.id, task.spout.activate if wanted else task.spout.deactivate)
        self._finished_in = _BUSY
        self._active = wanted

    def _take(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        now = self.pulse.clock()
        self.pulse.task = task.id
        for fate in column.tuples:
            try:
                keys = keys_of(fate)
            except MalformedTupleError as error:
                self._told(task.id, error)
                continue
            processed = fate.source_stream == ACK_STREAM
            for key in keys:
                pending = task.pending.pop(key)
                if pending is not None:  # otherwise it has timed out
                    self._tell_one(task, pending, now, processed=processed)
        self._go_on(task)
        self._finished(column)

    def _go_on(self, task: SpoutTask) -> None:
        """Send tuples that a spout emitted when it got outcomes; the spout may have more tuples now."""
        self._finished_in = _BUSY
        self._send(task)

    def _tell_one(self, task: SpoutTask, pending: Pending, now: float, *, processed: bool) -> None:
        message_id, source, since = pending
        tally, pulse = self.tally, self.pulse
        pulse.activity = ExecutorActivity.ACK if processed else ExecutorActivity.FAIL
        pulse.calls += 1
        try:
            if processed:
                tally.just_acked.append(source)
                tally.complete.count += 1
                tally.complete.seconds += now - since
                task.spout.ack(message_id)
            else:
                tally.failed_by[source.stream_id] += 1
                task.spout.fail(message_id)
            for hook in task.hooks:
                (hook.acked if processed else hook.failed)(message_id)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._raised(task.id, error)

    def _rotate(self) -> None:
        for task in self._tasks.values():
            expired = task.pending.rotate()
            self.pulse.task = task.id
            for pending in expired.values():
                self._tell_one(task, pending, self.pulse.clock(), processed=False)
            if expired:
                self._go_on(task)

    def _round(self) -> None:
        """Request tuples from each task that may emit, for a short time each."""
        # Read first: a wait that starts now needs another round.
        epoch = self._executor_context.transfer.idle.epoch
        self._emitted = self._askable = False
        for task in self._tasks.values():
            self._askable |= self._ask(task)
            if len(task.outbox):
                self._emitted = True
                self._finished_in = _BUSY  # before the send, after which the tuples may be processed any time
                self._send(task)
        finished = not self._emitted and all(map(self._done, self._tasks.values()))
        self._finished_in = epoch if finished else _BUSY

    def _done(self, task: SpoutTask) -> bool:
        """Return True if a task is exhausted, and no pending tuple can time out and be emitted again."""
        return task.spout.exhausted and not (self._expires and len(task.pending))

    def _ask(self, task: SpoutTask) -> bool:
        """Let a task emit until it has no tuples, or reaches a limit; return False if it may not emit."""
        deadline = time.monotonic() + _ROUND_SECONDS
        bound = self.settings.max_spout_pending or sys.maxsize  # 0: no limit
        outbox, pulse = task.outbox, self.pulse
        asked = False
        pulse.enter(task.id, ExecutorActivity.NEXT_TUPLE)
        try:
            while len(task.pending) + len(outbox) < bound and not task.spout.exhausted:
                asked = True
                before = len(outbox)
                pulse.calls += 1
                task.spout.next_tuple()
                if len(outbox) == before or len(outbox) >= BATCH or time.monotonic() >= deadline:
                    break
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._raised(task.id, error)
        return asked

    def _send(self, task: SpoutTask) -> None:
        """Send the tuples that a task has emitted; without a tracker they are then acked."""
        runs = self._flush(task)
        if task.tracker is None:
            for run in runs:
                for message in run.tuples:
                    for _, message_id in message.message_id:
                        self.tally.acked_by[run.source.stream_id] += 1
                        self.pulse.enter(task.id, ExecutorActivity.ACK)
                        self._always(task.id, partial(task.spout.ack, message_id))

    def _began(self, task: SpoutTask, runs: Sequence[Emitted]) -> list[Any]:
        if task.tracker is None:
            return []
        sources = [run.source for run in runs for message in run.tuples if message.message_id]
        began = task.tracker.begin(runs)
        now = self.pulse.clock()
        for (key, message_id), source in zip(began, sources, strict=True):
            task.pending.put(key, (message_id, source, now))
        return [key for key, _ in began]


@dataclass(slots=True, eq=False)
class BoltTask(Task):
    """A task of a bolt. `execute` calls the bolt, within a span if the tuple is traced.

    `open` has the tracked tuples that are neither acked nor failed, with their start time, or 0 if not timed.
    """

    bolt: Bolt = field(kw_only=True)
    execute: Callable[[Tuple], None] = field(kw_only=True)
    open: dict[Tuple, float] = field(default_factory=dict)


class BoltExecutor(Executor[BoltTask]):
    """Executes bolts, one column at a time. Sends emitted tuples after each column, or every BATCH tuples."""

    def held(self, gone: Collection[int]) -> Counter[Root]:
        """Return the unacked tuples of each root; forget those of the spouts `gone`. Only while at rest."""
        held: Counter[Root] = Counter()
        for task in self._tasks.values():
            for message in list(task.open):
                if any(root[0] in gone for root in message.message_id):
                    del task.open[message]
                else:
                    held.update(message.message_id)
        return held

    def _open(self, task: int) -> BoltTask:
        bolt = deepcopy(self.component.template)  # each task has its own bolt
        opened = BoltTask(*self._parts(task), bolt=bolt, execute=bolt.execute)
        collector = OutputCollector(
            opened.outbox,
            partial(self._acked, opened),
            partial(self._failed, opened),
            partial(self._told, task),
        )
        context = self._executor_context.context(task)
        bolt.prepare(self.conf, context, collector)
        opened.hooks = context.hooks
        if (tracing := self._executor_context.transfer.tracing) is not None:
            observer = TaskObserver(tracing, self.component, task)
            opened.outbox.observe, opened.execute = observer.emitted, observer.around(bolt.execute)
        return opened

    def _close(self, task: BoltTask) -> None:
        task.bolt.cleanup()

    def _take(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        if self._executor_context.received is not None:
            self._executor_context.received(self.component.id, column.tuples)
        execute, pulse = task.execute, self.pulse
        began, sending = pulse.clock(), self.tally.sending_seconds
        self.tally.column = ColumnAtWork(
            began, sending, pulse.calls, column.tuples[0].source, len(column.tuples)
        )
        pulse.enter(task.id, ExecutorActivity.EXECUTE)
        timed = began
        for message in column.tuples:
            if self._stopping:  # without _finished(), so the column's sender gets no acknowledgement
                self.tally.column = None
                return
            pulse.calls += 1
            if message.message_id:
                task.open[message] = timed
                timed = 0.0  # only the first tracked tuple is timed: a clock per tuple would be slow
            try:
                execute(message)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._try_again(task, message, error)
            if len(task.outbox) >= BATCH:
                self._flush(task)
        self.tally.column = None
        seconds = pulse.clock() - began - (self.tally.sending_seconds - sending)
        self.tally.execute.seconds += seconds
        for hook in task.hooks:
            self._always(task.id, partial(hook.executed, column.tuples, seconds))
        self.tally.count_executed(column.tuples)
        self._flush(task)
        self._finished(column)

    def _try_again(self, task: BoltTask, message: Tuple, error: Exception) -> None:
        """Retry a tuple that the bolt has not acked or failed, then apply the error policy."""
        tries = 1
        followed = message in task.open  # an untracked tuple is never in `open`
        while tries < self.settings.error_tries and (message in task.open or not followed):
            self._told(task.id, error, message)
            tries += 1
            try:
                return task.execute(message)
            except Exception as raised:  # noqa: BLE001 - the user's code may raise anything
                error = raised
        buried = False
        try:
            buried = self._raised(task.id, error, message, tries)
        finally:  # a dead letter is acked, or its spout would emit it again; any other tuple fails
            self._failed(task, message, buried=buried)
        return None

    def _acked(self, task: BoltTask, message: Tuple) -> None:
        self.tally.just_acked.append(message.source)
        since = task.open.pop(message, None)
        if since is not None:
            task.acked.append(message.message_id)
            if since:
                self.tally.process.count += 1
                self.tally.process.seconds += self.pulse.clock() - since
        for hook in task.hooks:
            hook.acked(message)

    def _failed(self, task: BoltTask, message: Tuple, *, buried: bool = False) -> None:
        self.tally.failed_by[message.source.stream_id] += 1
        if task.open.pop(message, None) is not None:
            (task.acked if buried else task.failed).append(message.message_id)
        for hook in task.hooks:
            hook.failed(message)


@dataclass(slots=True, eq=False)
class AckerTask(Task):
    """A task of the acker, with the tuple trees that it tracks."""

    trees: Trees = field(default_factory=Trees)


class AckerExecutor(Executor[AckerTask]):
    """Applies the reports of other executors to its trees, and sends the outcomes to spouts."""

    def _open(self, task: int) -> AckerTask:
        return AckerTask(*self._parts(task))

    def _rotate(self) -> None:
        for task in self._tasks.values():
            task.trees.rotate()

    def _take(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        roots: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for message in column.tuples:
            try:
                for spout, root, processed in task.trees.take(message):
                    roots[spout, ACK_STREAM if processed else FAIL_STREAM].append(root)
            except MalformedTupleError as error:  # counted and logged: it may come from another process
                self._told(task.id, error, message)
        topology = self._executor_context.topology
        columns = [
            AddressedTuples(spout, [Tuple([to_block(some)], topology.source(task.id, stream))])
            for (spout, stream), some in roots.items()
        ]
        if columns:
            self._transfer(task, columns)
        self.tally.count_executed(column.tuples)
        self._finished(column)
