"""Refused messages are reported once, and use bounded memory."""

from __future__ import annotations

from helpers.acks import refusal_of

from tuplewire.connection.receiver_reports import RefusedMessages
from tuplewire.session.ledger import DropReason, Settled

TOO_LARGE = Settled(None, 7, 2, 300, DropReason.TOO_LARGE)


def test_told_once() -> None:
    """Refusals by the receiver and messages that are too large are reported once, in order."""
    refused = RefusedMessages("host:6700")
    refused.add([refusal_of(1, 5, 3, "TASK_NOT_LOCAL", "it has moved", "w2")])
    refused.add_too_large([Settled(None, 5, 1, 1, None), TOO_LARGE], 100)
    assert refused.take() == [
        "TASK_NOT_LOCAL: 3 messages to task 5: it has moved (owner: w2)",
        "MESSAGE_TOO_LARGE: 2 messages to task 7, 300 bytes in all: the receiver takes 100 bytes at most",
    ]
    assert refused.take() == []


def test_bounded() -> None:
    """A program that never flushes keeps at most a thousand reports, of any kind."""
    refused = RefusedMessages("host:6700")
    refused.add_too_large([TOO_LARGE] * 1500, 100)
    refused.add([refusal_of(1, 5, 3, "UNKNOWN_TASK", "nobody has it", "")])
    assert len(refused.take()) == 1000
