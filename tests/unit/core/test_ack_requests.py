"""Requests for immediate acknowledgements, by the rate of frames and by waiting callers."""

from __future__ import annotations

from helpers.sending import Sending

from tuplewire.session.ack_requests import MAX_UNREQUESTED, QUICK_FRAMES, QUICK_SECONDS, AckRequestPolicy
from tuplewire.session.flow import OutFrame

APART = QUICK_SECONDS
"""An interval in seconds between frames at which no frame counts as quick."""


def alone(sending: Sending, count: int) -> list[OutFrame]:
    """Return the frames of `count` messages sent one at a time, `APART` seconds apart."""
    frames = []
    for number in range(count):
        assert sending.offer(1)
        frame = sending.window.next_frame(1.0 + number * APART)
        assert frame is not None
        frames.append(frame)
    return frames


def test_frames_that_come_one_by_one_ask_now_and_then() -> None:
    """Only every 32nd slow frame requests one, so that few acknowledgements compete with single messages."""
    ack_requests = AckRequestPolicy()
    asked = [ack_requests.is_due(number * APART) for number in range(2 * MAX_UNREQUESTED)]
    assert [number for number, asks in enumerate(asked, 1) if asks] == [MAX_UNREQUESTED, 2 * MAX_UNREQUESTED]


def test_every_fourth_of_quick_frames_asks() -> None:
    """A sender at full speed requests an acknowledgement with every fourth frame."""
    ack_requests = AckRequestPolicy()
    asked = [ack_requests.is_due(number * QUICK_SECONDS / QUICK_FRAMES) for number in range(3 * QUICK_FRAMES)]
    assert asked == [False, False, False, True] * 3


def test_frames_are_quick_by_the_time_of_four_of_them() -> None:
    """A frame counts as quick only if the last four frames were sent within QUICK_SECONDS."""
    ack_requests = AckRequestPolicy()
    assert [ack_requests.is_due(now * QUICK_SECONDS) for now in (0.0, 0.9, 1.0, 1.1)] == [False] * 4
    assert [ack_requests.is_due(now * QUICK_SECONDS) for now in (10, 20, 30, 30.1, 30.2, 30.3)] == [
        False
    ] * 5 + [True]


def test_a_frame_that_somebody_waits_for_asks() -> None:
    """A frame that a caller waits for requests an acknowledgement at any rate, and restarts the count."""
    ack_requests = AckRequestPolicy()
    assert ack_requests.is_due(0.0, urgent=True)
    assert not ack_requests.is_due(APART)


def test_as_many_frames_may_be_under_way_as_the_contract_allows() -> None:
    """Up to 64 slow frames may be unacknowledged: twice the interval between requests."""
    sending = Sending()
    frames = alone(sending, 2 * MAX_UNREQUESTED)
    assert [frame.sequence for frame in frames if frame.ack_immediately] == [
        MAX_UNREQUESTED,
        2 * MAX_UNREQUESTED,
    ]
    assert sending.offer(1)
    assert sending.frame() is None
    sending.update(MAX_UNREQUESTED)
    assert sending.frame() is not None


def test_a_bound_that_is_half_used_asks_once() -> None:
    """A sender that reaches half of its bound on pending messages requests one acknowledgement."""
    sending = Sending(max_pending_messages=8)
    assert [frame.ack_immediately for frame in alone(sending, 6)] == [False, False, False, True, False, False]
    sending.update(4)
    assert [frame.ack_immediately for frame in alone(sending, 3)] == [False, True, False]


def test_used_up_credit_asks() -> None:
    """A sender without credit for its waiting messages requests an acknowledgement immediately."""
    sending = Sending(initial=2)
    sending.offer(1, 3)
    frame = sending.window.next_frame(1.0)
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


def test_frames_at_the_edge_are_quick() -> None:
    """Four frames within exactly QUICK_SECONDS are quick; with a longer interval they are not."""
    for last, asks in ((QUICK_SECONDS, True), (QUICK_SECONDS * 1.01, False)):
        ack_requests = AckRequestPolicy()
        assert [ack_requests.is_due(now) for now in (0.0, 0.0, 0.0, last)] == [False] * 3 + [asks]
