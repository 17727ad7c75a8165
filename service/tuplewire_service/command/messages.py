"""Messages in files, pipes and on terminals: what `tuplewire send` reads and `tuplewire recv` writes."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, BinaryIO

from tuplewire.errors import ConfigError, InvalidTaskError
from tuplewire.group import check_task
from tuplewire.message import TaskMessage
from tuplewire.shown import shown

_LENGTH = struct.Struct(">I")


class MessageFormat(StrEnum):
    """How messages follow each other in a file."""

    LINES = "lines"
    """One in each line, as it is."""
    JSON = "json"
    """In each line a JSON object: `task`, and `message` (text) or `base64` (bytes that are no text)."""
    PREFIXED = "prefixed"
    """Before each its length, in four bytes, big-endian. Of the task nothing is said."""


class Decoding(StrEnum):
    """How a payload is to be read that somebody looks at."""

    TEXT = "text"
    JSON = "json"
    TUPLE = "tuple"
    """As a component of a topology has emitted it."""


def payloads_in(file: BinaryIO, form: MessageFormat) -> Iterator[bytes]:
    """Return what stands for each message in a file, as it comes; ConfigError where one is cut off."""
    return _prefixed(file) if form is MessageFormat.PREFIXED else (line.removesuffix(b"\n") for line in file)


def read_messages(
    payloads: Iterable[bytes], form: MessageFormat, task: int | None
) -> Iterator[tuple[int, bytes]]:
    """Return the task and the payload of each message.

    task: of messages that name none. Raises ConfigError, with the number of the message, for what is no
    message, and for one without a task.
    """
    for number, payload in enumerate(payloads, 1):
        to, message = _from_json(payload, number) if form is MessageFormat.JSON else (None, payload)
        to = task if to is None else to
        if to is None:
            raise ConfigError(f"message {number} names no task: give TASK, or write JSON lines with `task`")
        yield to, message


def _prefixed(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(_LENGTH.size):
        (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (-1,)
        payload = file.read(max(0, length))
        if len(payload) != length:
            raise ConfigError(
                "the input ends within a message: each has its length in four bytes, big-endian, before it"
            )
        yield payload


def _from_json(line: bytes, number: int) -> tuple[int | None, bytes]:
    try:
        fields = json.loads(line)
        task = check_task(fields["task"]) if "task" in fields else None
        if "base64" in fields:
            return task, base64.b64decode(fields["base64"], validate=True)
        return task, fields["message"].encode()
    except (ValueError, TypeError, KeyError, AttributeError, InvalidTaskError) as error:
        raise ConfigError(
            f'message {number} is not of the form {{"task": 42, "message": "text"}}, with "base64" in place '
            f'of "message" for bytes: {line[:80]!r}'
        ) from error


def writer_of_messages(
    file: BinaryIO, form: MessageFormat, *, terminal: str | None
) -> Callable[[TaskMessage], object]:
    """Return what writes a message to a file.

    terminal: the encoding of a terminal, where control characters are shown, and not obeyed; None: it is
    none. Raises ConfigError for what a terminal cannot show.
    """
    if form is MessageFormat.PREFIXED:
        if terminal:
            raise ConfigError("--format prefixed is for files and pipes: a terminal would obey what it holds")
        return lambda message: file.write(_LENGTH.pack(len(message.message)) + message.message)
    if form is MessageFormat.JSON:
        return lambda message: file.write(json.dumps(as_json(message)).encode() + b"\n")
    if terminal:
        return lambda message: file.write(_shown(message.message, terminal) + b"\n")
    return lambda message: file.write(message.message + b"\n")


def as_json(message: TaskMessage) -> dict[str, Any]:
    """Return task and payload as they are written in JSON."""
    try:
        return {"task": message.task, "message": message.message.decode()}
    except UnicodeDecodeError:
        return {"task": message.task, "base64": base64.b64encode(message.message).decode()}


def _shown(payload: bytes, encoding: str) -> bytes:
    return shown(payload.decode(errors="backslashreplace")).encode(encoding, errors="backslashreplace")
