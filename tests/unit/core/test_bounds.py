"""Limits on remembered state, and values exactly at or just over a limit."""

from __future__ import annotations

from helpers.acks import credit_of
from helpers.sending import PLENTY, Sending, contents

from tuplewire.errors import UnknownTaskError
from tuplewire.session.credit import CreditBook
from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.departure import Departure, Departures
from tuplewire.session.pieces import wire_bytes
from tuplewire.session.receive import ReceiveSession
from tuplewire.session.shares import QueueShares, Share
from tuplewire.values.group import TaskGroup, route_of


def test_old_refusals_are_forgotten() -> None:
    """A session remembers only the refusals of the most recent frames."""
    window = Share(100, 1000)
    state = ReceiveSession(
        1, CreditBook(QueueShares(window, Share(1, 1)), max_message_bytes=10, needs_release_acks=True)
    )
    for number in range(1, 71):
        group = TaskGroup.of(1, [b"x"])
        state.accept(number, [group])
        state.refuse(number, group, UnknownTaskError("nobody has it"))
    told = state.resume(0).refusals
    assert 1 < len(told) < 70
    assert told[-1].sequence == 70
    assert told[0].sequence > 1


def test_old_departures_are_forgotten() -> None:
    """Only the latest 1,000 departures are remembered."""
    departures = Departures()
    for number in range(1, 1002):
        departures.add(Departure(number))
    assert 1 not in departures
    assert 2 in departures
    assert len(departures.known()) == 1000


def test_closed_flows_are_forgotten_once_the_receiver_knows() -> None:
    """Closed flows are forgotten when the receiver acknowledges the frame that closed them."""
    sending = Sending()
    for task in range(100):
        sending.offer(task)
    sending.frames()
    sending.update(1, grants=tuple(credit_of(task, PLENTY, PLENTY, 1) for task in range(100)))
    sending.window.close_unused()
    sending.window.close_unused()
    sending.offer(200)
    (frame,) = sending.frames()
    assert len(frame.closed) == 100
    assert len(sending.window._closed) == 100
    sending.update(frame.sequence)
    assert not sending.window._closed


def test_a_new_receiver_is_not_asked_to_close_flows() -> None:
    """A new receiver never had the old flows and would refuse a frame that closes them."""
    sending = Sending()
    sending.offer(1)
    (first,) = sending.frames()
    sending.update(first.sequence, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    sending.window.close_unused()
    sending.window.close_unused()
    sending.open(incarnation=8)
    sending.offer(2)
    (frame,) = sending.frames()
    assert frame.closed == ()


def test_an_old_grant_does_not_count_for_a_flow_that_is_used_again() -> None:
    """An old grant refers to the closed flow and does not count for the new one."""
    sending = Sending(max_frame_bytes=1)
    sending.offer(1)
    (first,) = sending.frames()
    sending.update(first.sequence, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    sending.window.close_unused()
    sending.window.close_unused()
    sending.write(1)
    sending.update(first.sequence, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    sending.update(first.sequence + 1)
    assert not sending.window.all_released(1)


def test_one_of_two_flows_to_a_task_is_closed() -> None:
    """A direct and a forwarded flow of the same task are closed independently."""
    sending = Sending()
    direct = TaskGroup.of(1, [b"a"])
    forwarded = TaskGroup.of(1, [b"b"]).at(1, 0).as_forwarded(7)
    sending.offer_groups(direct)
    sending.offer_groups(forwarded)
    frames = sending.frames()
    last = frames[-1].sequence
    sending.update(last, grants=(credit_of(direct.flow, PLENTY, PLENTY, 1),))
    for _ in range(2):
        sending.window.close_unused()
    assert not sending.window.all_released(1)
    sending.update(last, grants=(credit_of(forwarded.flow, PLENTY, PLENTY, 1),))
    for _ in range(2):
        sending.window.close_unused()
    assert sending.window.all_released(1)
    assert route_of(forwarded.forwarded)


def test_forwarded_messages_go_first_to_task_0_too() -> None:
    """Forwarded messages to task 0 are sent before its direct messages."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(0, [b"d"]))
    sending.offer_groups(TaskGroup.of(0, [b"f"]).at(1, 0).as_forwarded(7))
    sending.open()
    assert contents(sending.frames())[0][1][0] == (0, b"f")
    sending.offer(5)
    sending.offer(0)
    assert [run[0] for run in contents(sending.frames())[0][1]] == [5, 0]
    left = Sending(opened=False)
    left.offer_groups(TaskGroup.of(0, [b"d"]))
    left.offer_groups(TaskGroup.of(0, [b"f"]).at(1, 0).as_forwarded(7))
    left.open()
    left.frames()
    left.open(incarnation=8)
    assert contents(left.frames())[0][1][0] == (0, b"f")


def test_equal_limits_leave_room_for_one_message() -> None:
    """A receiver with equal request and message limits still receives frames."""
    sending = Sending(opened=False)
    sending.offer(1, 3)
    sending.open(max_message_bytes=1000, max_request_bytes=1000)
    assert [len(run[0][1]) for _, run in contents(sending.frames())] == [1, 1, 1]


def test_a_frame_that_is_exactly_full() -> None:
    """A group that fills the frame exactly is sent, and the second group waits for the next frame."""
    log = DeliveryLog()
    group = TaskGroup.of(1, [b"abc"])
    log.append(group, None)
    log.append(group, None)
    assert len(log.take(10, PLENTY, wire_bytes(group))) == 1


def test_unretained_messages_are_counted_down() -> None:
    """An acknowledged message cannot be lost and no longer counts as unkept."""
    log = DeliveryLog()
    log.append(TaskGroup.of(1, [b"a", b"b"]), None)
    assert log.unretained == 2
    log.take(10, PLENTY, PLENTY)
    log.progress(2, 2)
    assert log.unretained == 0
