"""Requests and answers as messages: the headers that connect an answer to its request.

Used by Client.answer() and by the Asker (asking.py). Owns no state. Thread-safe.
Design: docs/design/sessions.md ("Request and reply").
"""

from __future__ import annotations

import time

from tuplewire.errors import MalformedError, MessageError
from tuplewire.values.headers import DEADLINE, REPLY_TO, number_in
from tuplewire.values.message import Headers, TaskMessage

CORRELATION = "tuplewire-correlation"
"""The header with the id of a request, which its answer repeats."""
ERROR = "tuplewire-error"
"""The header of an answer that is an error: its text."""
_MOST_SECONDS = 1e9
"""A longer timeout has no deadline."""


def request(task: int, payload: bytes, reply_to: int, correlation: bytes, seconds: float) -> TaskMessage:
    """Return a request with a deadline `seconds` seconds from now."""
    headers: list[tuple[str, bytes | None]] = [(REPLY_TO, b"%d" % reply_to), (CORRELATION, correlation)]
    if seconds < _MOST_SECONDS:
        headers.append((DEADLINE, b"%d" % ((time.time() + seconds) * 1000)))
    return TaskMessage(task, payload, headers=headers)


def answer_of(message: TaskMessage, payload: bytes, *more: tuple[str, bytes]) -> TaskMessage:
    """Return the answer to a request, with more headers. Raises MessageError if it is not a request."""
    reply_to = number_in(message.headers, REPLY_TO)
    if reply_to is None:
        raise MessageError("the message is not a request: check message.is_request before you answer it")
    headers: Headers = [(CORRELATION, dict(message.headers).get(CORRELATION)), *more]
    return TaskMessage(reply_to, payload, headers=headers)


def id_and_error(message: TaskMessage) -> tuple[bytes, str | None]:
    """Return the id of the answered request, empty if it is missing, and the text of an error, if any."""
    try:
        headers = dict(message.headers)
    except MalformedError:
        return b"", None
    error = headers.get(ERROR)
    return headers.get(CORRELATION) or b"", None if error is None else error.decode(errors="replace")
