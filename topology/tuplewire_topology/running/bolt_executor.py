"""The executors of bolts and of acker tasks.

Used by executor_worker.py. Owns the bolts, their unacked tuples, and the acker's trees. Not thread-safe. All
methods run on the executor's thread. Source: Storm's `BoltExecutor`, and `Acker`, which is a bolt in Storm.
Design: docs/design/acking.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

from tuplewire.errors import MalformedTupleError
from tuplewire_topology.acking.acker import Root
from tuplewire_topology.acking.acker_tasks import Trees, to_block
from tuplewire_topology.authoring.collector import OutputCollector
from tuplewire_topology.authoring.component import Bolt
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, AddressedTuples, Tuple
from tuplewire_topology.running.executor import BATCH, Executor, Task
from tuplewire_topology.running.statistics import ColumnAtWork, ExecutorActivity
from tuplewire_topology.running.tuple_observer import TaskObserver


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
        """Return the number of unacked tuples of each root. Call this only while nothing is executed.

        Tuples that descend from a tuple of the spout tasks `gone` are forgotten.
        """
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
        """Retry a tuple up to `error_tries` calls, then apply the error policy.

        A tuple that the bolt has acked or failed is not retried. Tuples emitted by each call are sent.
        """
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
