"""The send window: acknowledged, refused, released and abandoned messages."""

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers.acks import credit_of, refusal_of
from helpers.sending import PLENTY, Sending

from tuplewire.errors import ProtocolError
from tuplewire.session.ledger import DropReason, Settled
from tuplewire.values.group import TaskGroup, route_of


def test_acknowledgements_are_cumulative() -> None:
    """An acknowledgement settles all frames up to its number, each batch with its token."""
    sending = Sending()
    for tag in "abc":
        sending.write(1, 2, tag=tag)
    assert sending.update(2) == [Settled("a", 1, 2, 2, None), Settled("b", 1, 2, 2, None)]
    assert sending.acknowledged == 4


def test_repeated_and_late_acknowledgements_change_nothing() -> None:
    """A repeated or older acknowledgement settles nothing."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.update(2)
    assert sending.update(2) == sending.update(1) == []
    assert sending.acknowledged == sending.window.acknowledged == 2


def test_acknowledgement_of_what_was_never_sent() -> None:
    """An acknowledgement of an unsent frame is an error and settles nothing."""
    sending = Sending()
    sending.write(1)
    with pytest.raises(ProtocolError, match="frame 2 was acknowledged, and 1 were sent"):
        sending.update(2)
    assert sending.acknowledged == 0


def test_processed_mode_settles_on_processed_offsets() -> None:
    """In the mode `processed`, messages settle when they are processed, not when they are queued."""
    sending = Sending(processed=True)
    sending.offer(1, 2, tag="a")
    sending.write(1, 3, tag="b")
    assert sending.update(1) == []
    assert sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 4),)) == [Settled("a", 1, 2, 2, None)]
    assert sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 5),)) == [Settled("b", 1, 3, 3, None)]


def test_processed_offsets_are_per_task() -> None:
    """Progress of one task does not settle messages of another."""
    sending = Sending(processed=True)
    sending.offer(1, 1, tag="a")
    sending.write(2, 1, tag="b")
    settled = sending.update(1, grants=(credit_of(2, PLENTY, PLENTY, 1), credit_of(1, PLENTY, PLENTY, 0)))
    assert [each.token for each in settled] == ["b"]


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(
    ("code", "reason"), [("UNKNOWN_TASK", DropReason.UNKNOWN_TASK), ("TASK_NOT_LOCAL", DropReason.REFUSED)]
)
def test_refused_messages_are_dropped(code: str, reason: DropReason, *, processed: bool) -> None:
    """Refused messages count as dropped by reason, not as acknowledged."""
    sending = Sending(processed=processed)
    sending.offer(1, 2, source=3, tag="a")
    sending.offer(1, 1, source=4, tag="b")
    sending.write(2, 1, tag="c")
    settled = sending.update(
        1,
        grants=(credit_of(1, PLENTY, PLENTY, 3), credit_of(2, PLENTY, PLENTY, 1)),
        refusals=(refusal_of(1, 1, 3, code, "no"),),
    )
    assert settled == [
        Settled("a", 1, 2, 2, reason),
        Settled("b", 1, 1, 1, reason),
        Settled("c", 2, 1, 1, None),
    ]
    assert sending.dropped == {reason.value: 3}
    assert sending.acknowledged == 1


def test_a_repeated_refusal_changes_nothing() -> None:
    """A repeated refusal, for example after a reconnect, drops nothing more."""
    sending = Sending()
    refusal = refusal_of(1, 1, 1, "UNKNOWN_TASK", "no")
    for _ in range(2):
        sending.write(1)
    sending.update(1, refusals=(refusal,))
    assert sending.update(1, refusals=(refusal,)) == []
    assert [each.dropped for each in sending.open(sequence=2, refusals=(refusal,))] == [None]
    assert sending.dropped == {"unknown_task": 1}


def test_refused_messages_do_not_shift_the_processed_offset() -> None:
    """A refusal does not settle earlier messages that are still being processed."""
    sending = Sending(processed=True)
    sending.write(1, 2, tag="working")
    sending.write(1, 5, tag="refused")
    sending.write(1, 1, tag="last")
    settled = sending.update(
        3,
        grants=(credit_of(1, PLENTY, PLENTY, 0),),
        refusals=(refusal_of(2, 1, 5, "TASK_NOT_LOCAL", "moved"),),
    )
    assert [each.token for each in settled] == ["refused"]
    assert [each.token for each in sending.update(3, grants=(credit_of(1, PLENTY, PLENTY, 2),))] == [
        "working"
    ]
    assert [each.token for each in sending.update(3, grants=(credit_of(1, PLENTY, PLENTY, 3),))] == ["last"]


def test_abandon_gives_everything_up() -> None:
    """Messages in every state are dropped for the given reason, each with its token."""
    sending = Sending(processed=True, initial=2)
    for tag in "abc":
        sending.write(1, tag=tag)
    sending.update(1)
    sending.window.abandon(DropReason.CLOSED)
    assert sorted(each.token for each in sending.window.take_settled()) == ["a", "b", "c"]
    assert sending.dropped == {"closed": 3}
    assert sending.window.messages == sending.window.size_bytes == 0
    assert sending.frame() is None


def test_a_task_is_quiet_once_all_is_released() -> None:
    """A task is released only when all of its messages are, independently of other tasks."""
    sending = Sending()
    assert sending.window.all_released(1)
    sending.offer(1, 2)
    sending.offer(2, 1)
    assert not sending.window.all_released(1)
    sending.frames()
    sending.update(1)
    assert not sending.window.all_released(1)
    sending.update(1, grants=(credit_of(1, 10, PLENTY, 1),))
    assert not sending.window.all_released(1)
    sending.update(1, grants=(credit_of(1, 10, PLENTY, 2),))
    assert sending.window.all_released(1)
    assert not sending.window.all_released(2)


def test_what_is_taken_back_was_never_accepted() -> None:
    """Returned messages keep their order and token; messages in flight are marked as redelivered."""
    sending = Sending()
    sending.write(1, 2, tag="first")
    sending.offer(1, 1, tag="second")
    left = sending.window.take_back()
    assert [(len(group), token, group.redelivered) for group, token in left] == [
        (2, "first", True),
        (1, "second", False),
    ]
    assert sending.window.messages == sending.window.size_bytes == 0
    ledger = sending.window.ledger()
    assert (ledger.accepted, ledger.pending) == (0, 0)


def test_refusals_cost_time_in_proportion_to_their_number() -> None:
    """Settling 20,000 refusals in reverse order takes less than a second of CPU time."""
    count = 20_000
    sending = Sending(max_frame_bytes=8 << 20)
    sending.window.offer([TaskGroup.of(task, [b"x"]) for task in range(count)])
    frames = sending.frames()
    refusals = tuple(
        refusal_of(frame.sequence, run[0].task, 1, "UNKNOWN_TASK", "")
        for frame in reversed(frames)
        for run in reversed(frame.runs)
    )
    began = time.process_time()
    settled = sending.update(len(frames), refusals=refusals)
    assert time.process_time() - began < 1
    assert len(refusals) == len(settled) == count
    assert sending.window.ledger().dropped["unknown_task"] == count


def test_refusals_of_what_was_passed_on_leave_the_rest_alone() -> None:
    """Direct and forwarded messages to one task are refused separately."""
    sending = Sending()
    group = TaskGroup.of(1, [b"x"])
    sending.window.offer([group, group.as_forwarded(7)])
    sending.frames()
    forwarded = route_of(group.as_forwarded(7).forwarded)
    settled = sending.update(1, refusals=(refusal_of(1, 1, 1, "TOO_MANY_HOPS", "", forwarded=forwarded),))
    assert [each.dropped for each in settled] == [DropReason.REFUSED, None]


@pytest.mark.parametrize(
    ("settings", "quiet"),
    [
        ({"max_pending_messages": 10}, 4),
        ({"max_pending_bytes": 10, "max_message_bytes": 10}, 4),
        ({"max_pending_task_messages": 10}, 4),
        ({}, 5),
    ],
)
def test_half_of_a_bound_asks_for_an_acknowledgement(settings: dict[str, Any], quiet: int) -> None:
    """From half of a limit on, a frame requests an immediate acknowledgement."""
    for messages, asks in ((quiet, False), (5, bool(settings))):
        sending = Sending(**settings)
        sending.offer(1, messages)
        (frame,) = sending.frames()
        assert frame.ack_immediately is asks


def test_everything_is_released_by_a_receiver_that_has_ended_in_order() -> None:
    """A receiver that shut down cleanly releases all tokens, except for retained messages."""
    sending = Sending()
    sending.write(1, 2, tag="a")
    sending.update(1)
    assert sending.window.take_released() == []
    sending.window.receiver_ended()
    assert [(each.token, each.messages) for each in sending.window.take_released()] == [("a", 2)]
    kept = Sending(processed=True)
    kept.write(1, 2, tag="a")
    kept.update(1)
    kept.window.receiver_ended()
    assert kept.window.take_released() == []
