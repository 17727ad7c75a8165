"""The send window with the policy `drop_oldest`: dropped and retained messages."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from helpers.acks import credit_of
from helpers.sending import PLENTY, Sending, contents, payloads

from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.pending_messages import OldestTask
from tuplewire.settings.config import Overflow
from tuplewire.values.group import TaskGroup

OVERFLOW = DropReason.OVERFLOW

dropping = functools.partial(Sending, overflow=Overflow.DROP_OLDEST)


def sizes_of(*sizes: int, task: int = 1) -> TaskGroup:
    """Return messages of these sizes, each filled with its entry_sequence."""
    return TaskGroup.of(task, [bytes([entry_sequence]) * size for entry_sequence, size in enumerate(sizes)])


# --- dropped messages -----------------------------------------------------------------------------


def test_the_oldest_give_way_to_the_newest() -> None:
    """Over max_pending_messages, only as many of the oldest are dropped as necessary."""
    sending = dropping(max_pending_messages=5)
    for _ in range(12):
        assert sending.offer(1)
    assert payloads(sending.frames()) == bytes(range(7, 12))
    assert sending.dropped == {"overflow": 7}
    assert sending.window.ledger().accepted == 12


def test_the_oldest_of_all_tasks_give_way() -> None:
    """The oldest messages are dropped first, regardless of their task."""
    sending = dropping(max_pending_messages=6)
    for task in (3, 1, 2, 1, 3, 2):
        sending.offer(task)
    assert sending.offer(4, 4)
    assert sorted(payloads(sending.frames())) == [4, 5, 6, 7, 8, 9]
    assert [each.task for each in sending.window.take_settled()] == [3, 1, 2, 1]


def test_over_a_tasks_bound_its_own_oldest_give_way() -> None:
    """If a task reaches its limit, only its own messages are dropped."""
    sending = dropping(max_pending_task_messages=3)
    sending.offer(2, 3)
    sending.offer(1, 3)
    assert sending.offer(1, 2)
    assert contents(sending.frames()) == [(1, [(2, b"\0\1\2"), (1, b"\5\6\7")])]
    assert sending.dropped == {"overflow": 2}


def test_a_tasks_bound_counts_the_whole_batch() -> None:
    """Groups of one batch to one task count together."""
    sending = dropping(max_pending_task_messages=4)
    sending.offer(1, 3)
    assert sending.offer_groups(TaskGroup.of(1, [b"a", b"b"], 5), TaskGroup.of(1, [b"c"], 6))
    assert payloads(sending.frames()) == b"\2abc"


def test_what_a_tasks_bound_has_freed_counts_for_the_total() -> None:
    """If both limits are reached, only the larger of the two numbers is dropped."""
    sending = dropping(max_pending_messages=6, max_pending_task_messages=3)
    sending.offer(2, 3)
    sending.offer(1, 3)
    assert sending.offer(1, 2)
    assert sending.dropped == {"overflow": 2}
    assert sending.offer_groups(TaskGroup.of(1, [b"a"]), TaskGroup.of(3, [b"b"]))
    assert contents(sending.frames()) == [(1, [(2, b"\1\2"), (1, b"\6\7a"), (3, b"b")])]


def test_as_few_as_have_the_bytes() -> None:
    """Over max_pending_bytes, as few messages are dropped as free enough bytes."""
    sending = dropping(max_pending_bytes=20, max_message_bytes=20)
    sending.offer_groups(sizes_of(3, 4, 0, 5, 6))
    assert sending.offer_groups(sizes_of(8, task=2))
    assert [(each.messages, each.size_bytes) for each in sending.window.take_settled()] == [(2, 7)]
    assert sending.window.size_bytes == 19
    assert sending.offer_groups(sizes_of(2, task=2))
    assert [(each.messages, each.size_bytes) for each in sending.window.take_settled()] == [(2, 5)]


def test_the_larger_of_two_needs_decides() -> None:
    """If both messages and bytes exceed the limit, the stricter one decides."""
    sending = dropping(max_pending_messages=5, max_pending_bytes=20, max_message_bytes=20)
    sending.offer_groups(sizes_of(1, 1, 1, 1, 16))
    assert sending.offer_groups(sizes_of(3))
    assert sending.dropped == {"overflow": 3}
    assert sending.offer_groups(sizes_of(1, 0, 0, 0))
    assert sending.dropped == {"overflow": 5}
    assert (sending.window.messages, sending.window.size_bytes) == (5, 4)


def test_a_batch_over_the_bound_replaces_everything() -> None:
    """A batch larger than the limit is accepted after all other messages are dropped."""
    sending = dropping(max_pending_messages=3)
    sending.offer(1, 2)
    sending.offer(2, 1)
    assert sending.offer(1, 5)
    assert payloads(sending.frames()) == b"\3\4\5\6\7"
    assert sending.dropped == {"overflow": 3}


def test_a_large_group_goes_bit_by_bit() -> None:
    """The rest of a group keeps its order and age each time it is split."""
    sending = dropping(max_pending_messages=100)
    sending.offer(1, 100)
    sending.offer(2, 1)
    for _ in range(59):
        assert sending.offer(3)
    assert contents(sending.frames()) == [
        (1, [(1, bytes(range(60, 100))), (2, b"\x64"), (3, bytes(range(101, 160)))])
    ]


# --- retained messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [Overflow.BLOCK, Overflow.FAIL])
def test_other_policies_drop_nothing(overflow: Overflow) -> None:
    """With other policies, a full window refuses messages."""
    sending = Sending(max_pending_messages=2, overflow=overflow)
    sending.offer(1, 2)
    assert not sending.offer(1)
    assert sending.dropped == {}


def test_what_is_on_the_way_stays() -> None:
    """Only unwritten messages are dropped; if they are too few, none are, and the offer waits."""
    sending = dropping(initial=3, max_pending_messages=5)
    sending.offer(1, 5)
    assert payloads(sending.frames()) == b"\0\1\2"
    assert not sending.offer(1, 3)
    assert sending.dropped == {}
    assert sending.offer(1, 2)
    assert sending.dropped == {"overflow": 2}
    assert not sending.offer(1, 6), "a batch over the bound waits until nothing is on the way"
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\x08\x09"


def test_what_is_on_the_way_stays_in_bytes() -> None:
    """Bytes in flight cannot be freed, either."""
    sending = dropping(initial=1, max_pending_bytes=10, max_message_bytes=10)
    sending.offer_groups(sizes_of(6, 3))
    sending.frames()
    assert not sending.offer_groups(sizes_of(5))
    assert sending.dropped == {}
    assert sending.offer_groups(sizes_of(4))
    assert (sending.dropped, sending.window.size_bytes) == ({"overflow": 1}, 10)


def test_one_task_without_room_stops_the_batch() -> None:
    """If one task cannot make space for a batch, no messages of any task are dropped."""
    sending = dropping(opened=False, max_pending_task_messages=2)
    sending.open(initial=0, grants=())
    sending.offer(1, 2)
    sending.offer(2, 2)
    sending.update(0, grants=(credit_of(2, 2, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\2\3"
    batch = TaskGroup.of(1, [b"a"]), TaskGroup.of(2, [b"b"])
    assert not sending.offer_groups(*batch)
    assert sending.dropped == {}
    sending.update(1)
    assert sending.offer_groups(*batch)
    assert sending.dropped == {"overflow": 1}


def test_what_is_not_processed_stays() -> None:
    """In the mode `processed`, messages at the receiver are retained until they are processed."""
    sending = dropping(processed=True, initial=2, max_pending_messages=4)
    sending.write(1, 4)
    sending.update(1)
    assert not sending.offer(1, 3)
    assert sending.offer(1, 2)
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 2),))
    assert sending.offer(1, 2)
    assert payloads(sending.frames()) == b"\7\x08\x09\x0a"
    assert sending.dropped == {"overflow": 2}


@pytest.mark.parametrize("processed", [False, True])
def test_what_is_sent_again_stays(*, processed: bool) -> None:
    """After a receiver fails, messages it may have received are resent; only unsent ones are dropped."""
    sending = dropping(processed=processed, initial=4, max_pending_messages=7)
    sending.write(1, 2)
    sending.write(1, 5)
    sending.open(incarnation=8, initial=0)
    assert not sending.offer(1, 4)
    assert sending.offer(1)
    assert sending.offer(1)
    assert sending.dropped == {"overflow": 2}
    sending.update(0, grants=(credit_of(1, 1, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\0"
    assert not sending.offer(2, 4), "it does not become younger by being sent again"
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    assert payloads(sending.frames()) == b"\1\2\3\6\x0b\x0c"


@pytest.mark.parametrize(
    "bound",
    [
        {"max_pending_messages": 4},
        {"max_pending_bytes": 4, "max_message_bytes": 4},
        {"max_pending_task_messages": 4},
    ],
)
def test_what_was_acknowledged_is_in_nobodys_way(bound: dict[str, Any]) -> None:
    """Acknowledged messages free their space, so nothing is dropped for it."""
    sending = dropping(**bound)
    sending.write(1, 4)
    assert not sending.offer(1)
    sending.update(1)
    assert sending.offer(1, 4)
    assert sending.dropped == {}
    assert sending.offer(1)
    assert sending.dropped == {"overflow": 1}


@pytest.mark.parametrize("reason", ["refused", "too large"])
def test_what_is_dropped_otherwise_is_in_nobodys_way(reason: str) -> None:
    """Messages dropped for another reason free their space like acknowledged messages."""
    sending = dropping(opened=False, max_pending_messages=2)
    if reason == "refused":
        sending.open()
    sending.offer_groups(sizes_of(9, 9))
    if reason == "refused":
        sending.frames()
        sending.window.abandon(DropReason.REFUSED)
    else:
        sending.open(max_message_bytes=5)
    assert sending.offer(1, 2)
    assert sending.offer(1, 2)
    assert sending.dropped == {"overflow": 2, reason.replace(" ", "_"): 2}
    assert payloads(sending.frames()) == b"\2\3"


# --- notifications --------------------------------------------------------------------------------


def test_what_gave_way_is_told_once_with_its_token() -> None:
    """Each dropped part is reported once with its batch's token, as settled and as released."""
    sending = dropping(max_pending_messages=3)
    sending.offer(1, 2, tag="first")
    sending.offer(2, 1, tag="second")
    sending.offer(3, 2, tag="third")
    sending.offer(4, 1, tag="fourth")
    told = [Settled("first", 1, 2, 2, OVERFLOW), Settled("second", 2, 1, 1, OVERFLOW)]
    assert sending.window.take_settled() == sending.window.take_released() == told
    assert sending.window.take_settled() == sending.window.take_released() == []


def test_a_task_is_quiet_when_all_of_it_gave_way() -> None:
    """Messages that were dropped before they were sent need no release."""
    sending = dropping(opened=False, max_pending_messages=2)
    sending.offer(1, 2)
    assert not sending.window.all_released(1)
    sending.offer(2, 2)
    assert sending.window.all_released(1)


def test_credit_is_not_spent_on_what_gave_way() -> None:
    """Unsent messages use neither credit nor the processed offset."""
    sending = dropping(processed=True, opened=False, max_pending_messages=3)
    sending.offer(1, 3)
    sending.offer(1, 2)
    sending.open(initial=3)
    assert payloads(sending.frames()) == b"\2\3\4"
    settled = sending.update(1, grants=(credit_of(1, 3, PLENTY, 3),))
    assert sum(each.messages for each in settled) == 3


# --- order by age ---------------------------------------------------------------------------------


def test_the_oldest_task_is_found_after_any_change() -> None:
    """Tasks are found by their current age, and tasks without messages are not found."""
    ages = {1: 10, 2: 20, 3: 30}
    oldest = OldestTask()
    for task, age in ages.items():
        oldest.add(task, age)
        oldest.add(task, age + 1)
    assert oldest.find(ages.__getitem__) == 1
    ages |= {1: 25, 2: 0}
    assert oldest.find(ages.__getitem__) == 1
    ages[1] = 40
    assert oldest.find(ages.__getitem__) == 3
    ages[2] = 50
    oldest.add(2, 50)
    ages |= {1: 0, 3: 0}
    assert oldest.find(ages.__getitem__) == 2


def test_a_task_without_credit_waits_while_it_has_messages() -> None:
    """A task counts as without credit until its last message is dropped."""
    sending = dropping(initial=0, max_pending_messages=2)
    sending.offer(1, 2)
    assert not sending.frames()
    assert list(sending.window.without_credit) == [1]
    sending.offer(2)
    assert list(sending.window.without_credit) == [1]
    sending.offer(2)
    assert 1 not in sending.window.without_credit
