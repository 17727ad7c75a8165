"""The executor of bolts. Source: Storm's `BoltExecutor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field

from tuplewire.topology.acking.acker import Root
from tuplewire.topology.collector import Outbox, OutputCollector
from tuplewire.topology.component import Bolt
from tuplewire.topology.running.executor import BATCH, Executor, Task
from tuplewire.topology.running.pulse import Doing
from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.tuples import Tuple


@dataclass(slots=True, eq=False)
class BoltTask(Task):
    """A task of a bolt.

    open: tuples that descend from a spout's, and are neither acked nor failed yet; with the time since when,
    for those that are timed, else 0.
    """

    bolt: Bolt = field(kw_only=True)
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
        outbox = Outbox(self._surroundings.topology, task)
        tracker = self._surroundings.track(task)
        bolt = deepcopy(self.component.template)
        opened = BoltTask(task, outbox, self._outgoing(task), tracker, bolt=bolt)
        collector = OutputCollector(
            outbox,
            lambda message: self._acked(opened, message),
            lambda message: self._failed(opened, message),
            lambda error: self._reported(task, error),
        )
        opened.bolt.prepare(self.conf, self._context(task), collector)
        return opened

    def _close(self, task: BoltTask) -> None:
        task.bolt.cleanup()

    def _turn(self) -> None:
        self._wait()
        for column in self.queue.consume(BATCH):
            self._execute(column)

    def _execute(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        if self._surroundings.received is not None:
            self._surroundings.received(self.component.id, column.tuples)
        execute, pulse = task.bolt.execute, self.pulse
        pulse.enter(task.id, Doing.EXECUTE)
        began, sending = pulse.clock(), self.tally.sending_seconds
        timed = began
        for message in column.tuples:
            if self._stopping:
                return
            pulse.calls += 1
            if message.message_id:
                task.open[message] = timed
                timed = 0.0
            try:
                execute(message)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._failed(task, message)
                self._raised(column.task, error, message)
            if len(task.outbox) >= BATCH:
                self._flush(task)
        self.tally.execute_seconds += pulse.clock() - began - (self.tally.sending_seconds - sending)
        self._flush(task)
        self.tally.count_executed(column.tuples)
        if column.done is not None:
            column.done()
        self._surroundings.idle.executed(len(column.tuples))

    def _acked(self, task: BoltTask, message: Tuple) -> None:
        self.tally.just_acked.append(message.source)
        since = task.open.pop(message, None)
        if since is not None:
            task.acked.append(message.message_id)
            if since:
                self.tally.process_count += 1
                self.tally.process_seconds += self.pulse.clock() - since

    def _failed(self, task: BoltTask, message: Tuple) -> None:
        self.tally.failed[message.source] += 1
        if task.open.pop(message, None) is not None:
            task.failed.append(message.message_id)

    def _reported(self, task: int, error: Exception) -> None:
        self._told(task, error)
