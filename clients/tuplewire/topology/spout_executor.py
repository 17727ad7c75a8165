"""The executor of spouts. Source: Storm's `SpoutExecutor`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tuplewire.topology.acker import Root
from tuplewire.topology.collector import Emitted, Outbox, SpoutOutputCollector
from tuplewire.topology.component import Spout
from tuplewire.topology.executor import BATCH, Executor, Surroundings, Task
from tuplewire.topology.receive_queue import AddressedTuples
from tuplewire.topology.tuples import ACK_STREAM

_ROUND_SECONDS = 0.001
"""How long a task may go on emitting before what it has emitted goes out."""

_BUSY = -1
_FOR_GOOD = sys.maxsize


@dataclass(slots=True, eq=False)
class SpoutTask(Task):
    """A task of a spout. pending: the message ids of what it has on the way."""

    spout: Spout = field(kw_only=True)
    pending: set[Any] = field(default_factory=set)


class SpoutExecutor(Executor[SpoutTask]):
    """Asks spouts for tuples while it is active, and tells them what has become of theirs.

    Backpressure: transfer waits for room, and a task with as many tuples on the way as it may have is not
    asked. Where no task can be asked, and while inactive, it waits on its queue; where none has anything, it
    looks again after the time that the settings say.
    """

    def __init__(self, tasks: range, surroundings: Surroundings) -> None:
        super().__init__(tasks, surroundings)
        self._wanted = False
        self._active = False
        self._emitted = False
        self._rested = _BUSY

    @property
    def pending(self) -> int:
        """Tuples with a message id that are on the way."""
        return sum(len(task.pending) for task in list(self._tasks.values()))

    def activate(self) -> None:
        """Have the spouts asked for tuples. From any thread."""
        self._wanted = True
        self.queue.wake()

    def deactivate(self) -> None:
        """Have them asked no longer. From any thread."""
        self._wanted = False
        self.queue.wake()

    def at_rest(self, epoch: int) -> bool:
        """Whether it is inactive, or has found nothing to emit in a round that began in this epoch or later.

        From any thread.
        """
        if not self._wanted:
            return not self._active
        return self._active and self._rested >= epoch

    def _open(self, task: int) -> SpoutTask:
        outbox = Outbox(self._surroundings.topology, task)
        opened = SpoutTask(task, outbox, self._outgoing(task), spout=deepcopy(self.component.template))
        collector = SpoutOutputCollector(outbox, lambda error: self._reported(task, error))
        opened.spout.open(self.conf, self._context(task), collector)
        return opened

    def _close(self, task: SpoutTask) -> None:
        task.spout.close()

    def _turn(self) -> None:
        for column in self.queue.consume(BATCH, self._patience()):
            self._tell(column)
        if self._active != self._wanted:
            self._switch()
        if self._active and not self._stopping:
            self._round()

    def _patience(self) -> float | None:
        """Return how long to wait for news, in seconds; None: there is nothing to do without."""
        if self._active and self._emitted:
            return 0.0
        if self._active and self._rested != _FOR_GOOD:
            return self.settings.spout_wait_seconds
        return None

    def _switch(self) -> None:
        wanted = self._wanted
        for task in self._tasks.values():
            self._always(task.id, task.spout.activate if wanted else task.spout.deactivate)
        self._rested = _BUSY
        self._active = wanted
        self._surroundings.idle.changed()

    def _tell(self, column: AddressedTuples) -> None:
        """Tell a spout what has become of its tuples."""
        task = self._tasks[column.task]
        for fate in column.tuples:
            (message_id,) = fate.values
            if message_id not in task.pending:
                continue
            task.pending.remove(message_id)
            try:
                if fate.source_stream == ACK_STREAM:
                    self.counts.acked += 1
                    task.spout.ack(message_id)
                else:
                    self.counts.failed += 1
                    task.spout.fail(message_id)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._raised(task.id, error)
        self._rested = _BUSY  # it may have something again
        self._send(task)
        self._surroundings.idle.executed(len(column.tuples))

    def _round(self) -> None:
        """Ask each task that may be asked, for a moment."""
        epoch = self._surroundings.idle.epoch
        self._emitted = False
        askable = False
        for task in self._tasks.values():
            askable |= self._ask(task)
            if len(task.outbox):
                self._emitted = True
                self._rested = _BUSY  # before what it has emitted can be done with
                self._send(task)
        rested = _BUSY if self._emitted else epoch if askable else _FOR_GOOD
        if rested != self._rested:
            self._rested = rested
            self._surroundings.idle.changed()

    def _ask(self, task: SpoutTask) -> bool:
        """Have a task emit until it has nothing more, its bound or a moment is over; False if it may not."""
        deadline = time.monotonic() + _ROUND_SECONDS
        bound = self.settings.max_spout_pending or sys.maxsize
        outbox = task.outbox
        asked = False
        try:
            while len(task.pending) + len(outbox) < bound and not task.spout.exhausted:
                asked = True
                before = len(outbox)
                task.spout.next_tuple()
                if len(outbox) == before or len(outbox) >= BATCH or time.monotonic() >= deadline:
                    break
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._raised(task.id, error)
        return asked

    def _send(self, task: SpoutTask) -> None:
        """Send on what a task has emitted; where nobody follows it, it counts as processed with that."""
        runs = self._flush(task)
        if self._surroundings.acker is None:
            for run in runs:
                for message in run.tuples:
                    for _, message_id in message.message_id:
                        self.counts.acked += 1
                        self._always(task.id, partial(task.spout.ack, message_id))

    def _began(self, runs: Sequence[Emitted]) -> list[Root]:
        roots = [root for run in runs for message in run.tuples for root in message.message_id]
        for task, message_id in roots:
            self._tasks[task].pending.add(message_id)
        return roots

    def _reported(self, task: int, error: Exception) -> None:
        self._told(task, error)
