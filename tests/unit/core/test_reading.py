"""Reading a queue without consuming it, acknowledging read messages, and waiting for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from helpers.cursors import cursor_of
from helpers.queues import Program, consumers_of, queues_of, subscribe

from tuplewire.errors import SupersededError, UnknownTaskError
from tuplewire.session.consume import Delivery
from tuplewire.settings.config import MIB
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire_service.worker import receive_queues
from tuplewire_service.worker.delivery import AckedGroup, DeliveryLog

TASK = 1
LARGE = 2**40


class Fixture:
    """Queues of a worker with one task. Messages are single letters."""

    def __init__(self) -> None:
        self.done: list[AckedGroup] = []
        self.queues = queues_of([TASK])
        self.queues.on_acknowledged = lambda _task, done: self.done.extend(done)

    def put(self, *groups: str) -> None:
        for group in groups:
            self.queues.put(
                TaskGroup.from_checked(TASK, None, [letter.encode() for letter in group]), Program()
            )

    def read(self, after: int, last: int, max_bytes: int = MIB) -> str:
        """Return the messages that a reader receives in one frame."""
        return shown(self.queues.read(TASK, after, last, max_bytes))

    def acknowledge(self, sequence: int) -> int:
        """Acknowledge up to a sequence; return the number of calls that were needed."""
        turns = 0
        while self.queues.acknowledge(TASK, sequence):
            turns += 1
        return turns

    def subscribe(self) -> None:
        """Subscribe a consumer that has received two messages."""
        self.subscription = subscribe(consumers_of(self.queues), "mine", [cursor_of(TASK, 0, 0, 2, MIB)])
        assert sum(len(each.group) for each in self.subscription.take(MIB)) == 2


def shown(found: Sequence[Delivery]) -> str:
    """Return the messages of consecutive deliveries."""
    for one, other in pairwise(found):
        assert other.first_sequence == one.last_sequence + 1
    return b"".join(each.group.data for each in found).decode()


@pytest.mark.parametrize(
    ("after", "last", "expected"),
    [
        (0, 6, "abcdef"),
        (0, 1, "a"),
        (1, 3, "bc"),
        (2, 5, "cde"),
        (5, 6, "f"),
        (6, 9, ""),
        (5, 5, ""),
        (0, 99, "abcdef"),
    ],
)
def test_any_range_is_read_and_stays(after: int, last: int, expected: str) -> None:
    """Reading a range returns its messages and does not consume any."""
    all_ = Fixture()
    all_.put("abc", "d", "ef")
    assert all_.read(after, last) == expected
    assert all_.read(after, last) == expected
    assert all_.queues.pending_messages == 6
    assert all_.done == []


def test_a_frame_has_a_bound() -> None:
    """A frame is limited in bytes, including lengths, and in groups; the next read continues."""
    all_ = Fixture()
    all_.put("abcdef", *"g" * MAX_FRAME_GROUPS)
    assert all_.read(0, LARGE, 1) == "a"
    assert all_.read(1, LARGE, 12) == "bcd"
    assert all_.read(4, LARGE, 60).startswith("efg")
    assert len(all_.queues.read(TASK, 6, LARGE, MIB)) == MAX_FRAME_GROUPS
    assert len(all_.queues.read(TASK, 5, LARGE, MIB)) == MAX_FRAME_GROUPS


@pytest.mark.parametrize("groups", [1, 63, 64, 127, 128, 129, 200])
def test_a_long_queue_is_read_from_any_place(groups: int) -> None:
    """A queue can be read from any position, even if its middle is packed or partly acknowledged."""
    log = DeliveryLog()
    for number in range(groups):
        log.append(TaskGroup.from_checked(TASK, None, [b"%4d" % number, b"...."]))
    for acknowledged in (0, groups, groups * 3 // 2):
        log.take(acknowledged, LARGE, LARGE, limit=LARGE)
        log.apply_progress(acknowledged, acknowledged)
        for after in range(acknowledged, 2 * groups):
            found = log.read(after, 2 * groups, LARGE)
            assert sum(len(each.group) for each in found) == max(0, 2 * groups - after)
            if found:
                assert found[0].first_sequence == after + 1
                assert found[0].group.data[:4] == (b"...." if after % 2 else b"%4d" % (after // 2))


def test_acknowledging_counts_once_and_in_turns() -> None:
    """Each message is acknowledged once; one call handles a limited number of groups."""
    all_ = Fixture()
    all_.put("abc", *"d" * 250)
    assert all_.acknowledge(2) == 1
    assert sum(each.messages for each in all_.done) == 2
    assert all_.acknowledge(2) == 0
    assert all_.acknowledge(LARGE) == 3
    assert sum(each.messages for each in all_.done) == 253
    assert all_.queues.pending_messages == 0
    all_.put("e")
    assert all_.read(0, LARGE) == "e"


def test_a_task_with_a_consumer_is_not_read() -> None:
    """The error names the consumer; its unacknowledged messages can be read after it disconnects."""
    all_ = Fixture()
    all_.put("abcd")
    all_.subscribe()
    for call in (lambda: all_.read(0, 4), lambda: all_.acknowledge(1)):
        with pytest.raises(SupersededError, match="task 1 has the consumer 'mine'"):
            call()
    held = all_.queues.snapshot(TASK)
    assert held is not None
    assert held.state.consumer_id == "mine"
    all_.subscription.close()
    assert all_.acknowledge(1) == 1
    assert sum(each.messages for each in all_.done) == 1, "though two were handed out"
    assert all_.read(0, 4) == "bcd"
    assert all_.acknowledge(3) >= 1
    assert all_.read(0, 4) == "d"
    held = all_.queues.snapshot(TASK)
    assert held is not None
    state = held.state
    assert (state.acknowledged_sequence, state.last_sequence, state.queued_bytes) == (3, 4, 1)
    assert state.consumer_id == ""


def test_a_task_that_is_not_here() -> None:
    """Reading an unknown task is an error; acknowledging skips it, because the task may have moved."""
    queues = Fixture().queues
    with pytest.raises(UnknownTaskError):
        queues.read(9, 0, 1, MIB)
    assert not queues.acknowledge(9, 1)


@pytest.mark.parametrize(
    ("seen", "change", "news"),
    [
        ({TASK: 1}, "", True),
        ({TASK: 2}, "", False),
        ({TASK: 2}, "put", True),
        ({TASK: 2}, "move", True),
        ({TASK: 2, 9: 0}, "", True),
    ],
)
async def test_a_wait_ends_with_news(seen: dict[int, int], change: str, *, news: bool) -> None:
    """A wait ends with an unread message or an absent task, and its reader is then removed."""
    all_ = Fixture()
    all_.put("ab")
    waiting = asyncio.create_task(all_.queues.wait_for_change(seen, 60 if change else 0.05))
    await asyncio.sleep(0)
    assert waiting.done() is (news and not change)
    if change == "put":
        all_.put("z")
    elif change == "move":
        all_.queues.set_local_tasks([])
    async with asyncio.timeout(30):
        await waiting
    queue = all_.queues.by_task.get(TASK)
    assert queue is None or not queue.reader_events


async def test_few_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait beyond the limit returns immediately; a finished wait makes space for another."""
    monkeypatch.setattr(receive_queues, "_MAX_WATCHED_TASKS", 1)
    all_ = Fixture()

    for _ in range(2):
        tail = all_.queues.by_task[TASK].log.tail
        waiting = asyncio.create_task(all_.queues.wait_for_change({TASK: tail}, 60))
        await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await all_.queues.wait_for_change({TASK: 99}, 60)
        assert not waiting.done()
        all_.put("z")
        await waiting


def test_reading_ends_the_wait_in_the_queue() -> None:
    """The metric of waiting times counts each message once, at its first read."""
    all_ = Fixture()
    all_.put("abc")
    assert sum(all_.queues.queue_wait.counts) == 0
    all_.read(0, 2)
    all_.read(0, 2)
    assert sum(all_.queues.queue_wait.counts) == 2
    all_.read(0, 3)
    assert sum(all_.queues.queue_wait.counts) == 3
