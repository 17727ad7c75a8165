"""The executor of acker tasks. Source: Storm's `Acker`, which is a bolt there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tuplewire.errors import MalformedTupleError
from tuplewire.topology.acking.acker_tasks import Fate, Trees, to_block
from tuplewire.topology.collector import Outbox
from tuplewire.topology.running.executor import BATCH, Executor, Surroundings, Task
from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.tuples import ACK_STREAM, FAIL_STREAM, Tuple


@dataclass(slots=True, eq=False)
class AckerTask(Task):
    """A task of the acker, and the trees that it follows."""

    trees: Trees = field(default_factory=Trees)


class AckerExecutor(Executor[AckerTask]):
    """Takes in what other executors tell, and tells spouts what has become of their tuples.

    What is malformed is counted as an error, and logged.
    """

    def __init__(self, tasks: range, surroundings: Surroundings) -> None:
        super().__init__(tasks, surroundings)
        self._rotation_due = False

    def rotate(self) -> None:
        """Have half of the time pass that a tree has. From any thread."""
        self._rotation_due = True
        self.queue.wake()

    def _open(self, task: int) -> AckerTask:
        outbox = Outbox(self._surroundings.topology, task)
        return AckerTask(task, outbox, self._outgoing(task), None)

    def _close(self, task: AckerTask) -> None:
        """There is nothing to let go of."""

    def _turn(self) -> None:
        self._wait()
        for column in self.queue.consume(BATCH):
            self._take(column)
        if self._rotation_due:
            self._rotation_due = False
            for task in self._tasks.values():
                task.trees.rotate()

    def _take(self, column: AddressedTuples) -> None:
        task = self._tasks[column.task]
        fates: list[Fate] = []
        for message in column.tuples:
            try:
                fates += task.trees.take(message)
            except MalformedTupleError as error:
                self._told(task.id, error, message)
        if fates:
            self._tell(task, fates)
        self.tally.count_executed(column.tuples)
        if column.done is not None:
            column.done()
        self._surroundings.idle.executed(len(column.tuples))

    def _tell(self, task: AckerTask, fates: list[Fate]) -> None:
        roots: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for spout, root, processed in fates:
            roots[spout, ACK_STREAM if processed else FAIL_STREAM].append(root)
        topology = self._surroundings.topology
        columns = [
            AddressedTuples(spout, [Tuple([to_block(some)], topology.source(task.id, stream))])
            for (spout, stream), some in roots.items()
        ]
        self._transfer(task, columns)
