"""The send window: it sends only within its credit."""

from __future__ import annotations

from unittest.mock import ANY

from helpers.acks import credit_of, refusal_of
from helpers.sending import PLENTY, Sending, contents, groups, payloads

from tuplewire.session.send import MAX_FRAMES_IN_FLIGHT
from tuplewire.values.group import TaskGroup


def test_a_grant_for_a_task_without_messages_counts_later() -> None:
    """A grant replaces the task's credit from the welcome."""
    sending = Sending(opened=False)
    sending.open(initial=1, grants=(credit_of(1, 2, PLENTY, 0),))
    sending.update(0, grants=(credit_of(1, 5, PLENTY, 0),))
    sending.offer(1, 7)
    assert len(payloads(sending.frames())) == 5


def test_a_receiver_has_accepted_messages_until_it_releases_them() -> None:
    """A receiver holds messages until it releases them, even if none are in flight."""
    sending = Sending()
    found = [sending.window.receiver_has_none]
    sending.write(1, 2)
    found.append(sending.window.receiver_has_none)
    sending.update(1)
    found.append(sending.window.receiver_has_none)
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 2),))
    found.append(sending.window.receiver_has_none)
    assert found == [True, False, False, True]


def test_a_message_may_start_while_bytes_are_left() -> None:
    """A message may start while credit in bytes remains, and may exceed it."""
    sending = Sending(opened=False)
    sending.open(initial_bytes=10)
    sending.offer_groups(TaskGroup.of(1, [b"", b"x" * 9, b"y" * 9, b"", b"z"]))
    assert [list(group.sizes()) for group in groups(sending.frames())] == [[0, 9, 9]]
    sending.update(1, grants=(credit_of(1, PLENTY, 18, 0),))
    assert sending.frame() is None
    sending.update(1, grants=(credit_of(1, PLENTY, 19, 0),))
    assert [list(group.sizes()) for group in groups(sending.frames())] == [[0, 1]]


def test_a_stopped_task_leaves_the_others_going() -> None:
    """A task without credit does not block messages to other tasks."""
    sending = Sending(initial=1)
    for _ in range(3):
        sending.offer(1)
        sending.offer(2)
    assert payloads(sending.frames()) == b"\0\1"
    sending.update(1, grants=(credit_of(2, 99, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\3\5"


def test_says_what_waits_for_credit() -> None:
    """A flow is without credit from the first blocked message until it gets more credit."""
    sending = Sending(initial=2)
    sending.offer(1, 2)
    sending.write(2, 3)
    assert list(sending.window.without_credit) == [2]
    assert sending.window.waiting_tasks() == {2}
    sending.update(1, grants=(credit_of(2, 3, PLENTY, 0),))
    assert not sending.window.without_credit
    sending.frames()
    assert sending.window.waiting_tasks() == set()


def test_says_when_the_flight_is_full() -> None:
    """With the maximum number of frames in flight, the window waits for an acknowledgement."""
    sending = Sending()
    for _ in range(MAX_FRAMES_IN_FLIGHT):
        sending.offer(1)
        assert sending.frame() is not None
    assert not sending.window.full
    sending.offer(1)
    assert sending.frame() is None
    assert (sending.window.full, sending.update(1), sending.window.full) == (True, ANY, False)


def test_repeated_and_late_grants_change_nothing() -> None:
    """A repeated or older grant neither adds nor removes credit."""
    sending = Sending(opened=False)
    sending.open(initial=2, initial_bytes=2)
    sending.offer(1, 9)
    sending.write(2, 9)
    for granted in (5, 5, 3):
        sending.update(1, grants=(credit_of(1, granted, PLENTY, 0), credit_of(2, PLENTY, granted, 0)))
    assert contents(sending.frames()) == [(2, [(1, b"\2\3\4"), (2, b"\x0b\x0c\x0d")])]


def test_a_lost_grant_is_made_good_by_the_next() -> None:
    """Only the latest grant counts, even if earlier grants were lost."""
    sending = Sending(initial=1)
    sending.write(1, 9)
    sending.update(1, grants=(credit_of(1, 7, PLENTY, 0),))
    assert len(payloads(sending.frames())) == 6


def test_refused_bytes_give_their_credit_back() -> None:
    """Refused messages return their credit, so the next message can be sent."""
    sending = Sending(opened=False)
    sending.open(initial_bytes=10)
    sending.offer_groups(TaskGroup.of(1, [b"x" * 10]))
    sending.frames()
    sending.offer_groups(TaskGroup.of(1, [b"y" * 10]))
    assert sending.frame() is None
    sending.update(1, refusals=(refusal_of(1, 1, 1, "TASK_NOT_LOCAL", "elsewhere"),))
    assert [group.data for group in groups(sending.frames())] == [b"y" * 10]
