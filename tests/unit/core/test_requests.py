"""The headers of requests and answers."""

from __future__ import annotations

import time

import pytest

from tuplewire import TaskMessage
from tuplewire.asking import CORRELATION, answer_of
from tuplewire.errors import InvalidTaskError, MessageError
from tuplewire.values.headers import DEADLINE, REPLY_TO


def test_an_answer_belongs_to_its_request() -> None:
    """The answer goes to the requested task, with the id of the request."""
    message = TaskMessage(2, b"x", headers=[(REPLY_TO, b"7"), (CORRELATION, b"id")])
    assert (message.is_request, message.expired) == (True, False)
    answer = answer_of(message, b"y")
    assert (answer.task, answer.payload, answer.headers) == (7, b"y", ((CORRELATION, b"id"),))
    assert not answer.is_request


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (60, False)])
def test_deadlines(seconds: int, expired: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A request expires at its deadline."""
    deadline = b"%d" % ((time.time() + seconds) * 1000)
    assert TaskMessage(2, b"x", headers=[(DEADLINE, deadline)]).expired == expired


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"9" * 5000, "\u0663".encode(), None])
def test_malformed_headers(value: bytes | None) -> None:
    """Headers without a number count as missing; an invalid task for the answer is an error."""
    message = TaskMessage(2, b"x", headers=[(REPLY_TO, value), (DEADLINE, value)])
    assert (message.is_request, message.expired) == (False, False)
    with pytest.raises(MessageError, match="not a request"):
        answer_of(message, b"y")
    with pytest.raises(InvalidTaskError):
        answer_of(TaskMessage(2, b"x", headers=[(REPLY_TO, b"3000000000")]), b"y")
