"""Rejections at a worker: space for copies, and dead letters and copies that cannot be delivered."""

from __future__ import annotations

import asyncio
import time

import pytest
from helpers.cursors import rejection_of
from helpers.queues import Program, RejectionsWithoutTimers, delivered

from tuplewire.errors import MAX_TASK
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.values.dead_letters import TASK, DecodedDeadLetter
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.delivery import AckedGroup
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.task_queue import TaskQueue
from tuplewire_service.worker.worker_settings import WorkerSettings

DEAD = 9


def reject(messages: Rejections, queue: TaskQueue, number: int = 1, after: float = 0.0) -> AckedGroup | None:
    """Reject the message with this number."""
    return messages.reject(queue, rejection_of(number, number, after, "no", wait=False))


def rejected(messages: Rejections, sender: Program, count: int) -> None:
    """Queue messages, deliver them, and reject each of them."""
    queue = delivered(*[b"x"] * count, sender=sender)
    for number in range(1, count + 1):
        settled = reject(messages, queue, number, 100.0)
        assert settled is not None
        settled.inbound.release(1, 1, 1)


def test_a_task_that_moves_away_gives_its_senders_room() -> None:
    """Senders get no space beyond the limit until copies are sent or the task moves."""
    messages = RejectionsWithoutTimers(most=3)
    sender = Program()
    rejected(messages, sender, 5)
    assert messages.is_full(1)
    assert sender.released == 2
    messages.release_originals(2)
    assert sender.released == 2
    messages.release_originals(1)
    assert sender.released == 5


@pytest.mark.parametrize(
    ("most", "below", "rest", "released"),
    [(2, 1, [1], (2, 1000)), (1_000_000, 1000, [1000, 48], (1300, 0))],
    ids=["messages", "bytes"],
)
def test_room_before_and_at_the_bound(
    most: int, below: int, rest: list[int], released: tuple[int, int]
) -> None:
    """Copies of one byte fill a mebibyte with their overhead; space returns when most are released."""
    messages, sender = RejectionsWithoutTimers(most=most), Program()
    rejected(messages, sender, below)
    assert not messages.is_full(1)
    for count in rest:
        rejected(messages, sender, count)
    assert messages.is_full(1)
    assert not messages.is_full(2)
    messages.release(1, *released)
    assert not messages.is_full(1)


@pytest.mark.parametrize(("task", "most"), [(None, 100), (DEAD, 1)])
def test_a_dead_letter_without_a_place(task: int | None, most: int) -> None:
    """A dead letter is dropped if there is no dead-letter task, or if its queue is full."""
    messages = RejectionsWithoutTimers(dead_letter_task=task, most=most)
    group = TaskGroup.of(1, [b"x"])
    assert messages.accepts_dead_letters is (task is not None)
    messages.emit_dead_letter(group, 1, "no")
    assert not messages.accepts_dead_letters
    messages.emit_dead_letter(group, 1, "no")
    assert len(messages.waiting_copies) == (task is not None)


@pytest.mark.parametrize(
    ("header", "task"), [(b"%d" % MAX_TASK, MAX_TASK), (b"2147483648", None), (b"-1", None)]
)
def test_a_dead_letter_names_any_task(header: bytes, task: int | None) -> None:
    """A dead letter is decoded for every valid task id, and for no other."""
    letter = DecodedDeadLetter.read(TaskMessage(DEAD, b"x", headers=[(TASK, header)]))
    assert (letter and letter.task) == task


def test_after_the_last_try_a_message_is_dropped_where_nobody_takes_dead_letters() -> None:
    """The message is settled for its sender and counts as dropped{rejected}."""
    messages, queue = RejectionsWithoutTimers(limit=1), delivered(b"x")
    done = reject(messages, queue)
    assert messages.ledger.dropped[DropReason.REJECTED] == 1
    assert done is not None
    assert (done.messages, queue.blocked_until) == (1, 0.0)


@pytest.mark.parametrize(
    ("task", "holder_known", "sent", "counted"),
    [(DEAD, True, 1, {"dead_lettered": 1}), (None, True, 0, {"rejected": 1}), (DEAD, False, 0, {})],
)
async def test_a_letter_is_sent_or_counted_or_waits(
    task: int | None, *, holder_known: bool, sent: int, counted: dict[str, int]
) -> None:
    """A dead letter is sent immediately, or after an interval if its task has no holder: no busy loop."""
    ledger = Ledger()
    batches: list[ReceivedBatch] = []
    settings = WorkerSettings(worker_id="w", topology="t", reject_limit=1, dead_letter_task=task)
    rejections = Rejections(settings, ledger, batches.append, lambda _: holder_known)
    assert rejections.accepts_dead_letters is bool(task)
    rejections.emit_dead_letter(TaskGroup.of(1, [b"x"]), 1, "no")
    await asyncio.sleep(0.05)
    assert (len(batches), len(rejections.waiting_copies)) == (sent, not holder_known)
    assert holder_known or rejections.waiting_copies[0].due_at - time.monotonic() > 0.2
    rejections.close()
    assert {reason.value: count for reason, count in ledger.dropped.items() if count} == counted


def test_a_rejection_that_comes_too_late_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A rejection of an acknowledged message is neither counted nor logged."""
    rejections, queue = RejectionsWithoutTimers(), delivered(b"x")
    queue.log.apply_progress(1, 1)
    assert (reject(rejections, queue), queue.blocked_until) == (None, 0.0)
    assert not any(rejections.ledger.dropped.values())
    assert caplog.messages == []
