"""The headers of requests and answers."""

from __future__ import annotations

import math

import pytest

from tuplewire import TaskMessage
from tuplewire.errors import InvalidTaskError, MessageError
from tuplewire.values.headers import DEADLINE, REPLY_TO
from tuplewire.values.requests import answer_of, id_and_error, request


def test_an_answer_belongs_to_its_request() -> None:
    """The answer goes to the requested task, with the id of the request."""
    message = request(2, b"x", 7, b"id", 10.0)
    assert (message.task, message.payload, message.is_request, message.expired) == (2, b"x", True, False)
    answer = answer_of(message, b"y")
    assert (answer.task, answer.payload, answer.is_request) == (7, b"y", False)
    assert id_and_error(answer) == (b"id", None)


@pytest.mark.parametrize(
    ("seconds", "expired"), [(-1.0, True), (60.0, False), (1e9, False), (math.inf, False)]
)
def test_deadlines(seconds: float, expired: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A request expires at its deadline; one without a deadline never expires."""
    assert request(2, b"x", 7, b"id", seconds).expired == expired


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"9" * 5000, "\u0663".encode(), None])
def test_malformed_headers(value: bytes | None) -> None:
    """Headers without a number count as missing."""
    message = TaskMessage(2, b"x", headers=[(REPLY_TO, value), (DEADLINE, value)])
    assert (message.is_request, message.expired) == (False, False)
    with pytest.raises(MessageError, match="not a request"):
        answer_of(message, b"y")


def test_a_task_outside_the_range() -> None:
    """A request cannot name an invalid task for its answer."""
    with pytest.raises(InvalidTaskError):
        answer_of(TaskMessage(2, b"x", headers=[(REPLY_TO, b"3000000000")]), b"y")


def test_other_messages_answer_nothing() -> None:
    """A message without headers, or with malformed ones, has no id."""
    assert id_and_error(TaskMessage(7, b"x")) == (b"", None)
    assert id_and_error(TaskMessage.received(7, b"x", b"\xff")) == (b"", None)
