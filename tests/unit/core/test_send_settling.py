"""SendSession: acknowledged, refused, released, abandoned, resent and retained messages."""

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers.cursors import ack_of, credit_of, refusal_of
from helpers.sending import PLENTY, Sending, contents, groups, reopen

from tuplewire.errors import ProtocolError
from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import DropReason, SettledMessages
from tuplewire.session.send import SendSession
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup, flow_path_of
from tuplewire.wire.messaging_pb2 import Ack


def test_acknowledgement_of_what_was_never_sent() -> None:
    """An acknowledgement of an unsent frame is an error and settles nothing."""
    sending = Sending()
    sending.write(1)
    with pytest.raises(ProtocolError, match="frame 2 was acknowledged; last sent: 1"):
        sending.update(2)
    assert sending.acknowledged == 0


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
        SettledMessages("a", 1, 2, 2, reason),
        SettledMessages("b", 1, 1, 1, reason),
        SettledMessages("c", 2, 1, 1, None),
    ]
    assert sending.dropped == {reason.value: 3}
    assert sending.acknowledged == 1


def test_abandon_gives_everything_up() -> None:
    """Messages in every state are dropped for the given reason, each with its inbound session."""
    sending = Sending(processed=True, initial=2)
    for tag in "abc":
        sending.write(1, tag=tag)
    sending.update(1)
    sending.session.drop_all(DropReason.CLOSED)
    assert sorted(each.inbound for each in sending.session.take_settled()) == ["a", "b", "c"]
    assert sending.dropped == {"closed": 3}
    assert sending.session.messages == sending.session.size_bytes == 0
    assert sending.frame() is None


def test_what_is_taken_back_was_never_accepted() -> None:
    """Returned messages keep order and inbound session; messages in flight are marked as redelivered."""
    sending = Sending()
    sending.write(1, 2, tag="first")
    sending.offer(1, 1, tag="second")
    left = sending.session.withdraw()
    assert [(len(group), inbound, group.redelivered) for group, inbound in left] == [
        (2, "first", True),
        (1, "second", False),
    ]
    assert sending.session.messages == sending.session.size_bytes == 0
    ledger = sending.session.ledger()
    assert (ledger.accepted, ledger.pending) == (0, 0)


def test_refusals_cost_time_in_proportion_to_their_number() -> None:
    """Settling 20,000 refusals in reverse order takes less than a second of CPU time."""
    count = 20_000
    sending = Sending(max_frame_bytes=8 << 20)
    sending.session.offer([TaskGroup.of(task, [b"x"]) for task in range(count)])
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
    assert sending.session.ledger().dropped["unknown_task"] == count


def test_refusals_of_what_was_passed_on_leave_the_rest_alone() -> None:
    """Direct and forwarded messages to one task are refused separately."""
    sending = Sending()
    group = TaskGroup.of(1, [b"x"])
    sending.session.offer([group, group.as_forwarded(7)])
    sending.frames()
    flow_path = flow_path_of(group.as_forwarded(7).path)
    settled = sending.update(1, refusals=(refusal_of(1, 1, 1, "TOO_MANY_HOPS", "", flow_path=flow_path),))
    assert [each.drop_reason for each in settled] == [DropReason.REFUSED, None]


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
    """A receiver that shut down cleanly releases all messages, except for retained ones."""
    sending = Sending()
    sending.write(1, 2, tag="a")
    sending.update(1)
    assert sending.session.take_released() == []
    sending.session.on_receiver_shutdown()
    assert [(each.inbound, each.messages) for each in sending.session.take_released()] == [("a", 2)]
    kept = Sending(processed=True)
    kept.write(1, 2, tag="a")
    kept.update(1)
    kept.session.on_receiver_shutdown()
    assert kept.session.take_released() == []


def test_messages_that_were_never_sent_are_not_marked() -> None:
    """Messages that were never sent are not marked as redelivered."""
    sending = Sending(initial=1)
    sending.write(1, 2)
    sending.open(incarnation=8)
    sending.update(0, grants=(credit_of(1, 2, PLENTY, 0),))
    (frame,) = sending.frames()
    assert [[(group.data, group.redelivered) for group in run] for run in frame.runs] == [
        [(b"\0", True)],
        [(b"\1", False)],
    ]


def test_a_receiver_that_forgot_the_session() -> None:
    """A receiver that lost the session is treated as a new receiver."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.update(2)
    sending.open(sequence=0)
    frames = sending.frames()
    assert contents(frames) == [(1, [(1, b"\2")])]
    assert groups(frames)[0].redelivered


def test_a_receiver_that_knows_more_than_was_sent() -> None:
    """A session that another process has continued is an error and acknowledges nothing."""
    sending = Sending()
    sending.write(1)
    with pytest.raises(ProtocolError):
        sending.open(sequence=5)
    with pytest.raises(ProtocolError, match="its own sender id or incarnation"):
        sending.open(incarnation=8, sequence=5)
    assert sending.acknowledged == 0
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")])]


def test_the_last_message_that_is_unreleased_is_told() -> None:
    """The last unreleased entry sequence is reset after everything is released."""
    sending = Sending()
    for first in (50, 3):
        sending.offer_groups(TaskGroup.of(1, [b"x", b"y"]).numbered(first, 0))
        sending.frames()
        assert list(sending.session.last_unreleased_sequences().values()) == [first + 1]
        released = 2 if first == 50 else 4
        sending.update(1 if first == 50 else 2, grants=(credit_of(1, PLENTY, PLENTY, released),))
        assert sending.session.last_unreleased_sequences() == {}


def open_session() -> SendSession:
    """Return a session with a receiver that grants ample credit."""
    session = SendSession(SessionSettings())
    reopen(session)
    return session


def payloads(frame: OutFrame | None) -> list[bytes]:
    """Return the payloads of a frame; a `!` marks redelivered ones."""
    assert frame is not None
    return [
        payload + b"!" * group.redelivered
        for run in frame.runs
        for group in run
        for payload in group.payloads()
    ]


def inbound_of(settled: list[SettledMessages]) -> list[object]:
    """Return the inbound sessions of settled or released messages."""
    return [each.inbound for each in settled]


def updated(session: SendSession, update: Ack) -> list[SettledMessages]:
    """Return the messages that an update settles."""
    session.apply_ack(update)
    return session.take_settled()


def mixed() -> SendSession:
    """Return a session that has sent a retained, a plain and a retained message, all acknowledged."""
    session = open_session()
    assert session.offer([TaskGroup.of(1, [b"a"])], "a", retain=True)
    assert session.offer([TaskGroup.of(1, [b"b"])], "b")
    assert session.offer([TaskGroup.of(1, [b"c"])], "c", retain=True)
    assert payloads(session.next_frame()) == [b"a", b"b", b"c"]
    assert inbound_of(updated(session, ack_of(1, [], []))) == ["b"]
    return session


def test_a_kept_message_settles_when_it_is_processed() -> None:
    """Plain messages settle when acknowledged, retained ones when processed; releases keep order."""
    session = mixed()
    assert (session.messages, session.ledger().pending, session.ledger().acknowledged) == (2, 2, 1)
    assert inbound_of(updated(session, ack_of(1, [credit_of(1, PLENTY, PLENTY, 1)], []))) == ["a"]
    assert inbound_of(session.take_released()) == ["a"]
    assert inbound_of(updated(session, ack_of(1, [credit_of(1, PLENTY, PLENTY, 3)], []))) == ["c"]
    assert inbound_of(session.take_released()) == ["b", "c"]
    assert session.ledger().balanced
    assert (session.ledger().acknowledged, session.ledger().pending) == (3, 0)


def test_a_new_receiver_gets_what_is_kept_again() -> None:
    """After the receiver fails, retained messages are redelivered and the others are released."""
    session = mixed()
    reopen(session, 8)
    assert inbound_of(session.take_released()) == ["b"]
    assert payloads(session.next_frame()) == [b"a!", b"c!"]
    assert inbound_of(updated(session, ack_of(1, [credit_of(1, PLENTY, PLENTY, 2)], []))) == ["a", "c"]
    assert session.ledger().balanced


def test_what_is_kept_is_handed_back() -> None:
    """withdraw() returns the retained messages as redelivered, and releases the others."""
    session = mixed()
    assert [(group.redelivered, tag) for group, tag in session.withdraw()] == [(True, "a"), (True, "c")]
    assert inbound_of(session.take_released()) == ["b"]
    assert (session.ledger().accepted, session.ledger().acknowledged) == (1, 1)


def test_what_the_receiver_has_accepted_is_not_dropped_at_the_end() -> None:
    """An abandoned session drops messages without acknowledgement; accepted ones are acknowledged."""
    session = mixed()
    assert session.offer([TaskGroup.of(1, [b"d"])], "d", retain=True)
    assert payloads(session.next_frame()) == [b"d"]
    session.drop_all(DropReason.CLOSED)
    settled = [(each.inbound, each.drop_reason) for each in session.take_settled()]
    assert settled == [("a", None), ("c", None), ("d", DropReason.CLOSED)]
    assert inbound_of(session.take_released()) == ["b", "d"]
    assert (session.ledger().acknowledged, session.ledger().dropped["closed"], session.messages) == (3, 1, 0)
    assert session.ledger().balanced


def test_waits_for_news_until_all_is_processed() -> None:
    """A session waits until all messages are processed, so that it sends probes until then."""
    session = open_session()
    waiting = [session.awaits_update]
    session.offer([TaskGroup.of(1, [b"x"])], "inbound")
    waiting.append(session.awaits_update)
    session.next_frame()
    session.apply_ack(ack_of(1, [], []))
    assert session.messages == 0
    waiting.append(session.awaits_update)
    session.apply_ack(ack_of(1, [credit_of(1, PLENTY, PLENTY, 1)], []))
    waiting.append(session.awaits_update)
    assert waiting == [False, True, True, False]
