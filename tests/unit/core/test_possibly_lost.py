"""Losses: SendSession's upper bound for a failed receiver, balances, departures, state files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.cursors import ack_of, credit_of
from helpers.sending import PLENTY, reopen

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.session.send import SendSession
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import Departure
from tuplewire_service.process.state_file import StateFile
from tuplewire_service.worker.departures import (
    Departures,
    Successor,
    max_lost_messages,
    successors_of,
    successors_to_wire,
)


def sent(
    *messages: int, acknowledged: int, released: int = 0, mode: AckMode = AckMode.QUEUED, worker: int = 0
) -> SendSession:
    """Return a session that has sent these counts to task 1, one frame each, and received these updates."""
    session = SendSession(SessionSettings(ack_mode=mode))
    reopen(session, 7, worker)
    for count in messages:
        assert session.offer([TaskGroup.of(1, [b"x"] * count)])
        assert session.next_frame() is not None
    grants = [credit_of(1, PLENTY, PLENTY, released)] if released else []
    session.apply_ack(ack_of(acknowledged, grants, []))
    return session


@pytest.mark.parametrize(
    ("mode", "acknowledged", "released", "worker", "lost"),
    [
        # Messages in flight are resent, and messages that are retained until they are processed, too.
        (AckMode.QUEUED, 1, 4, 71, 6),
        (AckMode.PROCESSED, 2, 4, 71, 0),
        # A worker with the same incarnation still has its messages, even without the session.
        (AckMode.QUEUED, 1, 0, 70, 0),
        (AckMode.QUEUED, 1, 0, 71, 10),
    ],
)
def test_what_was_acknowledged_and_not_released_counts(
    mode: AckMode, acknowledged: int, released: int, worker: int, lost: int
) -> None:
    """Acknowledged messages of a worker that has failed count until they are released."""
    session = sent(10, 20, acknowledged=acknowledged, released=released, mode=mode, worker=70)
    reopen(session, 8, worker)
    assert session.possibly_lost == lost


@pytest.mark.parametrize("drained", [False, True])
def test_each_death_counts_for_itself(*, drained: bool) -> None:
    """Each failed receiver counts only its own messages; a drained one reports its own losses."""
    session = sent(10, acknowledged=1)
    session.receiver_ended_cleanly = drained
    reopen(session, 8)
    reopen(session, 9)
    assert session.possibly_lost == (0 if drained else 10)
    assert session.offer([TaskGroup.of(1, [b"x"] * 3)])
    assert session.next_frame() is not None
    session.apply_ack(ack_of(1, [], []))
    reopen(session, 10)
    assert session.possibly_lost == (3 if drained else 13)


def test_kept_and_passing_messages_are_told_apart() -> None:
    """On a worker's connection, only messages without a copy count, also after a partial release."""
    for released, lost in ((0, 5), (2, 5), (3, 5), (5, 3), (8, 0), (10, 0)):
        session = SendSession(SessionSettings())
        reopen(session, 7)
        for count, retain in ((3, True), (5, False), (2, True)):
            assert session.offer([TaskGroup.of(1, [b"x"] * count)], "inbound", retain=retain)
        assert session.next_frame() is not None
        grants = [credit_of(1, PLENTY, PLENTY, released)] if released else []
        session.apply_ack(ack_of(1, grants, []))
        reopen(session, 8)
        assert session.possibly_lost == lost, released


def test_what_nobody_else_has() -> None:
    """`count_only_here()` counts messages that wait or are in flight, unless their program retains them."""
    session = SendSession(SessionSettings())
    reopen(session, 7)
    plain = TaskGroup.of(1, [b"x"] * 2)
    for group in (plain, plain.numbered(1, 0, retained_upstream=True), plain.numbered(3, 0).as_forwarded(9)):
        assert session.offer([group], "inbound", retain=group.retained_upstream)
    assert session.count_only_here() == 4
    assert session.next_frame() is not None
    assert session.count_only_here() == 4
    session.apply_ack(ack_of(1, [], []))
    assert (session.count_only_here(), session.messages) == (0, 2)


def test_balances_are_added() -> None:
    """Each part of the balances is added separately."""
    one = LedgerSnapshot(10, 5, {"closed": 2, "rejected": 1}, 2)
    both = one + LedgerSnapshot(100, 50, {"closed": 20, "expired": 10}, 20)
    assert both == LedgerSnapshot(110, 55, {"closed": 22, "expired": 10, "rejected": 1}, 22)


def test_what_is_lost_with_a_worker() -> None:
    """The loss includes the messages held for the tasks and the messages in flight to other processes."""
    departure = Departure(incarnation=1, dropped_messages={1: 5, 2: 7, 3: 11}, in_flight_messages=100)
    assert max_lost_messages(departure, [1, 3]) == 116
    assert max_lost_messages(Departure(incarnation=1), [1]) == 0


def test_successors_travel_once() -> None:
    """A departure has each successor once, and preserves the tasks and entry workers of each."""
    successors = {(1, 9): Successor("w", "h:1", 8), (2, 9): Successor("w", "h:1", 8)}
    departure = Departure(successors=successors_to_wire(successors))
    assert len(departure.successors) == 1
    assert successors_of(departure) == successors


def test_old_departures_are_forgotten() -> None:
    """Only the latest 1,000 departures are remembered."""
    departures = Departures()
    for number in range(1, 1002):
        departures.add(Departure(incarnation=number))
    assert 1 not in departures
    assert 2 in departures
    assert len(departures) == 1000


@pytest.mark.parametrize("number", [10**400, 2**53 + 1, -1, 1.5, True, "5", None])
def test_absurd_numbers_are_not_used(tmp_path: Path, number: object) -> None:
    """Invalid counts are ignored, because metrics would report them permanently."""
    file = tmp_path / "state.json"
    state = {"worker_id": "w", "incarnation": 1, "ended": False, "unretained_messages": number}
    file.write_text(json.dumps(state), encoding="utf-8")
    assert StateFile(file, "w", 2).predecessor_possibly_lost == 0
    file.write_text(json.dumps(state | {"unretained_messages": 7}), encoding="utf-8")
    assert StateFile(file, "w", 2).predecessor_possibly_lost == 7
