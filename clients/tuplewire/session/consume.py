"""The consuming end of a Recv session: received and acknowledged messages, rejections, and credit.

Used by the client's ConsumingEnd, which drives a ConsumeSession under a lock (consuming_end.py), and by
workers and Spark, which use Delivery. Owns each task's position and unanswered rejections. No I/O.
Not thread-safe. Design: docs/design/credit.md; docs/design/acking.md for rejections.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

from tuplewire.errors import MalformedError
from tuplewire.text.formatting import encodable
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import RejectedTask, Rejection, TaskCursor

_MAX_REJECTIONS = 1000
"""Limit for the rejections of one task in one request, because a worker limits the size of requests."""
MAX_DELAY_SECONDS = 7 * 86_400
MAX_REASON_CHARS = 1000
"""The maximum length of a reason in characters. Longer reasons are truncated."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for a consumer, numbered from `first_sequence` without gaps."""

    first_sequence: int
    group: TaskGroup

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message."""
        return self.first_sequence + self.group.count - 1

    def clip(self, after: int, last: int) -> Delivery | None:
        """Return the messages after the sequence `after`, up to `last`; None if there are none."""
        first = max(after + 1, self.first_sequence)
        stop = min(last, self.last_sequence) + 1
        if stop - first == self.group.count:
            return self
        if first >= stop:
            return None
        return Delivery(first, self.group.slice(first - self.first_sequence, stop - self.first_sequence))


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that a consumer rejects; see Rejection. `index` counts the messages of a batch from 0."""

    index: int
    delay_seconds: float
    reason: str
    blocks_task: bool


@dataclass(frozen=True, slots=True)
class ArrivedBatch:
    """New messages for the consumer. Pass them to ConsumeSession.acknowledge() once they are processed."""

    generation: int  # outdated if lower than a task's; see ConsumeSession.acknowledge()
    deliveries: tuple[Delivery, ...]
    ack_requested: bool = False
    """True if the acknowledgement must be sent immediately."""
    arrived_ns: int = 0
    """The time of arrival, in nanoseconds since 1970."""
    session: ConsumeSession | None = field(default=None, repr=False)
    """The session they arrived in. Acknowledge them to it."""

    @property
    def groups(self) -> list[TaskGroup]:
        """The messages, in order."""
        return list(map(attrgetter("group"), self.deliveries))

    def each_delivery(self) -> Iterator[ArrivedBatch]:
        """Yield each delivery separately. Only the last one requires an immediate acknowledgement."""
        last = len(self.deliveries) - 1
        for index, each in enumerate(self.deliveries):
            requested = self.ack_requested and index == last
            yield ArrivedBatch(self.generation, (each,), requested, self.arrived_ns, self.session)

    def split(self, count: int) -> list[ArrivedBatch]:
        """Return the first `count` messages, and the others."""
        parts: list[tuple[Delivery | None, Delivery | None]] = []
        for each in self.deliveries:
            last = each.first_sequence + max(0, count) - 1
            parts.append((each.clip(0, last), each.clip(last, each.last_sequence)))
            count -= each.group.count
        return [replace(self, deliveries=tuple(filter(None, some))) for some in zip(*parts, strict=True)]

    def without(self, tasks: Container[int]) -> ArrivedBatch:
        """Return the messages of all other tasks."""
        return replace(self, deliveries=tuple(e for e in self.deliveries if e.group.task not in tasks))


@dataclass(slots=True, eq=False)
class _Position:
    generation: int
    acknowledged: int
    received: int
    held_bytes: int = 0
    reported_credit: int = 0
    """The last credit that was reported to the worker."""
    unacknowledged: deque[tuple[int, int]] = field(default_factory=deque)
    rejections: deque[Rejection] = field(default_factory=deque)
    """The rejections that the worker has not answered."""
    last_rejection: int = 0
    """The number of the last rejection."""
    reported_rejection: int = 0
    """The number of the last rejection that was sent over this stream."""
    blocking_rejection: int = 0
    """The rejection that must be answered before messages are accepted again; 0 if none."""

    def reject(self, sequence: int, rejected: RejectedMessage) -> None:
        self.last_rejection += 1
        rejection = Rejection(
            number=self.last_rejection,
            sequence=sequence,
            after_millis=round(rejected.delay_seconds * 1000),
            reason=encodable(rejected.reason)[:MAX_REASON_CHARS],
            wait=rejected.blocks_task,
        )
        self.rejections.append(rejection)

    def next_rejections(self) -> tuple[list[Rejection], Rejection | None]:
        """Mark the next rejections as reported; return them, and the first one beyond the limit, if any."""
        # Rejections are numbered without gaps, so the difference of two numbers is an index.
        start = max(0, self.reported_rejection - self.rejections[0].number + 1)
        some = list(islice(self.rejections, start, start + _MAX_REJECTIONS + 1))
        later = some.pop() if len(some) > _MAX_REJECTIONS else None
        if some:
            self.reported_rejection = some[-1].number
        return some, later

    def forget_rejections(self, number: int) -> None:
        while self.rejections and self.rejections[0].number <= number:
            self.rejections.popleft()

    def acknowledge(self, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)
        while self.unacknowledged and self.unacknowledged[0][0] <= self.acknowledged:
            self.held_bytes -= self.unacknowledged.popleft()[1]


class ConsumeSession:
    """The state of one consumer's session, which may use several streams in turn. Not thread-safe."""

    def __init__(self, tasks: Iterable[int], prefetch_messages: int, prefetch_bytes: int) -> None:
        self._generation = 0
        self._tasks: dict[int, _Position] = {}
        self._prefetch_messages = prefetch_messages
        self._prefetch_bytes = prefetch_bytes
        self.changed_tasks: dict[int, None] = {}
        """The tasks of the cursors that take_changed_cursors() returns."""
        self._reported_received: dict[int, int] = {}
        """The `received` sequence of each task in the last subscribe request, until it is answered."""
        self.worker_incarnation = 0
        """The incarnation of the worker that assigned the sequences; 0 before the first connection."""
        self.set_tasks(tasks)

    def set_tasks(self, tasks: Iterable[int]) -> None:
        """Consume exactly these tasks from the next subscribe request on, each from its last position."""
        self._subscribed_tasks = tuple(tasks)
        for task in self._subscribed_tasks:
            self._tasks.setdefault(task, _Position(0, 0, 0, reported_credit=self._prefetch_messages))

    def on_connected(self, worker_incarnation: int, received_sequences: Iterable[tuple[int, int]]) -> None:
        """Continue over a new stream, after the sequences in `received_sequences`: (task, sequence) pairs.

        1. The worker is a different one: all tasks start again at its sequences.
        2. Another consumer had the task in between, or an awaited rejection is answered: the task starts
           again at the worker's sequence.
        3. Otherwise the task continues, and its reported rejections are answered.

        In cases 1 and 2, acknowledgements of messages that arrived before are ignored.
        """
        self._generation += 1
        if worker_incarnation != self.worker_incarnation:
            self.worker_incarnation = worker_incarnation
            self._reported_received.clear()
            # 1. Each worker numbers the messages of a task itself.
            for task in self._tasks:
                self._restart(task, 0)
        for task, received in received_sequences:
            if (position := self._tasks.get(task)) is None:
                continue
            reported = self._reported_received.get(task, position.received)
            # 2. The subscribe request also reported rejections. If the awaited one was among them, the worker
            # redelivers from there on.
            if received != reported or 0 < position.blocking_rejection <= position.reported_rejection:
                self._restart(task, received)
            # 3. The answer to a subscribe request is also the answer to its rejections.
            elif position.rejections:
                position.forget_rejections(position.reported_rejection)
                self.changed_tasks[task] = None  # they no longer use up credit
        self._reported_received.clear()

    def _restart(self, task: int, received: int) -> _Position:
        before = self._tasks[task]
        if before.held_bytes:
            self.changed_tasks[task] = None  # the subscribe request reported less credit than there is now
        credit = received + self._prefetch_messages
        self._tasks[task] = state = _Position(self._generation, received, received, reported_credit=credit)
        # The numbers of rejections continue, because the worker applies each number once.
        state.last_rejection = state.reported_rejection = before.last_rejection
        return state

    def receive(
        self, deliveries: Iterable[Delivery], *, ack_requested: bool = False, now_ns: int = 0
    ) -> ArrivedBatch:
        """Record received messages, and return the new ones.

        1. While a task waits for the answer to a rejection, its messages are ignored.
        2. After a gap, raise MalformedError, as for a task that is not subscribed.
        3. Messages that an earlier stream delivered are ignored.

        `ack_requested`: True if the worker requests an immediate acknowledgement. It is also sent immediately
        once half of the prefetch limit is used.
        """
        new = []
        half_messages, half_bytes = self._prefetch_messages // 2, self._prefetch_bytes // 2
        for delivery in deliveries:
            task, first = delivery.group.task, delivery.first_sequence
            state = self._tasks.get(task)
            if state is None:
                raise MalformedError(f"received messages for task {task}, which is not subscribed")
            if state.blocking_rejection:
                # 1. The message was in flight when an earlier one was rejected with `blocks_task`. The worker
                # redelivers it behind the rejected one.
                continue
            # 2. Acknowledgements are cumulative, so one after the gap would include the missing messages.
            if first > state.received + 1:
                raise MalformedError(f"task {task}: message {first} follows message {state.received}: a gap")
            last = first + delivery.group.count - 1
            fresh: Delivery | None = delivery
            if first <= state.received:  # 3. The end of a repeated delivery may be new.
                fresh = delivery.clip(state.received, last)
            if fresh is None:
                continue
            size = fresh.group.size_bytes
            state.received = last
            state.held_bytes += size
            state.unacknowledged.append((last, size))
            ack_requested |= last + half_messages >= state.reported_credit or state.held_bytes >= half_bytes
            new.append(fresh)
        return ArrivedBatch(self._generation, tuple(new), ack_requested, now_ns, self)

    def acknowledge(self, arrived: ArrivedBatch, rejected: Sequence[RejectedMessage] = ()) -> bool:
        """Acknowledge messages except rejected ones; return False if all are outdated: see on_connected().

        `rejected` is in order. After one with `blocks_task`, later ones of its task are redelivered; see
        tasks_awaiting_answer().
        """
        is_current = False
        start = 0
        index_of = attrgetter("index")
        for delivery in arrived.deliveries:
            task, count = delivery.group.task, delivery.group.count
            state = self._tasks[task]
            # Otherwise the task has started again, and the worker redelivers these messages.
            if arrived.generation >= state.generation:
                self.changed_tasks[task] = None
                is_current = True
                if rejected:
                    first = bisect_left(rejected, start, key=index_of)
                    stop = bisect_left(rejected, start + count, lo=first, key=index_of)
                    self._acknowledge_or_reject(state, delivery, start, rejected[first:stop])
                else:
                    state.acknowledge(delivery.first_sequence + count - 1)
            start += count
        return is_current

    def _acknowledge_or_reject(
        self, state: _Position, delivery: Delivery, start: int, rejected: Sequence[RejectedMessage]
    ) -> None:
        """Acknowledge or reject the messages of one delivery; `start` is the index of the first one."""
        task, first = delivery.group.task, delivery.first_sequence
        for each in rejected:
            sequence = first + each.index - start
            state.reject(sequence, each)
            if each.blocks_task:
                # A new generation: acknowledgements of later messages must not pass the rejected one.
                state.acknowledge(sequence - 1)
                self._generation += 1
                restarted = self._restart(task, sequence - 1)
                restarted.rejections, restarted.blocking_rejection = state.rejections, state.last_rejection
                restarted.reported_rejection = state.reported_rejection
                return
        state.acknowledge(first + delivery.group.count - 1)

    def tasks_awaiting_answer(self) -> set[int]:
        """Return the tasks that wait for an answer. All their local messages will be redelivered."""
        return {task for task, state in self._tasks.items() if state.blocking_rejection}

    def apply_answers(self, answers: Iterable[RejectedTask]) -> None:
        """Apply the worker's answers to rejections."""
        for each in answers:
            state = self._tasks.get(each.task)
            if state is None:
                continue
            state.forget_rejections(each.rejection_number)
            if 0 < state.blocking_rejection <= each.rejection_number:
                self._restart(each.task, each.received_sequence)
            self.changed_tasks[each.task] = None  # an answered rejection frees credit

    def take_changed_cursors(self) -> list[TaskCursor]:
        """Return and clear the cursors that changed. One with many rejections takes several calls."""
        changed, self.changed_tasks = self.changed_tasks, {}
        return list(map(self._build_cursor, changed))

    def mark_all_changed(self) -> None:
        """Make take_changed_cursors() return every cursor next time, because the worker has sent a probe."""
        self._mark_rejections_unreported()
        self.changed_tasks.update(dict.fromkeys(self._subscribed_tasks))

    def take_all_cursors(self) -> list[TaskCursor]:
        """Return every cursor for a subscribe request. Later calls may return further rejections."""
        self._mark_rejections_unreported()
        # Clear this first: a cursor with too many rejections is added again.
        self.changed_tasks.clear()
        cursors = [self._build_cursor(task) for task in self._subscribed_tasks]
        self._reported_received = {cursor.task: cursor.received_sequence for cursor in cursors}
        return cursors

    def _mark_rejections_unreported(self) -> None:
        for state in self._tasks.values():
            state.reported_rejection = 0

    def _build_cursor(self, task: int) -> TaskCursor:
        state = self._tasks[task]
        # Unanswered rejections use up credit, which bounds their number.
        state.reported_credit = state.acknowledged + self._prefetch_messages - len(state.rejections)
        acknowledged, received = state.acknowledged, state.received
        rejections, later = state.next_rejections() if state.rejections else ([], None)
        if later is not None:
            # The next request contains this rejection. Until then its message must stay unacknowledged.
            acknowledged = min(acknowledged, later.sequence - 1)
            received = max(received, state.rejections[-1].sequence)  # one with `blocks_task` is the last
            self.changed_tasks[task] = None
        return TaskCursor(
            task=task,
            acknowledged_sequence=acknowledged,
            received_sequence=received,
            credit_sequence=state.reported_credit,
            credit_bytes=max(0, self._prefetch_bytes - state.held_bytes),
            rejections=rejections,
        )
