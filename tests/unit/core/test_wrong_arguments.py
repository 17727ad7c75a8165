"""Arguments of a wrong type: the error is one of Tuplewire's, and names the argument or its value."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tuplewire import Client, Team, local
from tuplewire.errors import ConfigError, InvalidTaskError, MessageError, TuplewireError
from tuplewire.membership import Membership
from tuplewire.processes.worker_processes import LocalWorkerProcess
from tuplewire.spark.client_handle import ClientHandle

ADDRESS = "127.0.0.1:1"


def client(**arguments: Any) -> None:
    """Create a client, and try to send."""
    made = Client(ADDRESS, **arguments)
    try:
        made.try_send(1, b"x")
    finally:
        made.close(0)


def receive(count: Any) -> None:
    """Iterate over messages of a subscription that does not connect."""
    made = Client(ADDRESS)
    try:
        with made.recv([1]) as inbox:
            list(inbox.messages(count, seconds=0.0))
    finally:
        made.close(0)


def answer(message: Any) -> None:
    """Answer something that is not a message."""
    Client(ADDRESS).answer(message, b"x")


def team(**arguments: Any) -> None:
    """Join a team."""
    Team(**{"tasks": [1], "rank": 0, "address": ADDRESS, **arguments}).close()


def membership(**arguments: Any) -> Membership:
    """Describe a membership."""
    return Membership([ADDRESS], [1], **arguments)


def worker(**arguments: Any) -> LocalWorkerProcess:
    """Describe a local worker."""
    return local(**arguments)


@pytest.mark.parametrize(
    ("call", "argument", "error", "text"),
    [
        (client, {"source": "x"}, InvalidTaskError, "a task id is an integer, not 'x'"),
        (client, {"source": {}}, InvalidTaskError, "a task id is an integer, not {}"),
        (client, {"incarnation": "x"}, ConfigError, "incarnation is a whole number, not 'x'"),
        (client, {"incarnation": -1}, ConfigError, "from 0 to 18446744073709551615, not -1"),
        (client, {"incarnation": 2**64}, ConfigError, "not 18446744073709551616"),
        (client, {"credentials": "secret"}, ConfigError, "tuplewire.Credentials, not a str"),
        (receive, {"count": "x"}, ConfigError, "count is a whole number, not 'x'"),
        (receive, {"count": 1.5}, ConfigError, "count is a whole number, not 1.5"),
        (answer, {"message": "x"}, MessageError, "the message is not a request"),
        (team, {"rank": "x"}, ConfigError, "rank is a whole number, not 'x'"),
        (membership, {"min_workers": "x"}, ConfigError, "min_workers is a whole number, not 'x'"),
        (membership, {"min_workers": -1}, ConfigError, "min_workers is a whole number from 0 to"),
        (membership, {"timeout": "60"}, ConfigError, "timeout is a number of seconds, not '60'"),
        (ClientHandle, {"timeout": "60"}, ConfigError, "timeout is a number of seconds, not '60'"),
        (membership, {"poll_seconds": "x"}, ConfigError, "poll_seconds is a number of seconds, not 'x'"),
        (membership, {"expire_seconds": timedelta(1)}, ConfigError, "pass its .total_seconds()"),
        (membership, {"expire_seconds": None}, ConfigError, "must be more than 0, not None"),
        (worker, {"tasks": [1]}, ConfigError, "task ids are written like 1,2,10-19"),
        (worker, {"drain_seconds": "5"}, ConfigError, "drain_seconds is a number of seconds, not '5'"),
        (worker, {"drain_seconds": timedelta(1)}, ConfigError, "pass its .total_seconds()"),
        (worker, {"drain_seconds": math.nan}, ConfigError, "drain_seconds is a number of seconds, not nan"),
        (worker, {"drain_seconds": -1}, ConfigError, "drain_seconds must be more than 0, not -1"),
    ],
)
def test_a_wrong_type_is_named(
    call: Callable[..., object], argument: dict[str, Any], error: type[TuplewireError], text: str
) -> None:
    """A wrong type raises a clear error at the call, not a TypeError or an error on the messaging loop."""
    with pytest.raises(error) as raised:
        call(**argument)
    assert text in str(raised.value)
    assert "secret" not in str(raised.value)
