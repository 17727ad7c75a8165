"""Ledger balances, and departures of workers, which account for lost messages."""

from __future__ import annotations

import pytest

from tuplewire.session.departure import Departure, SinkEpoch, Successor, TaskContent
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire.translate import departure_from_wire, departure_to_wire

ONE = LedgerSnapshot(10, 5, {"closed": 2, "rejected": 1}, 2)
OTHER = LedgerSnapshot(100, 50, {"closed": 20, "expired": 10}, 20)


def test_balances_are_added() -> None:
    """Each part of the balances is added separately."""
    both = ONE + OTHER
    assert both == LedgerSnapshot(110, 55, {"closed": 22, "expired": 10, "rejected": 1}, 22)
    assert both.balanced


@pytest.mark.parametrize("missing", [0, 1])
def test_a_balance_says_whether_it_adds_up(missing: int) -> None:
    """The text and the HTML of a balance show if it does not add up."""
    balance = LedgerSnapshot(10 + missing, 5, {"closed": 3, "expired": 0}, 2)
    assert balance.balanced is (not missing)
    assert ("!=" in str(balance)) is bool(missing)
    page = balance._repr_html_()
    assert ("DOES NOT BALANCE" in page) is bool(missing)
    assert "expired" not in page


def test_what_is_lost_with_a_worker() -> None:
    """The loss includes the messages held for the tasks and the messages in flight to other processes."""
    departure = Departure(1, {1: 5, 2: 7, 3: 11}, others=100)
    assert departure.lost([1, 3]) == 116
    assert Departure(1).lost([1]) == 0


def test_a_departure_travels_whole() -> None:
    """The wire format preserves a departure, including the tasks' content in a sink's last epoch."""
    contents = {5: TaskContent(3, 30, 65_520), 1: TaskContent(1, 0, 0)}
    sinks = (SinkEpoch("me", "s", 7, contents, "run"), SinkEpoch("me", "t", 0, {}, "other"))
    successors = {(1, 9): Successor("w", "h:1", 8), (2, 9): Successor("w", "h:1", 8)}
    departure = Departure(4, {1: 5}, 6, sinks, successors)
    assert departure_from_wire(departure_to_wire(departure)) == departure
