"""The consuming end of a Recv session: received and acknowledged messages, and room for more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tuplewire.errors import MalformedError
from tuplewire.group import TaskGroup
from tuplewire.session.delivery import Delivery


@dataclass(frozen=True, slots=True)
class Cursor:
    """A consumer's place in one task, as sequences. credit_bytes: its room in bytes after `received`."""

    task: int
    acknowledged: int
    received: int
    credit: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Messages that are new to the consumer; pass them to acknowledge() once they are processed."""

    epoch: int
    deliveries: tuple[Delivery, ...]
    asks: bool = False
    """Whether somebody waits to hear that they are processed."""

    @property
    def groups(self) -> list[TaskGroup]:
        """The messages, in order."""
        return [delivery.group for delivery in self.deliveries]

    def first(self, messages: int) -> Arrived:
        """Return no more than the first so many messages."""
        found = []
        for each in self.deliveries:
            if messages <= 0:
                break
            found.append(
                each if messages >= len(each.group) else replace(each, group=each.group.slice(0, messages))
            )
            messages -= len(each.group)
        return Arrived(self.epoch, tuple(found), self.asks)


@dataclass(slots=True, eq=False)
class _Task:
    epoch: int
    acknowledged: int
    received: int
    held_bytes: int = 0
    told: int = 0
    """The sequence up to which the worker knows of room."""
    unacknowledged: deque[tuple[int, int]] = field(default_factory=deque)

    def acknowledge(self, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)
        while self.unacknowledged and self.unacknowledged[0][0] <= self.acknowledged:
            self.held_bytes -= self.unacknowledged.popleft()[1]


class ConsumeWindow:
    """State of one consumer's session; outlives the streams that carry it."""

    def __init__(self, tasks: Iterable[int], prefetch_messages: int, prefetch_bytes: int) -> None:
        self._epoch = 0
        self._tasks = {task: _Task(0, 0, 0, told=prefetch_messages) for task in tasks}
        self._prefetch_messages = prefetch_messages
        self._prefetch_bytes = prefetch_bytes
        self._moved: dict[int, None] = {}
        self.worker_incarnation = 0
        """The incarnation of the worker that the sequences belong to; 0 before the first connection."""

    def opened(self, worker_incarnation: int, starts: Iterable[tuple[int, int]]) -> None:
        """Continue over a new stream, after these (task, sequence) pairs.

        If the worker is another one, or another consumer had the task meanwhile, the task starts anew where
        the worker says. Its unacknowledged messages are then void.
        """
        self._epoch += 1
        if worker_incarnation != self.worker_incarnation:
            self.worker_incarnation = worker_incarnation
            for task in self._tasks:
                self._start_anew(task, 0)
        for task, received in starts:
            if task in self._tasks and self._tasks[task].received != received:
                self._start_anew(task, received)

    def _start_anew(self, task: int, received: int) -> None:
        if self._tasks[task].held_bytes:
            self._moved[task] = None  # the subscribe named less room than there is now
        self._tasks[task] = _Task(self._epoch, received, received, told=received + self._prefetch_messages)

    def arrived(self, deliveries: Iterable[Delivery], *, asks: bool = False) -> Arrived:
        """Take in messages, and return the new ones; MalformedError for a gap or an unsubscribed task.

        asks: whether the worker wants to hear of them at once; so does this side that has little room left.
        """
        new = []
        half_messages, half_bytes = self._prefetch_messages // 2, self._prefetch_bytes // 2
        for delivery in deliveries:
            group, first = delivery.group, delivery.first_sequence
            state = self._tasks.get(group.task)
            if state is None:
                raise MalformedError(f"messages for task {group.task} came, which is not subscribed")
            last = first + len(group) - 1
            if first > state.received + 1:
                raise MalformedError(
                    f"task {group.task}: message {first} came after message {state.received}"
                )
            if last <= state.received:
                continue
            if first <= state.received:
                group = group.slice(state.received + 1 - first, len(group))
                first = state.received + 1
            state.received = last
            state.held_bytes += group.size_bytes
            state.unacknowledged.append((last, group.size_bytes))
            asks |= last + half_messages >= state.told or state.held_bytes >= half_bytes
            new.append(Delivery(first, group))
        return Arrived(self._epoch, tuple(new), asks)

    def acknowledge(self, arrived: Arrived) -> bool:
        """Acknowledge messages; return False if all of them are void, see opened()."""
        counts = False
        for delivery in arrived.deliveries:
            task = delivery.group.task
            state = self._tasks[task]
            if arrived.epoch >= state.epoch:
                state.acknowledge(delivery.first_sequence + len(delivery.group) - 1)
                self._moved[task] = None
                counts = True
        return counts

    def take_moved(self) -> list[Cursor]:
        """Take out the cursors that have moved since the last call."""
        moved, self._moved = self._moved, {}
        return [self._cursor(task) for task in moved]

    def repeat(self) -> None:
        """Let take_moved() return every cursor next time: the worker has sent a probe."""
        self._moved.update(dict.fromkeys(self._tasks))

    def all(self) -> list[Cursor]:
        """Return every cursor, for subscribing."""
        return [self._cursor(task) for task in self._tasks]

    def _cursor(self, task: int) -> Cursor:
        state = self._tasks[task]
        state.told = state.acknowledged + self._prefetch_messages
        return Cursor(
            task,
            state.acknowledged,
            state.received,
            state.told,
            max(0, self._prefetch_bytes - state.held_bytes),
        )
