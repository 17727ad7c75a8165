"""Receive queues: load, consumers, returning tasks, delayed queues, and reports of their messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import pytest
from helpers.cursors import cursor_of, rejection_of
from helpers.queues import Program, RejectionsWithoutTimers, consumers_of, queues_of, subscribe

from tuplewire.errors import DrainingError, StaleIncarnationError, SupersededError
from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.messaging_pb2 import Rejection
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.entry_queue import QueueEntry
from tuplewire_service.worker.queue_subscription import QueueSubscription
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.task_queue import TaskSnapshot


def statuses(queues: ReceiveQueues) -> Sequence[pb.TaskStatus]:
    """Return the status of all tasks."""
    status = pb.GetStatusResponse()
    queues.add_to(status, None, congested=())
    return status.tasks


class Consumer:
    """A consumer with credit for all messages."""

    def __init__(
        self,
        queues: ReceiveQueues,
        *tasks: int,
        incarnation: int = 1,
        worker: int = 0,
        number: int = 0,
        credit: int = 1000,
        rejections: RejectionsWithoutTimers | None = None,
    ) -> None:
        self.woken = 0
        cursors = [cursor_of(task, 0, 0, credit, MIB) for task in tasks]
        fields = {"worker_incarnation": worker, "subscription_id": number}
        self.subscription: QueueSubscription = subscribe(
            consumers_of(queues, rejections), "c", cursors, self._wake, incarnation=incarnation, **fields
        )

    def _wake(self) -> None:
        self.woken += 1

    def take(self) -> list[tuple[int, bytes, bool]]:
        """Return the deliveries: task, payloads, and the `redelivered` flag."""
        return [(e.group.task, e.group.data, e.group.redelivered) for e in self.subscription.take(MIB)]

    def progress(self, task: int, acknowledged: int, *rejections: Rejection) -> None:
        cursor = cursor_of(task, acknowledged, acknowledged, 1000, MIB, rejections)
        self.subscription.apply_progress([cursor])


def put(queues: ReceiveQueues, task: int, *payloads: bytes) -> None:
    """Queue messages."""
    queues.put(TaskGroup.of(task, payloads), Program())


def test_an_older_incarnation_does_not_take_the_task_back() -> None:
    """An older incarnation is refused, and the newer consumer continues."""
    queues = queues_of([1])
    newer = Consumer(queues, 1, incarnation=2)
    with pytest.raises(StaleIncarnationError):
        Consumer(queues, 1, incarnation=1)
    put(queues, 1, b"a")
    assert newer.take() == [(1, b"a", False)]


@pytest.mark.parametrize("first_is_connected", [True, False])
def test_equal_consumers_are_two(*, first_is_connected: bool) -> None:
    """The second consumer takes over, and the first one cannot return while the second is connected."""
    queues = queues_of([1])
    put(queues, 1, b"a")
    first = Consumer(queues, 1, number=11)
    assert first.take() == [(1, b"a", False)]
    if not first_is_connected:
        first.subscription.close()
    second = Consumer(queues, 1, number=22)
    assert second.take() == [(1, b"a", True)]
    assert isinstance(first.subscription.end_error, SupersededError) == first_is_connected
    with pytest.raises(SupersededError):
        Consumer(queues, 1, worker=1, number=11)
    second.subscription.close()
    assert Consumer(queues, 1, worker=1, number=11).take() == [(1, b"a", True)]


@pytest.mark.parametrize("tasks", [1, 7])
def test_a_frame_is_cut_at_its_groups(tasks: int) -> None:
    """A frame contains at most 1,000 groups, from one task or several; the rest follows."""
    queues = queues_of(range(tasks))
    for number in range(2500):
        put(queues, number % tasks, b"x")
    consumer = Consumer(queues, *range(tasks), credit=10_000)
    assert [len(consumer.take()) for _ in range(4)] == [1000, 1000, 500, 0]


def test_a_task_that_comes_back_wakes_its_consumer() -> None:
    """Messages that arrived while a task was leaving are delivered when it is assigned again."""
    queues = queues_of([1])
    put(queues, 1, b"a")
    consumer = Consumer(queues, 1)
    assert consumer.take() == [(1, b"a", False)]
    queues.set_local_tasks([])
    put(queues, 1, b"b")
    assert consumer.take() == []
    woken = consumer.woken
    queues.set_local_tasks([1])
    assert consumer.woken > woken
    assert consumer.take() == [(1, b"b", False)]


def test_a_subscription_that_has_ended_holds_no_task() -> None:
    """After a subscription has closed, its task has no consumer and its messages wait for the next."""
    queues = queues_of([1])
    put(queues, 1, b"a")
    consumer = Consumer(queues, 1)
    assert [each.subscribed for each in statuses(queues)] == [True]
    consumer.subscription.end(DrainingError("so far"))
    assert [each.subscribed for each in statuses(queues)] == [False]
    assert consumer.take() == []
    consumer.progress(1, 1)
    assert Consumer(queues, 1, number=2).take() == [(1, b"a", False)]


def test_a_consumer_that_leaves_frees_only_tasks_that_move_away() -> None:
    """A closed subscription is reported for a task that moves away, not for one that stays."""
    told: list[tuple[int, int]] = []
    queues = queues_of([1, 2])
    queues.on_acknowledged = lambda task, done: told.append((task, len(done)))
    consumer = Consumer(queues, 1, 2)
    queues.set_local_tasks([2])
    consumer.subscription.close()
    assert told == [(1, 0)]


async def test_a_peers_message_for_a_task_without_an_owner_is_refused(router: Router) -> None:
    """A worker that sends its program's message to an unknown task receives UnknownTaskError."""
    batch = ReceivedBatch.for_callback([TaskGroup.of(9, [b"x"])], Program(worker_number=77))
    router.recv(batch)
    assert [type(error).__name__ for _, error in batch.refusals] == ["UnknownTaskError"]
    assert router.ledger().balanced
    assert router.ledger().accepted == 0


def test_another_consumers_rejections_count_from_one() -> None:
    """A new consumer's first rejection is not mistaken for a rejection that is already settled."""
    rejections = RejectionsWithoutTimers()
    queues = queues_of([1])
    put(queues, 1, b"a")
    put(queues, 1, b"b")
    first = Consumer(queues, 1, rejections=rejections)
    first.take()
    first.progress(1, 1, rejection_of(1, 1, 0, "", wait=False))
    second = Consumer(queues, 1, incarnation=2, rejections=rejections)
    second.take()
    second.progress(1, 2, rejection_of(1, 2, 0, "", wait=False))
    assert rejections.rejection_count == 2


def test_a_newcomers_credit_counts_from_its_own_cursor() -> None:
    """Messages that a consumer received from another worker do not reduce its credit here."""
    queues = queues_of([1])
    queues.put(TaskGroup.of(1, [b"x"] * 10), Program())
    cursor = cursor_of(1, 5, 5, 8, MIB)
    taken = subscribe(consumers_of(queues), "c", [cursor], worker_incarnation=99).take(MIB)
    assert sum(len(each.group) for each in taken) == 3


@pytest.mark.parametrize(
    ("payloads", "load"),
    [([b""] * 5, 0.5), ([b""] * 10, 1.0), ([b""] * 20, 1.0), ([b"x" * MIB], 0.5), ([b"x" * MIB] * 2, 1.0)],
)
def test_load_is_how_full_the_queue_is(payloads: list[bytes], load: float) -> None:
    """The load is the larger of the fill ratios in messages and bytes, at most 1."""
    queues = queues_of([1], receive_queue_messages=10, receive_queue_bytes=2 * MIB)
    assert queues.load(1) == 0.0
    queues.put(TaskGroup.of(1, payloads), Program())
    assert queues.load(1) == load


def test_the_tasks_that_matter_most() -> None:
    """Congested tasks are chosen first, then tasks with most unacknowledged messages, then by number."""
    queues = queues_of(range(3000))
    for task, messages in ((2500, 3), (7, 2), (2999, 1)):
        queues.put(TaskGroup.of(task, [b""] * messages), Program())
    for most, chosen in ((1, [1500]), (3, [7, 1500, 2500]), (6, [0, 1, 7, 1500, 2500, 2999])):
        assert asyncio.run(queues.most_relevant({1500}, most)) == chosen
    assert asyncio.run(queues.most_relevant((), 10_000)) == list(range(3000))


def test_the_wait_in_a_queue_is_measured_once() -> None:
    """The wait is measured at the first delivery, not at a redelivery to another consumer."""
    queues = queues_of([1])
    put(queues, 1, b"a", b"b")
    for number in (1, 2):
        assert len(Consumer(queues, 1, number=number).take()) == 1
        assert sum(queues.queue_wait.counts) == 2


def test_a_held_task_may_be_gone_when_its_time_comes() -> None:
    """A delayed task that has moved away does not prevent other delayed tasks from resuming."""
    queues, rejections = queues_of([1, 2]), RejectionsWithoutTimers()
    for task in (1, 2):
        put(queues, task, b"a")
    consumer = Consumer(queues, 1, 2, rejections=rejections)
    for queue in queues.by_task.values():
        queue.blocked_until = time.monotonic() + 60
    assert consumer.take() == []
    assert rejections._blocked_queues.keys() == {1, 2}
    assert queues.take_leaving(queues.set_local_tasks([2]))
    queues.by_task[2].blocked_until = 0.0
    consumer.woken = 0
    rejections.retry_blocked()
    assert (consumer.woken, len(consumer.take())) == (1, 1)


def test_loads_are_told_when_they_change() -> None:
    """A load is reported once for a new task, while the task has messages, and when it becomes empty."""
    queues = queues_of(range(1000), receive_queue_messages=10)
    assert queues.changed_loads() == dict.fromkeys(range(1000), 0.0)
    assert queues.changed_loads() == {}
    put(queues, 7, *[b"x"] * 5)
    assert queues.changed_loads() == {7: 0.5}
    assert queues.changed_loads() == {7: 0.5}
    queues.clear()
    assert queues.changed_loads() == {7: 0.0}
    assert queues.changed_loads() == {}


OWN, PEER = 7, 9


def held(*groups: tuple[int, int, int]) -> TaskSnapshot:
    """Return consecutive groups of (messages, entry sequence, worker), starting at sequence 11."""
    entries: list[QueueEntry] = []
    first = 11
    for count, entry, worker in groups:
        entries.append(QueueEntry(first, TaskGroup.of(1, [b"x"] * count).numbered(entry, 0), Program(worker)))
        first += count
    return TaskSnapshot(pb.HeldTask(task=1, acknowledged_sequence=10, last_sequence=first - 1), entries)


def runs(found: TaskSnapshot, last: int = 0) -> Iterable[tuple[int, int, int]]:
    """Return (messages, worker, entry sequence) of each run."""
    entries = found.entries(last, OWN)
    assert entries.first_sequence == 11
    return list(zip(entries.run_lengths, entries.entry_workers, entries.entry_sequences, strict=True))


@pytest.mark.parametrize(
    ("last", "expected"), [(0, [3, 2]), (11, [1]), (13, [3]), (14, [3, 1]), (99, [3, 2])]
)
def test_no_more_than_was_asked_for(last: int, expected: list[int]) -> None:
    """Entries are returned up to a sequence; 0 means all. A gap or another entry worker starts a new run."""
    same_way = held((3, 1, 0), (2, 4, 0), (1, 9, 0), (1, 10, PEER))
    assert runs(same_way) == [(5, OWN, 1), (1, OWN, 9), (1, PEER, 10)]
    assert [count for count, _, _ in runs(held((3, 1, 0), (2, 4, PEER)), last)] == expected


def test_a_subscription_reports_the_tasks_that_have_moved() -> None:
    """Each is reported after its last acknowledgement; without tasks, the subscription ends."""
    queues = queues_of([1, 2])
    consumer = Consumer(queues, 1, 2)
    put(queues, 1, b"a")
    assert consumer.take() == [(1, b"a", False)]
    queues.set_local_tasks([2])
    queues.take_leaving([1])
    assert consumer.subscription.moved_tasks == []  # its message is not acknowledged
    consumer.progress(1, 1)
    queues.take_leaving([1])
    assert consumer.subscription.moved_tasks == [1]
    queues.set_local_tasks([])
    queues.take_leaving([2])
    assert consumer.subscription.moved_tasks == [1]
    assert consumer.subscription.end_error is not None
