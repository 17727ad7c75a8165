"""SendSession: frames, limits, requests for acknowledgements, and messages dropped for newer ones."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from helpers.cursors import credit_of
from helpers.sending import PLENTY, Sending, contents, groups, payloads, reopen

from tuplewire.errors import MessageTooLargeError
from tuplewire.session.ack_requests import QUICK_FRAMES, QUICK_SECONDS, REQUEST_EVERY_FRAMES, AckRequestPolicy
from tuplewire.session.ledger import DropReason
from tuplewire.session.pieces import wire_bytes
from tuplewire.settings.config import Overflow
from tuplewire.values.group import TaskGroup, check_sizes, flow_path_of, worker_number

dropping = functools.partial(Sending, overflow=Overflow.DROP_OLDEST)


def test_what_queued_up_goes_out_together() -> None:
    """All waiting messages share one frame; neighbours with the same source and task share a run."""
    sending = Sending()
    sending.offer(1, 2, source=5)
    sending.offer(1, 1, source=5)
    sending.offer(1, 1, source=6)
    sending.offer(2, 1, source=6)
    sending.offer(2, 1)
    (frame,) = sending.frames()
    assert contents([frame]) == [(1, [(1, b"\0\1\2"), (1, b"\3"), (2, b"\4"), (2, b"\5")])]
    assert (frame.messages, frame.size_bytes) == (6, 6)


def test_a_group_that_just_fits_goes_along() -> None:
    """A group that reaches the limit exactly fits; one more byte does not."""
    group = TaskGroup.of(1, [b"x" * 30])
    room = 2 * wire_bytes(group)
    for limit, expected in ((room, [2]), (room - 1, [1, 1])):
        sending = Sending(max_frame_bytes=limit)
        sending.offer_groups(group, group)
        assert [sum(map(len, frame.runs)) for frame in sending.frames()] == expected


@pytest.mark.parametrize("tasks", [1, 2500])
def test_a_frame_is_cut_at_its_groups(tasks: int) -> None:
    """A frame has at most 1,000 groups, for any number of tasks."""
    sending = Sending()
    groups = [TaskGroup.of(number % tasks, [b"%d" % (number % 10)], number) for number in range(2500)]
    sending.offer_groups(*groups)
    frames = sending.frames()
    assert [len(frame.runs) for frame in frames] == [1000, 1000, 500]
    assert sorted(payloads(frames)) == sorted(b"0123456789" * 250)


@pytest.mark.parametrize("size", [0, 1])
def test_small_messages_do_not_make_a_frame_large(size: int) -> None:
    """Metadata counts as well: frames of empty messages stay within the receiver's limit."""
    sending = Sending(max_frame_bytes=4_000, max_pending_task_messages=PLENTY)
    sending.offer_groups(TaskGroup.of(1, [bytes(size)] * 20_000))
    for task in range(2, 500):
        sending.offer_groups(TaskGroup.of(task, [bytes(size)]))
    frames = sending.frames()
    assert sum(frame.messages for frame in frames) == 20_498
    for frame in frames:
        assert sum(len(group.lengths) for run in frame.runs for group in run) <= 4_000
        assert len(frame.runs) <= 4_000 // 40


def test_tasks_take_turns() -> None:
    """A task with many messages delays another task by at most one frame."""
    sending = Sending(max_frame_bytes=100)
    sending.offer(1, 250)
    sending.offer(2, 1)
    first, second, *_ = sending.frames()
    assert [run[0].task for run in first.runs] == [1]
    assert 2 in [run[0].task for run in second.runs]


def test_a_frame_says_when_its_messages_were_accepted() -> None:
    """Messages accepted within one millisecond share a time; later messages have another one."""
    sending = Sending()
    old, soon_after, late = 1_000_100, 1_000_900, 1_001_000
    for task, accepted in ((1, old), (2, soon_after), (1, soon_after), (1, late), (2, late)):
        sending.session.offer([TaskGroup.of(task, [b"x"])], now_micros=accepted)
    (frame,) = sending.frames()
    assert [
        (run[0].task, len(run), micros) for run, micros in zip(frame.runs, frame.accepted_micros, strict=True)
    ] == [(1, 2, old), (1, 1, late), (2, 1, old), (2, 1, late)]


@pytest.mark.parametrize("task", [0, 1])
def test_forwarded_messages_go_before_others_of_their_task(task: int) -> None:
    """Forwarded messages reached their entry worker earlier: they precede others, also after a failure."""
    sending = Sending()
    sending.offer(task, 2)
    for number, (each, payload) in enumerate(((task, b"f"), (2, b"g")), 1):
        sending.offer_groups(replace(TaskGroup.of(each, [payload]), path=5, entry_sequence=number))
    assert payloads(sending.frames()) == b"fg\0\1"
    sending.open(incarnation=8)
    (frame,) = sending.frames()
    assert frame.runs[0][0].data == b"f"
    sending.offer(5)
    sending.offer(task)
    assert [run[0] for run in contents(sending.frames())[0][1]] == [5, task]


def test_a_receiver_has_accepted_messages_until_it_releases_them() -> None:
    """A receiver holds messages until it releases them, even if none are in flight."""
    sending = Sending()
    found = [sending.session.all_written_released]
    sending.write(1, 2)
    found.append(sending.session.all_written_released)
    sending.update(1)
    found.append(sending.session.all_written_released)
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 2),))
    assert [*found, sending.session.all_written_released] == [True, False, False, True]


def test_says_what_waits_for_credit() -> None:
    """A flow is without credit from the first blocked message until it gets more credit."""
    sending = Sending(initial=2)
    sending.offer(1, 2)
    sending.write(2, 3)
    assert list(sending.session.blocked_flows) == [2]
    assert sending.session.waiting_tasks() == {2}
    sending.update(1, grants=(credit_of(2, 3, PLENTY, 0),))
    assert not sending.session.blocked_flows
    sending.frames()
    assert sending.session.waiting_tasks() == set()


def test_what_the_receiver_never_takes_is_given_up() -> None:
    """Messages over the receiver's limit are dropped individually when the limit becomes known."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"a" * 10, b"b" * 101, b"c" * 100]))
    (settled,) = sending.open(max_message_bytes=100)
    assert (settled.task, settled.messages, settled.size_bytes) == (1, 1, 101)
    assert settled.drop_reason is DropReason.TOO_LARGE
    assert payloads(sending.frames()) == b"a" * 10 + b"c" * 100
    with pytest.raises(MessageTooLargeError, match="exceeds the limit of 100 bytes"):
        check_sizes([TaskGroup.of(1, [b"x" * 101])], sending.session.max_message_bytes)


def test_frames_keep_to_the_receivers_limit() -> None:
    """Large groups are split to fit the receiver's request size."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"x" * 10] * 1000))
    sending.open(max_message_bytes=100, max_request_bytes=2100)
    frames = sending.frames()
    assert all(frame.size_bytes <= 1000 for frame in frames)
    assert sum(frame.messages for frame in frames) == 1000


def test_closed_flows_are_forgotten_once_the_receiver_knows() -> None:
    """Closed flows leave no state after the receiver acknowledges the frame that closed them."""
    sending = Sending()
    for task in range(100):
        sending.offer(task)
    frames = sending.frames()
    sending.update(
        frames[-1].sequence, grants=tuple(credit_of(task, PLENTY, PLENTY, 1) for task in range(100))
    )
    sending.session.close_unused()
    assert sorted(sending.session.close_unused()) == list(range(100))
    assert not sending.session._flows
    assert not sending.session._flows_by_task
    sending.offer(200)
    (frame,) = sending.frames()
    assert len(frame.closed_flows) == len(sending.session._closed_in_frame) == 100
    sending.update(frame.sequence)
    assert not sending.session._closed_in_frame


def test_an_old_grant_does_not_count_for_a_flow_that_is_used_again() -> None:
    """An old grant refers to the closed flow and does not count for the new one."""
    sending = Sending(max_frame_bytes=1)
    sending.offer(1)
    (first,) = sending.frames()
    sending.update(first.sequence, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    sending.session.close_unused()
    sending.session.close_unused()
    sending.write(1)
    sending.update(first.sequence, grants=(credit_of(1, PLENTY, PLENTY, 1),))
    sending.update(first.sequence + 1)
    assert not sending.session.all_released(1)


def test_one_of_two_flows_to_a_task_is_closed() -> None:
    """A direct and a forwarded flow of the same task are closed independently."""
    sending = Sending()
    direct = TaskGroup.of(1, [b"a"])
    forwarded = TaskGroup.of(1, [b"b"]).numbered(1, 0).as_forwarded(7)
    sending.offer_groups(direct)
    sending.offer_groups(forwarded)
    last = sending.frames()[-1].sequence
    sending.update(last, grants=(credit_of(direct.flow_id, PLENTY, PLENTY, 1),))
    for _ in range(2):
        sending.session.close_unused()
    assert not sending.session.all_released(1)
    sending.update(last, grants=(credit_of(forwarded.flow_id, PLENTY, PLENTY, 1),))
    for _ in range(2):
        sending.session.close_unused()
    assert sending.session.all_released(1)
    assert flow_path_of(forwarded.path)


def test_the_last_message_of_each_entry_worker_that_is_not_released() -> None:
    """The last unreleased entry is tracked per entry worker, regardless of the route."""
    sending = Sending()
    group = TaskGroup.of(1, [b"a", b"b"])
    forwarded = group.numbered(9, 0).as_forwarded(7).as_forwarded(8)
    sending.offer_groups(group.numbered(5, 0).as_forwarded(7), forwarded)
    sending.offer_groups(group.numbered(3, 0))
    assert sending.session.last_unreleased_sequences() == {(1, 7): 10, (1, 0): 4}
    sending.offer_groups(group.numbered(1, 0).as_forwarded(7).as_forwarded(8).as_forwarded(9))
    assert sending.session.last_unreleased_sequences() == {(1, 7): 10, (1, 0): 4}


@pytest.mark.parametrize("reason", ["refused", "too large"])
def test_what_is_dropped_otherwise_is_in_nobodys_way(reason: str) -> None:
    """Messages dropped for another reason free their space like acknowledged messages."""
    sending = dropping(opened=False, max_pending_messages=2)
    if reason == "refused":
        sending.open()
    sending.offer_groups(TaskGroup.of(1, [b"x" * 9] * 2))
    if reason == "refused":
        sending.frames()
        sending.session.drop_all(DropReason.REFUSED)
    else:
        sending.open(max_message_bytes=5)
    assert sending.offer(1, 2)
    assert sending.offer(1, 2)
    assert sending.dropped == {"overflow": 2, reason.replace(" ", "_"): 2}
    assert payloads(sending.frames()) == b"\2\3"


@pytest.mark.parametrize("offered", ["before", "after"])
def test_messages_that_return_to_a_restarted_entry_worker_are_marked(offered: str) -> None:
    """Its programs send copies to the new process, and these may arrive first."""
    sending = Sending(opened=False)
    reopen(sending.session, 7, 70)
    returning = [TaskGroup.of(1, [b"a"]).numbered(1, 0).as_forwarded(worker_number("w", 70))]
    others = [TaskGroup.of(1, [b"b"]).numbered(1, 0).as_forwarded(worker_number("w", 80))]
    for each in returning + others if offered == "before" else ():
        sending.offer_groups(each)
    reopen(sending.session, 8, 80)
    for each in returning + others if offered == "after" else ():
        sending.offer_groups(each)
    marks = {bytes(each.data): each.redelivered for each in groups(sending.frames())}
    assert marks == {b"a": True, b"b": False}


def test_a_written_message_is_not_dropped_for_a_newer_one() -> None:
    """After the receiver has restarted, a written message is in front of messages that may be dropped."""
    sending = dropping(max_pending_messages=3)
    sending.write(1)
    reopen(sending.session, 8, 1)
    assert sending.offer(1, 2)
    assert sending.offer(1)
    assert sending.dropped == {"overflow": 1}
    assert payloads(sending.frames()) == b"\0\2\3"


APART = QUICK_SECONDS
"""An interval in seconds between frames at which no frame counts as quick."""


@pytest.mark.parametrize(
    ("times", "asking"),
    [
        (
            [number * APART for number in range(2 * REQUEST_EVERY_FRAMES)],
            [REQUEST_EVERY_FRAMES, 2 * REQUEST_EVERY_FRAMES],
        ),
        ([number * APART / QUICK_FRAMES for number in range(3 * QUICK_FRAMES)], [4, 8, 12]),
        ([0.0, 0.9 * APART, 1.0 * APART, 1.1 * APART], []),
        ([number * APART for number in (10, 20, 30, 30.1, 30.2, 30.3)], [6]),
        ([0.0, 0.0, 0.0, APART], [4]),
        ([0.0, 0.0, 0.0, APART * 1.01], []),
    ],
    ids=["slow", "full speed", "slowly", "at last", "at the edge", "over the edge"],
)
def test_quick_frames_ask_more_often(times: list[float], asking: list[int]) -> None:
    """Every fourth frame requests an update if the last four were quick; otherwise, only every 32nd."""
    ack_requests = AckRequestPolicy()
    assert [number for number, now in enumerate(times, 1) if ack_requests.ack_wanted(now)] == asking


def test_a_frame_that_somebody_waits_for_asks() -> None:
    """A frame that a caller waits for requests an acknowledgement at any rate, and restarts the count."""
    ack_requests = AckRequestPolicy()
    assert ack_requests.ack_wanted(0.0, urgent=True)
    assert not ack_requests.ack_wanted(APART)


def test_as_many_frames_may_be_under_way_as_the_contract_allows() -> None:
    """Up to 64 slow frames may be unacknowledged: twice the interval between requests."""
    sending = Sending()
    asking = []
    for number in range(2 * REQUEST_EVERY_FRAMES):
        assert sending.offer(1)
        frame = sending.session.next_frame(1.0 + number * APART)
        assert frame is not None
        asking += [frame.sequence] * frame.ack_immediately
    assert asking == [REQUEST_EVERY_FRAMES, 2 * REQUEST_EVERY_FRAMES]
    assert sending.offer(1)
    assert sending.frame() is None
    sending.update(REQUEST_EVERY_FRAMES)
    assert sending.frame() is not None


def test_used_up_credit_asks() -> None:
    """A sender without credit for its waiting messages requests an acknowledgement immediately."""
    sending = Sending(initial=2)
    sending.offer(1, 3)
    frame = sending.session.next_frame(1.0)
    assert frame is not None
    assert (frame.messages, frame.ack_immediately) == (2, True)


def test_a_session_that_starts_over_asks_anew() -> None:
    """Requests to a lost receiver do not delay the frames to the next receiver."""
    sending = Sending()
    for _ in range(2 * QUICK_FRAMES):
        sending.offer(1)
        sending.frame()
    sending.offer(1)
    assert sending.frame() is None
    sending.open(incarnation=8)
    frame = sending.frame()
    assert frame is not None
    assert frame.messages == 2 * QUICK_FRAMES + 1
