"""The send window: the contents of each frame."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.sending import PLENTY, Sending, contents, payloads

from tuplewire.session import send
from tuplewire.session.pieces import wire_bytes
from tuplewire.values.group import TaskGroup


def test_nothing_before_the_welcome() -> None:
    """Messages wait until the receiver has granted credit."""
    sending = Sending(opened=False)
    assert sending.offer(1)
    assert sending.frame() is None
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")])]


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


def test_frames_are_numbered_by_one() -> None:
    """Consecutive frames are numbered 1, 2, 3."""
    sending = Sending()
    numbers = []
    for _ in range(3):
        sending.offer(1)
        numbers += [frame.sequence for frame in sending.frames()]
    assert numbers == [1, 2, 3]


def test_a_frame_is_cut_at_its_size() -> None:
    """No frame exceeds max_frame_bytes, and all frames together contain everything in order."""
    sending = Sending(max_frame_bytes=200)
    for _ in range(9):
        sending.offer_groups(TaskGroup.of(1, [b"x" * 30, b"y" * 30]))
    frames = sending.frames()
    assert len(frames) > 1
    assert all(frame.size_bytes <= 200 for frame in frames)
    assert payloads(frames) == (b"x" * 30 + b"y" * 30) * 9


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


def test_few_frames_are_under_way_at_once() -> None:
    """Messages beyond the limit of frames wait for an acknowledgement, then share a frame."""
    sending = Sending()
    for _ in range(20):
        sending.offer(1, 1)
        sending.frame()
    assert sending.frame() is None
    sending.update(1)
    frame = sending.frame()
    assert frame is not None
    assert frame.messages == 20 - send.MAX_FRAMES_IN_FLIGHT


def test_a_group_larger_than_a_frame_is_cut() -> None:
    """A group over max_frame_bytes is split; a larger message has a separate frame."""
    sending = Sending(max_frame_bytes=100)
    sending.offer_groups(TaskGroup.of(1, [b"a" * 60, b"b" * 60, b"c" * 150, b"d"]))
    assert [frame.size_bytes for frame in sending.frames()] == [60, 60, 150, 1]


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
        sending.window.offer([TaskGroup.of(task, [b"x"])], now_micros=accepted)
    (frame,) = sending.frames()
    assert [
        (run[0].task, len(run), micros) for run, micros in zip(frame.runs, frame.accepted_micros, strict=True)
    ] == [(1, 2, old), (1, 1, late), (2, 1, old), (2, 1, late)]


def test_messages_that_are_passed_on_keep_their_time() -> None:
    """Forwarded messages retain the time at which the first worker accepted them."""
    sending = Sending()
    group = TaskGroup.of(1, [b"x", b"y"]).at(1, 1_000_000).as_forwarded(9).as_redelivered().slice(1, 2)
    sending.window.offer([group], now_micros=9_000_000)
    (frame,) = sending.frames()
    assert frame.accepted_micros == [1_000_000]


def test_forwarded_messages_go_before_others_of_their_task() -> None:
    """Forwarded messages reached their entry worker earlier, so they precede others of the task."""
    sending = Sending()
    sending.offer(1, 2)
    sending.offer_groups(replace(TaskGroup.of(1, [b"f"]), forwarded=5, entry_sequence=1))
    sending.offer_groups(replace(TaskGroup.of(2, [b"g"]), forwarded=5, entry_sequence=2))
    assert payloads(sending.frames()) == b"fg\0\1"
