"""Long acknowledgements: the worker settles them in slices, and the client splits many rejections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from helpers.cursors import answer_of, cursor_of, rejection_of
from helpers.queues import Program, RejectionsWithoutTimers, consumers_of, delivered, queues_of, subscribe

from tuplewire.errors import MalformedError
from tuplewire.session.consume import ArrivedBatch, ConsumeSession, Delivery, RejectedMessage
from tuplewire.session.ledger import Ledger
from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.messaging.recv_service import _apply_progress, _cursors_of
from tuplewire_service.worker.delivery import AckedGroup
from tuplewire_service.worker.queue_subscription import QueueSubscription
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.worker_settings import WorkerSettings

MESSAGES = 2500
TURN = 100
ROOM = cursor_of(1, 0, 0, 10 * MESSAGES, MIB)


class Scene:
    """A worker with task 1, and a consumer that has taken every message; each message is a group."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        """Number of groups settled in each turn."""
        self.rejections = RejectionsWithoutTimers()
        self.queues = queues_of([1], receive_queue_messages=10 * MESSAGES)
        self.queues.on_acknowledged = self._done
        self.consumers = consumers_of(self.queues, self.rejections)
        for number in range(MESSAGES):
            self.queues.put(TaskGroup.of(1, [b"%d" % number]), Program())
        self.consumer = self.subscribe(ROOM)
        assert len(taken(self.consumer)) == MESSAGES

    def _done(self, task: int, done: Sequence[AckedGroup]) -> None:
        assert task == 1
        self.settled.append(len(done))

    def subscribe(self, cursor: pb.TaskCursor, worker: int = 0) -> QueueSubscription:
        """Subscribe, or resume if `worker` is given."""
        consumer: QueueSubscription = subscribe(self.consumers, "c", [cursor], worker_incarnation=worker)
        return consumer

    def finish(self, consumer: QueueSubscription) -> None:
        """Give the worker all the turns that it requests."""
        while consumer.apply_progress(()):
            pass


def taken(consumer: QueueSubscription) -> list[Delivery]:
    """Return all deliveries for a consumer, from any number of frames."""
    return [each for frame in iter(lambda: consumer.take(MIB), []) for each in frame]


def rejections(count: int, *, wait_last: bool = False) -> tuple[pb.Rejection, ...]:
    """Return one rejection for each of the first `count` messages."""
    return tuple(
        rejection_of(number, number, 0, "why", wait=wait_last and number == count)
        for number in range(1, count + 1)
    )


@pytest.mark.parametrize(
    "rejected",
    [
        (),
        rejections(MESSAGES),
        (rejection_of(1, MESSAGES - 5, 0, "", wait=False),),
        tuple(rejection_of(number, 80 * number, 0, "", wait=False) for number in (1, 2)),
    ],
    ids=["none", "all", "one far back", "two far apart"],
)
def test_no_turn_settles_more_than_a_slice(rejected: tuple[pb.Rejection, ...]) -> None:
    """Every message is settled once in the end, acknowledged or rejected."""
    scene = Scene()
    assert scene.consumer.apply_progress([cursor_of(1, MESSAGES, MESSAGES, 10 * MESSAGES, MIB, rejected)])
    assert scene.settled == [TURN]
    scene.finish(scene.consumer)
    assert max(scene.settled) <= TURN
    assert sum(scene.settled) == MESSAGES
    assert not scene.consumer.has_unacknowledged
    assert scene.rejections.rejection_count == len(rejected)
    assert [
        (each.rejection_number, each.received_sequence) for each in scene.consumer.rejection_answers.values()
    ] == ([(len(rejected), MESSAGES)] if rejected else [])


@pytest.mark.parametrize("wait_last", [False, True])
def test_a_consumer_that_resumes_with_many_rejections(*, wait_last: bool) -> None:
    """The last message may wait: it must keep its place until its rejection is processed."""
    scene = Scene()
    rejected = 1000
    acknowledged = rejected - wait_last
    said = cursor_of(
        1, acknowledged, acknowledged, 10 * MESSAGES, MIB, rejections(rejected, wait_last=wait_last)
    )
    again = scene.subscribe(said, worker=1)
    assert max(scene.settled) <= TURN
    scene.finish(again)
    assert max(scene.settled) <= TURN
    assert scene.rejections.rejection_count == rejected
    assert again.positions == [(1, acknowledged)]
    [first, *_] = again.take(MIB)
    assert first.first_sequence == acknowledged + 1


def test_another_consumer_ends_what_is_left_to_settle() -> None:
    """Messages that were not settled are delivered to the new consumer, marked as redelivered."""
    scene = Scene()
    assert scene.consumer.apply_progress([cursor_of(1, MESSAGES, MESSAGES, MESSAGES, MIB)])
    other = subscribe(scene.consumers, "other", [ROOM])
    assert not scene.consumer.apply_progress(())
    deliveries = taken(other)
    assert sum(len(each.group) for each in deliveries) == MESSAGES - TURN
    assert all(each.group.redelivered for each in deliveries)


async def test_the_service_gives_others_a_turn() -> None:
    """A request of any size is settled in slices, and the event loop runs other tasks in between."""
    scene = Scene()
    said = cursor_of(1, MESSAGES, MESSAGES, MESSAGES, MIB, rejections(MESSAGES))
    turns: list[int] = []

    taking = asyncio.create_task(_apply_progress(scene.consumer, pb.Progress(tasks=[said] * 3)))
    while not taking.done():
        before = sum(scene.settled)
        await asyncio.sleep(0)
        turns.append(sum(scene.settled) - before)
    await taking

    assert sum(turns) == MESSAGES
    assert max(turns) <= 2 * TURN


@pytest.mark.parametrize(("tasks", "each"), [(1, 10_000), (10_000, 0), (100, 99)])
async def test_a_long_subscribe_gives_others_a_turn(tasks: int, each: int) -> None:
    """Many cursors or rejections are read in slices, with the same result as reading them in one turn."""
    wanted = {task: cursor_of(task, 9, 9, 20, 100, rejections(each)) for task in range(tasks)}
    subscribe = pb.Subscribe(tasks=wanted.values())
    turns = 0
    reading = asyncio.create_task(_cursors_of(subscribe))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert reading.result() == wanted
    assert turns >= tasks * (1 + each) / (2 * TURN)


@pytest.mark.parametrize("numbers", [(2, 1), (1, 1), (0,)])
async def test_numbers_of_rejections_grow(numbers: tuple[int, ...]) -> None:
    """Rejection numbers must increase, because the worker counts settled rejections by them."""
    told = pb.TaskCursor(task=1, rejections=[pb.Rejection(number=each, sequence=1) for each in numbers])
    with pytest.raises(MalformedError, match=r"task 1: rejection \d"):
        await _cursors_of(pb.Subscribe(tasks=[told]))


class Client:
    """A session with a consumer that has received every message."""

    def __init__(self) -> None:
        self.session = ConsumeSession([1], 10 * MESSAGES, MIB)
        self.session.on_connected(7, [(1, 0)])
        self.arrived = self.session.receive([Delivery(1, TaskGroup.of(1, [b"x"] * MESSAGES))])

    def reject(self, count: int, *, wait_last: bool = False) -> None:
        """Reject the first `count` messages, and acknowledge the others."""
        each = [RejectedMessage(index, 0, "", wait_last and index == count - 1) for index in range(count)]
        assert self.session.acknowledge(self.arrived, each)

    def tell(self) -> list[pb.TaskCursor]:
        """Return the cursors of all pending requests, in order."""
        told = []
        while self.session.changed_tasks:
            told += self.session.take_changed_cursors()
        return told


def _numbers(cursors: Sequence[pb.TaskCursor]) -> list[int]:
    return [each.number for cursor in cursors for each in cursor.rejections]


@pytest.mark.parametrize(
    ("count", "acknowledged"),
    [(999, [MESSAGES]), (1000, [MESSAGES]), (1001, [1000, MESSAGES]), (2100, [1000, 2000, MESSAGES])],
)
def test_no_request_is_longer_than_it_may_be(count: int, acknowledged: list[int]) -> None:
    """A request has at most 1,000 rejections, and acknowledges no message before its rejection is sent."""
    client = Client()
    client.reject(count)
    told = client.tell()
    assert _numbers(told) == list(range(1, count + 1))
    assert [each.acknowledged_sequence for each in told] == acknowledged


@pytest.mark.parametrize("wait_last", [False, True])
@pytest.mark.parametrize("again", [ConsumeSession.mark_all_changed, ConsumeSession.take_all_cursors])
def test_all_are_told_again_after_a_break(
    *, again: Callable[[ConsumeSession], object], wait_last: bool
) -> None:
    """A new stream or a probe starts again with the first rejection, and the rest follows."""
    client = Client()
    client.reject(2100, wait_last=wait_last)
    client.tell()
    first = again(client.session)
    told = [*(first if isinstance(first, list) else ()), *client.tell()]
    assert _numbers(told) == list(range(1, 2101))


def test_a_session_waits_for_the_answer_to_a_rejection_that_was_not_in_the_subscribe() -> None:
    """Messages that arrive before the answer are dropped, and redelivered behind the rejected message."""
    client = Client()
    client.reject(2100, wait_last=True)
    [subscribe] = client.session.take_all_cursors()
    assert subscribe.received_sequence == 2100
    client.session.on_connected(7, [(1, subscribe.received_sequence)])
    assert client.session.tasks_awaiting_answer() == {1}
    assert client.session.receive([Delivery(2101, TaskGroup.of(1, [b"x"]))]).deliveries == ()
    assert _numbers(client.tell()) == list(range(1001, 2101))
    client.session.apply_answers([answer_of(1, 2100, 2099)])
    assert client.session.tasks_awaiting_answer() == set()
    found: ArrivedBatch = client.session.receive([Delivery(2100, TaskGroup.of(1, [b"again"]))])
    assert [each.first_sequence for each in found.deliveries] == [2100]


async def test_copies_that_are_due_together_are_sent_in_slices() -> None:
    """A drain, or the same delay for all, makes thousands of copies due at the same time."""
    sent: list[int] = []

    settings = WorkerSettings(worker_id="w", topology="t", dead_letter_task=9)
    all_sent = asyncio.Event()

    def recv(batch: ReceivedBatch) -> None:
        sent.append(len(batch.groups))
        if sum(sent) == MESSAGES:
            all_sent.set()

    shell = Rejections(settings, Ledger(), recv, lambda _: True)
    queue = delivered(*[b"x"] * MESSAGES)
    for number in range(1, MESSAGES + 1):
        shell.reject(queue, rejection_of(number, number, 3600, "", wait=False))
    shell.send_immediately()
    async with asyncio.timeout(20):
        await all_sent.wait()
    shell.close()

    assert sum(sent) == MESSAGES
    assert max(sent) <= TURN
