"""More rejected messages than the queues have space for: only their senders wait, and no task stalls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers.topology import TOPOLOGY, assign, ledger, numbered, queued, status
from helpers.traffic import client_of

from tuplewire import TaskMessage
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, TaskNotLocalError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.settings.config import RejectOrder
from tuplewire.values.dead_letters import REJECTED, DeadMessage
from tuplewire_service.testing import eventually

ROOM = 20
WINDOW = 64
"""The number of messages to a task that a sender may have outstanding, even with a small queue."""
LIMIT = 3
SENT = 400
TASK, OTHER, FAR, DEAD = 1, 2, 3, 9
FLAGS = (
    f"--receive-queue-messages={ROOM}",
    f"--dead-letter-task={DEAD}",
    f"--reject-limit={LIMIT}",
    "--drain-seconds=1",
)
Workers = tuple[Endpoint, Endpoint]


@pytest.fixture
def two() -> Iterator[Workers]:
    """Yield two workers with small queues, the first with the dead-letter task. Both ledgers must balance."""
    with WorkerProcesses(2, TOPOLOGY, flags=FLAGS) as workers:
        workers.assign({0: [TASK, OTHER, DEAD], 1: [FAR]})
        here, there = workers.endpoints
        yield here, there
        for each in (here, there):
            eventually(lambda each=each: ledger(each).balanced and not ledger(each).pending)  # type: ignore[misc]
        assert workers.stop() == [0, 0]


@contextmanager
def consumer(
    endpoint: Endpoint,
    task: int,
    is_bad: Callable[[TaskMessage], bool],
    after: float = 0.0,
    order: RejectOrder = RejectOrder.CONTINUE,
) -> Iterator[list[int]]:
    """Consume in a thread and reject bad messages; yield the numbers of the good ones as they arrive."""
    done: list[int] = []
    with (
        client_of(endpoint.address, reject_order=order) as client,
        client.recv([task], follow=False) as subscription,
    ):

        def consume() -> None:
            try:
                for message in subscription.messages():
                    if is_bad(message):
                        subscription.reject(after=after, reason="bad")
                    else:
                        done.append(int(message.message))
            except (ClosedError, TaskNotLocalError):  # closed below, or the task has moved
                pass

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            yield done
        finally:
            subscription.close()
            thread.join()


def odd(message: TaskMessage) -> bool:
    """Return True if the message's number is odd."""
    return int(message.message) % 2 == 1


def twice(message: TaskMessage) -> bool:
    """Return True until the message has been rejected twice."""
    return dict(message.headers).get(REJECTED) != b"2"


def sender_waits(endpoint: Endpoint) -> bool:
    """Return True if no message is queued or waits after a rejection, and a sender has no credit."""
    with ControlClient(endpoint.address) as control:
        now = control.status(max_clients=10)
    queue = next(each.queued_messages for each in now.tasks if each.task == TASK)
    return not queue and not now.rejected_waiting and any(each.exhausted_tasks for each in now.sessions)


def read_letters(endpoint: Endpoint, wanted: int) -> list[int]:
    """Read `wanted` dead letters and return their numbers."""
    with client_of(endpoint.address) as client, client.recv([DEAD], timeout=20) as subscription:
        letters = list(map(DeadMessage.read, subscription.messages(wanted)))
    return [int(letter.message.message) for letter in letters if letter is not None]


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_copies_without_room_stick_nothing(two: Workers, after: float) -> None:
    """Far more messages than the queue holds are rejected twice each, and all are processed in the end."""
    here, _ = two
    with client_of(here.address) as sender, consumer(here, TASK, twice, after) as done:
        sender.send(numbered(TASK, range(SENT)))
        eventually(lambda: len(done) == SENT, 60, "all are processed")
        sender.flush(20)
    assert sorted(done) == list(range(SENT))
    assert status(here).rejections == 2 * SENT
    assert (ledger(here).dropped["dead_lettered"], ledger(here).dropped["rejected"]) == (0, 0)


@pytest.mark.parametrize("order", RejectOrder)
def test_unread_letters_hold_back_only_the_senders_of_more(two: Workers, order: RejectOrder) -> None:
    """Unread dead letters have a limit; beyond it, only their senders wait until the letters are read."""
    here, _ = two
    with client_of(here.address) as sender, consumer(here, TASK, odd, order=order) as done:
        sender.send(numbered(TASK, range(SENT)))
        eventually(lambda: sender_waits(here), 30, "the sender waits")
        # The space of the dead letters, the space of their rejected copies, and one window of the sender.
        most = ROOM + ROOM + WINDOW
        assert ROOM <= queued(here, DEAD) < most
        assert sender.ledger().pending > 0
        assert done == list(range(0, len(done) * 2, 2))
        with client_of(here.address) as client, client.recv([OTHER], timeout=20) as subscription:
            client.send(numbered(OTHER, range(SENT)))
            assert len(list(subscription.messages(SENT))) == SENT
        assert ROOM <= queued(here, DEAD) < most
        letters = read_letters(here, SENT // 2)
        eventually(lambda: len(done) == SENT // 2, 30, "the others are processed")
        sender.flush(20)
    assert sorted(letters) == list(range(1, SENT, 2))
    assert done == list(range(0, SENT, 2))
    assert ledger(here).dropped["dead_lettered"] == SENT // 2


def test_who_reads_letters_may_reject_them(two: Workers) -> None:
    """Rejecting dead letters repeatedly, as `dead-letters drop ID` does, keeps them without a stall."""
    here, _ = two
    with client_of(here.address) as sender, consumer(here, TASK, odd) as done:
        sender.send(numbered(TASK, range(SENT)))
        eventually(lambda: sender_waits(here), 30, "the sender waits")
        with client_of(here.address) as client, client.recv([DEAD], timeout=20) as subscription:
            for _ in subscription.messages(LIMIT * (2 * ROOM + WINDOW)):
                subscription.reject()
        letters = read_letters(here, SENT // 2)
        eventually(lambda: len(done) == SENT // 2, 30, "the others are processed")
    assert sorted(letters) == list(range(1, SENT, 2))


def test_a_task_without_room_moves(two: Workers) -> None:
    """A move does not wait for space: the new owner gets the remaining messages, and can reject them."""
    here, there = two
    with client_of(here.address) as sender:
        with consumer(here, TASK, odd) as before:
            sender.send(numbered(TASK, range(SENT)))
            eventually(lambda: sender_waits(here), 30, "the sender waits")
            assign((here, there), 2, {here: [OTHER, DEAD], there: [TASK, FAR]})
            eventually(lambda: status(here).moving_tasks == 0, 30, "the move is over")
        with consumer(there, TASK, odd) as after:
            eventually(lambda: len(after) > 0, 30, "the new owner has messages")
            letters = read_letters(here, SENT // 2)
            eventually(lambda: len(before) + len(after) == SENT // 2, 30, "the others are processed")
            sender.flush(20)
    assert before + after == list(range(0, SENT, 2))
    assert sorted(letters) == list(range(1, SENT, 2))
