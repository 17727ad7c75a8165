"""The executors of bolts and of acker tasks. Source: Storm's `BoltExecutor`, and `Acker`, a bolt there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller

from tuplewire.errors import MalformedTupleError
from tuplewire_topology.acking.acker import Root
from tuplewire_topology.acking.acker_tasks import Trees, to_block
from tuplewire_topology.authoring.collector import OutputCollector
from tuplewire_topology.authoring.component import Bolt
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, AddressedTuples, Tuple
from tuplewire_topology.running.executor import BATCH, Executor, Task
from tuplewire_topology.running.statistics import ColumnAtWork, Doing
from tuplewire_topology.running.tuple_observer import TaskObserver


@dataclass(slots=True, eq=False)
class BoltTask(Task):
    """A task of a bolt.

    execute: what executes a tuple, in a span where that is traced.
    open: tuples that descend from a spout's, and are neither acked nor failed yet; with the time since when,
    for those that are timed, else 0.
    """

    bolt: Bolt = field(kw_only=True)
    execute: Callable[[Tuple], None] = field(kw_only=True)
    open: dict[Tuple, float] = field(default_factory=dict)


class BoltExecutor(Executor[BoltTask]):
    """Has bolts execute what arrives, column by column; waits on its queue while there is nothing.

    What a bolt emits for a column goes out after it, and at the latest after so many tuples.
    """

    def held(self, gone: Collection[int]) -> Counter[Root]:
        """Return how many tuples of each root are neither acked nor failed; while nothing is executed.

        gone: tasks of spouts; what descends from theirs counts no more.
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
        bolt = deepcopy(self.component.template)
        opened = BoltTask(*self._parts(task), bolt=bolt, execute=bolt.execute)
        collector = OutputCollector(
            opened.outbox,
            partial(self._acked, opened),
            partial(self._failed, opened),
            partial(self._told, task),
        )
        context = self._surroundings.context(task)
        bolt.prepare(self.conf, context, collector)
        opened.hooks = context.hooks
        if (tracing := self._surroundings.tracing) is not None:
            observer = TaskObserver(tracing, self.component, task)
            opened.outbox.observe, opened.execute = observer.emitted, observer.around(bolt.execute)
        return opened

    def _close(self, task: BoltTask) -> None:
        task.bolt.cleanup()

    def _take(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        if self._surroundings.received is not None:
            self._surroundings.received(self.component.id, column.tuples)
        execute, pulse = task.execute, self.pulse
        began, sending = pulse.clock(), self.tally.sending_seconds
        self.tally.column = ColumnAtWork(
            began, sending, pulse.calls, column.tuples[0].source, len(column.tuples)
        )
        pulse.enter(task.id, Doing.EXECUTE)
        timed = began
        for message in column.tuples:
            if self._stopping:
                self.tally.column = None
                return
            pulse.calls += 1
            if message.message_id:
                task.open[message] = timed
                timed = 0.0
            try:
                execute(message)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._try_again(task, message, error)
            if len(task.outbox) >= BATCH:
                self._flush(task)
        self.tally.column = None
        seconds = pulse.clock() - began - (self.tally.sending_seconds - sending)
        self.tally.execute_seconds += seconds
        if task.hooks:
            self._always(task.id, partial(task.observe, methodcaller("executed", column.tuples, seconds)))
        self.tally.count_executed(column.tuples)
        self._flush(task)
        self._finished(column)

    def _try_again(self, task: BoltTask, message: Tuple, error: Exception) -> None:
        """Give the bolt a tuple as often as the settings say; then do as the policy says.

        A tuple that it has acked or failed itself is not given again. What it has emitted goes out each time.
        A dead letter is processed, as far as spouts hear: they would emit it again. Any other has failed.
        """
        tries = 1
        followed = message in task.open
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
        finally:
            self._failed(task, message, buried=buried)
        return None

    def _acked(self, task: BoltTask, message: Tuple) -> None:
        self.tally.just_acked.append(message.source)
        since = task.open.pop(message, None)
        if since is not None:
            task.acked.append(message.message_id)
            if since:
                self.tally.process_count += 1
                self.tally.process_seconds += self.pulse.clock() - since
        if task.hooks:
            task.observe(methodcaller("acked", message))

    def _failed(self, task: BoltTask, message: Tuple, *, buried: bool = False) -> None:
        self.tally.failed[message.source] += 1
        if task.open.pop(message, None) is not None:
            (task.acked if buried else task.failed).append(message.message_id)
        if task.hooks:
            task.observe(methodcaller("failed", message))


@dataclass(slots=True, eq=False)
class AckerTask(Task):
    """A task of the acker, and the trees that it follows."""

    trees: Trees = field(default_factory=Trees)


class AckerExecutor(Executor[AckerTask]):
    """Takes in what other executors tell, and tells spouts what has become of their tuples.

    What is malformed is counted as an error, and logged.
    """

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
            except MalformedTupleError as error:
                self._told(task.id, error, message)
        topology = self._surroundings.topology
        columns = [
            AddressedTuples(spout, [Tuple([to_block(some)], topology.source(task.id, stream))])
            for (spout, stream), some in roots.items()
        ]
        if columns:
            self._transfer(task, columns)
        self.tally.count_executed(column.tuples)
        self._finished(column)
