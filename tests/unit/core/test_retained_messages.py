"""Messages retained until they are processed, in a session that acknowledges on arrival."""

from __future__ import annotations

from helpers.acks import ack_of, credit_of, refusal_of
from helpers.sending import PLENTY, reopen

from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.send import SendWindow
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import Ack


def window() -> SendWindow:
    """Return a window with a receiver that grants ample credit."""
    state = SendWindow(SessionSettings())
    reopen(state)
    return state


def payloads(frame: OutFrame | None) -> list[bytes]:
    """Return the payloads of a frame; a `!` marks redelivered ones."""
    assert frame is not None
    return [
        payload + b"!" * group.redelivered
        for run in frame.runs
        for group in run
        for payload in group.payloads()
    ]


def tokens(settled: list[Settled]) -> list[object]:
    """Return the tokens of settled or released messages."""
    return [each.token for each in settled]


def updated(state: SendWindow, update: Ack) -> list[Settled]:
    """Return the messages that an update settles."""
    state.update(update)
    return state.take_settled()


def mixed() -> SendWindow:
    """Return a window that has sent a retained, a plain and a retained message, all acknowledged."""
    state = window()
    assert state.offer([TaskGroup.of(1, [b"a"])], "a", retain=True)
    assert state.offer([TaskGroup.of(1, [b"b"])], "b")
    assert state.offer([TaskGroup.of(1, [b"c"])], "c", retain=True)
    assert payloads(state.next_frame()) == [b"a", b"b", b"c"]
    assert tokens(updated(state, ack_of(1, [], []))) == ["b"]
    return state


def test_a_kept_message_settles_when_it_is_processed() -> None:
    """Plain messages settle when acknowledged, retained ones when processed; releases keep order."""
    state = mixed()
    assert (state.messages, state.ledger().pending, state.ledger().acknowledged) == (2, 2, 1)
    assert tokens(updated(state, ack_of(1, [credit_of(1, PLENTY, PLENTY, 1)], []))) == ["a"]
    assert tokens(state.take_released()) == ["a"]
    assert tokens(updated(state, ack_of(1, [credit_of(1, PLENTY, PLENTY, 3)], []))) == ["c"]
    assert tokens(state.take_released()) == ["b", "c"]
    assert state.ledger().balanced
    assert (state.ledger().acknowledged, state.ledger().pending) == (3, 0)


def test_a_new_receiver_gets_what_is_kept_again() -> None:
    """After the receiver fails, retained messages are redelivered and the others are released."""
    state = mixed()
    reopen(state, 8)
    assert tokens(state.take_released()) == ["b"]
    assert payloads(state.next_frame()) == [b"a!", b"c!"]
    assert tokens(updated(state, ack_of(1, [credit_of(1, PLENTY, PLENTY, 2)], []))) == ["a", "c"]
    assert state.ledger().balanced


def test_what_is_kept_is_handed_back() -> None:
    """take_back() returns the retained messages as redelivered, and releases the others."""
    state = mixed()
    assert [(group.redelivered, token) for group, token in state.take_back()] == [(True, "a"), (True, "c")]
    assert tokens(state.take_released()) == ["b"]
    assert (state.ledger().accepted, state.ledger().acknowledged) == (1, 1)


def test_what_the_receiver_has_accepted_is_not_dropped_at_the_end() -> None:
    """An abandoned window drops messages without acknowledgement; accepted ones are acknowledged."""
    state = mixed()
    assert state.offer([TaskGroup.of(1, [b"d"])], "d", retain=True)
    assert payloads(state.next_frame()) == [b"d"]
    state.abandon(DropReason.CLOSED)
    assert [(each.token, each.dropped) for each in state.take_settled()] == [
        ("a", None),
        ("c", None),
        ("d", DropReason.CLOSED),
    ]
    assert tokens(state.take_released()) == ["b", "d"]
    assert (state.ledger().acknowledged, state.ledger().dropped["closed"], state.messages) == (3, 1, 0)
    assert state.ledger().balanced


def test_an_update_that_follows_a_lost_one_is_noticed() -> None:
    """A gap between updates is detected: the lost update may have contained a refusal."""
    state = window()
    for number in (1, 2):
        state.offer([TaskGroup.of(number, [b"x"])])
        assert state.next_frame() is not None
    lost = ack_of(1, [], [refusal_of(1, 1, 1, "UNKNOWN_TASK", "no task 1")], 0)
    later = ack_of(2, [], [], 1)
    assert state.missed(later)
    everything = ack_of(2, [], lost.refusals, 0)
    assert not state.missed(everything)
    assert {each.task: each.dropped for each in updated(state, everything)} == {
        1: DropReason.UNKNOWN_TASK,
        2: None,
    }
    assert not state.missed(later)  # outdated: it contains nothing new
    assert updated(state, later) == []


def test_waits_for_news_until_all_is_processed() -> None:
    """A window waits until all messages are processed, so that it sends probes until then."""
    state = window()
    waiting = [state.waiting]
    state.offer([TaskGroup.of(1, [b"x"])], "token")
    waiting.append(state.waiting)
    state.next_frame()
    state.update(ack_of(1, [], []))
    assert state.messages == 0
    waiting.append(state.waiting)
    state.update(ack_of(1, [credit_of(1, PLENTY, PLENTY, 1)], []))
    waiting.append(state.waiting)
    assert waiting == [False, True, True, False]
