"""Rejected messages with real workers: redelivery, dead letters, and balanced ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from helpers.program import in_threads
from helpers.topology import (
    Pair,
    acknowledged,
    assign,
    ledger,
    metric,
    numbered,
    pair_of_workers,
    queued,
    status,
    workers_with,
)
from helpers.traffic import client_of, deliver
from helpers.worker_process import run_command

from tuplewire import TaskMessage
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, MessageError, SupersededError, TaskNotLocalError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.settings.config import RejectOrder
from tuplewire.values.dead_letters import REJECTED, DecodedDeadLetter
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

DEAD = 999
LIMIT = 3
command = partial(run_command, "dead-letters")


@pytest.fixture(scope="module")
def letter_pair() -> Iterator[Pair]:
    """Run two workers; the first owns the dead-letter task of both."""
    with pair_of_workers(f"--dead-letter-task={DEAD}", f"--reject-limit={LIMIT}") as pair:
        yield pair
        pair.check_balance()


def letters(pair: Pair) -> list[TaskMessage]:
    """Receive and return all dead letters."""
    with client_of(pair.near.address) as client, client.recv([DEAD]) as subscription:
        return list(subscription.messages(quiet=0.3))


def test_after_the_limit_it_is_a_dead_letter(letter_pair: Pair) -> None:
    """A dead letter has reason, source, task, count, time, key and headers, and the ledger counts it."""
    task = letter_pair.near_task()
    before = ledger(letter_pair.near)
    with client_of(letter_pair.near.address, source=5) as client:
        client.send(task, b"poison", key=b"k", headers=[("mine", b"1")])
        deliver(client, task, b"fine")
        with client.recv([task]) as subscription:
            for message in subscription.messages(quiet=0.5):
                if message.message == b"poison":
                    subscription.reject(reason="no such account")
    eventually(lambda: queued(letter_pair.near, DEAD) == 1)
    # The alert for unread dead letters uses these metrics.
    assert metric(letter_pair.near, f'tuplewire_queue_messages{{task="{DEAD}"}}') == 1
    assert metric(letter_pair.near, f'tuplewire_queue_subscribed{{task="{DEAD}"}}') == 0
    [letter] = letters(letter_pair)
    told = dict(letter.headers)
    assert (letter.message, letter.key) == (b"poison", b"k")
    assert (told.pop("tuplewire-dead-time") or b"").startswith(b"20")
    assert told == {
        "mine": b"1",
        "tuplewire-dead-reason": b"no such account",
        "tuplewire-dead-source": b"5",
        "tuplewire-dead-task": str(task).encode(),
        "tuplewire-dead-count": str(LIMIT).encode(),
    }
    eventually(lambda: queued(letter_pair.near, DEAD) == 0)
    now = ledger(letter_pair.near)
    assert now.balanced
    assert now.dropped["dead_lettered"] - before.dropped["dead_lettered"] == 1
    # Two messages were sent. The ledger also counts two redeliveries and one dead letter.
    assert now.accepted - before.accepted == 5
    assert now.acknowledged - before.acknowledged == 4
    assert metric(letter_pair.near, 'tuplewire_dropped_messages_total{reason="dead_lettered"}') >= 1
    assert metric(letter_pair.near, "tuplewire_rejections_total") >= LIMIT


def test_an_acknowledgement_in_the_middle_leaves_later_rejections_out(letter_pair: Pair) -> None:
    """A rejection without an acknowledgement has no effect: the next consumer gets the message uncounted."""
    task = letter_pair.near_task()
    with client_of(letter_pair.near.address) as client:
        deliver(client, numbered(task, range(4)))
        with client.recv([task], timeout=10) as subscription:
            next(subscription)
            subscription.reject(0)
            subscription.reject(3)
            subscription.acknowledge(2)
        eventually(lambda: acknowledged(letter_pair.near, task) == 2)
        with client.recv([task], timeout=10) as subscription:
            found = [(message.message, len(message.headers)) for message in subscription.messages(3)]
    assert sorted(found) == [(b"0", 1), (b"2", 0), (b"3", 0)]


def test_what_is_no_message_cannot_be_rejected(letter_pair: Pair) -> None:
    """Rejecting a missing message, or with a negative delay, raises an error that names the wrong value."""
    task = letter_pair.near_task()
    with client_of(letter_pair.near.address) as client, client.recv([task], timeout=10) as subscription:
        with pytest.raises(MessageError, match="no message to reject, of 0"):
            subscription.reject()
        client.send(task, b"a")
        next(subscription)
        with pytest.raises(MessageError, match="no message 1 to reject, of 1"):
            subscription.reject(1)
        wrong: Any
        for wrong in (-1, math.nan, "x", None, [1], timedelta(1)):
            with pytest.raises(MessageError, match="delay must be from 0"):
                subscription.reject(0, delay=wrong)
        wrong = 0.0
        reject, acknowledge = subscription.reject, subscription.acknowledge
        for call in (partial(reject, wrong), partial(reject, 0, reason=wrong), partial(acknowledge, wrong)):
            with pytest.raises(MessageError, match=r"0\.0"):
                call()
        subscription.reject(0, reason="no \udcff")
        assert next(subscription).payloads == [b"a"]


@pytest.mark.parametrize("order", RejectOrder)
def test_a_broken_connection_loses_and_doubles_no_rejection(letter_pair: Pair, order: RejectOrder) -> None:
    """With connection resets, each message is processed once, and rejected messages have the right count."""
    task = letter_pair.near_task()
    seen: list[int] = []
    with (
        FaultProxy(letter_pair.near.address) as proxy,
        client_of(letter_pair.near.address) as sender,
        client_of(proxy.address, reject_order=order, prefetch_messages=20) as client,
    ):
        sender.send(numbered(task, range(300)))
        with client.recv([task], timeout=20) as subscription:
            for taken, message in enumerate(subscription.messages(400), 1):
                number = int(message.message)
                if taken % 47 == 0:
                    proxy.cut()
                if number % 3 == 0 and not message.headers:
                    subscription.reject()
                else:
                    assert len(message.headers) == (number % 3 == 0)
                    seen.append(number)
            eventually(lambda: ledger(letter_pair.near).balanced and queued(letter_pair.near, task) == 0)
    assert sorted(seen) == list(range(300))
    if order == "wait":
        assert seen == sorted(seen)
    else:
        assert [each for each in seen if each % 3] == sorted(each for each in seen if each % 3)


@pytest.mark.parametrize("order", RejectOrder)
def test_rejected_messages_follow_their_task(order: RejectOrder) -> None:
    """A rejected message moves with its task to the new owner, and keeps its count."""
    with workers_with([1], [2], flags=["--drain-seconds=0.5"]) as workers:
        here, there = workers.endpoints
        with client_of(here.address, reject_order=order) as client:
            deliver(client, numbered(1, range(3)))
            with client.recv([1], timeout=10) as subscription:
                batch = next(subscription)
                while len(batch) < 3:
                    batch = next(subscription)
                # With reject_order="wait", the delay ends with the move.
                subscription.reject(0, delay=0.5 if order == "continue" else 3600)
                subscription.acknowledge()
                eventually(lambda: status(here).rejections == 1)
            assign((here, there), 2, {here: [2], there: [1]})
            with client_of(there.address) as other, other.recv([1]) as subscription:
                wanted = [0] if order == "continue" else [0, 1, 2]
                found = [(int(each.message), each.headers) for each in subscription.messages(len(wanted))]
        assert [number for number, _ in found] == wanted
        assert found[0][1] == (("tuplewire-rejected", b"1"),)
        eventually(lambda: all(ledger(each).balanced and not ledger(each).pending for each in (here, there)))


@pytest.mark.slow
def test_the_command_lists_shows_replays_and_drops(letter_pair: Pair) -> None:
    """The command works with any worker's address, and leaves other dead letters in order."""
    letters(letter_pair)
    task = letter_pair.far_task()
    with client_of(letter_pair.far.address, source=8) as client:
        deliver(client, numbered(task, range(4), source=8))
        with client.recv([task]) as subscription:
            for message in subscription.messages(quiet=0.5):
                subscription.reject(reason=f"bad {message.message.decode()}")
    way = ("--address", letter_pair.far.address)
    listed = [json.loads(line) for line in command("list", "--json", *way).stdout.splitlines()]
    assert sorted((each["message"], each["reason"], each["count"], each["source"]) for each in listed) == [
        (str(number), f"bad {number}", LIMIT, 8) for number in range(4)
    ]
    ids = {each["message"]: each["id"] for each in listed}
    with client_of(letter_pair.near.address) as client, client.recv([DEAD], timeout=10) as other:
        next(other)
        assert ids["2"] in command("list", *way).stdout
        with pytest.raises(SupersededError):
            list(other.messages(seconds=20))
    shown = command("show", ids["2"], *way).stdout
    assert "reason   bad 2" in shown
    assert f"to       task {task} from task 8" in shown
    assert command("replay", *way).returncode == 64
    unknown = command("drop", "nonsense", ids["1"], *way)
    assert (unknown.returncode, "dropped" in unknown.stderr) == (1, False)
    assert "1 sent again" in command("replay", ids["2"], *way).stderr
    assert "1 dropped" in command("drop", ids["0"], *way).stderr
    left = [json.loads(line)["message"] for line in command("list", "--json", *way).stdout.splitlines()]
    assert left == [each["message"] for each in listed if each["message"] in {"1", "3"}]
    with client_of(letter_pair.far.address) as client, client.recv([task], timeout=10) as subscription:
        batch = next(subscription)
        assert [(message.message, message.headers) for message in batch] == [(b"2", ())]
        assert batch.groups[0].source == 8
    assert "2 dropped" in command("drop", "--all", *way).stderr
    assert [command(each, "--all", *way).stderr for each in ("list", "show")] == ["no dead letters\n"] * 2
    eventually(lambda: queued(letter_pair.near, DEAD) == 0)


@pytest.mark.parametrize("replayed", [False, True])
def test_a_mark_survives_rejections_and_the_dead_letter(letter_pair: Pair, *, replayed: bool) -> None:
    """A message marked as redelivered keeps its mark in rejections, in its dead letter, and in the replay."""
    letters(letter_pair)
    task = letter_pair.near_task()
    order = RejectOrder.CONTINUE if replayed else RejectOrder.WAIT
    with client_of(letter_pair.near.address, reject_order=order) as client:
        deliver(client, task, b"maybe processed")
        with client.recv([task], timeout=10) as subscription:
            assert not next(subscription).groups[0].redelivered
        with client.recv([task], timeout=10) as subscription:
            for _ in range(LIMIT):
                assert next(subscription).groups[0].redelivered
                subscription.reject(0)
                subscription.acknowledge()
        if replayed:
            way = ("--all", "--address", letter_pair.near.address)
            assert "1 sent again" in command("replay", *way).stderr
        with client.recv([task if replayed else DEAD], timeout=10) as subscription:
            assert next(subscription).groups[0].redelivered


ROOM = 20
WINDOW = 64
"""The number of messages to a task that a sender may have outstanding, even with a small queue."""
SENT = 400
TASK, OTHER, FAR = 1, 2, 3
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
    with workers_with([TASK, OTHER, DEAD], [FAR], flags=FLAGS) as workers:
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
                        subscription.reject(delay=after, reason="bad")
                    else:
                        done.append(int(message.message))
            except (ClosedError, TaskNotLocalError):  # closed below, or the task has moved
                pass

        with in_threads(consume):
            try:
                yield done
            finally:
                subscription.close()


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
    waits = any(each.blocking_task_count for each in now.sessions)
    return waits and not queue and not now.rejected_waiting_messages


def read_letters(endpoint: Endpoint, wanted: int) -> list[int]:
    """Read `wanted` dead letters and return their numbers."""
    with client_of(endpoint.address) as client, client.recv([DEAD], timeout=20) as subscription:
        letters = list(map(DecodedDeadLetter.read, subscription.messages(wanted)))
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
            eventually(lambda: status(here).moving_task_count == 0, 30, "the move is over")
        with consumer(there, TASK, odd) as after:
            eventually(lambda: len(after) > 0, 30, "the new owner has messages")
            letters = read_letters(here, SENT // 2)
            eventually(lambda: len(before) + len(after) == SENT // 2, 30, "the others are processed")
            sender.flush(20)
    assert before + after == list(range(0, SENT, 2))
    assert sorted(letters) == list(range(1, SENT, 2))
