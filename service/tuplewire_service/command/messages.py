"""The formats of messages in files, pipes and terminals, for send, recv, dead-letters and tap.

Used by commands that show messages. Owns no state. Thread-safe. Reference: docs/reference/command.md.
"""

from __future__ import annotations

import base64
import fcntl
import json
import select
import struct
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, BinaryIO, TypedDict

from tuplewire.errors import ConfigError, InvalidTaskError, MalformedError
from tuplewire.settings.settings import unknown_error
from tuplewire.text.formatting import escape_unprintable
from tuplewire.values.group import check_task
from tuplewire.values.message import TaskMessage

_LENGTH = struct.Struct(">I")
_KEYS = ("task", "message", "base64", "key", "headers")
TAPPED_FIELDS = (
    "payload_bytes",
    "sender_id",
    "from_worker",
    "place",
    "redelivered",
    "accepted_unix_micros",
    "seen_unix_micros",
)
"""The facts about a message's passage that `tuplewire tap --json` adds, apart from `source`."""
_MAX_POLLS = 1000
_POLL_MILLIS = 1


class MessageFormat(StrEnum):
    """The format of messages in a file."""

    LINES = "lines"  # one unchanged payload per line
    JSON = "json"
    """One JSON object per line: `task`, and `message` (text) or `base64` (bytes that are not text).

    Optional: `key`, and `headers` as pairs of name and value. Bytes can be an object with `base64`.
    """
    PREFIXED = "prefixed"  # each payload after its length in four bytes, big-endian; without tasks


class PayloadFormat(StrEnum):
    """The interpretation of a payload for display."""

    TEXT = "text"
    JSON = "json"
    TUPLE = "tuple"  # the fields of a tuple of a topology


def read_records(file: BinaryIO, form: MessageFormat) -> Iterator[bytes]:
    """Return the encoded messages of a file as they arrive. Raise ConfigError if the last one is cut off."""
    return _prefixed(file) if form is MessageFormat.PREFIXED else (line.removesuffix(b"\n") for line in file)


class MessageMetadata(TypedDict, total=False):
    """The optional parts of a message, as keyword arguments of `send`."""

    key: bytes
    headers: list[tuple[str, bytes | None]]


def read_messages(
    records: Iterable[bytes], form: MessageFormat, task: int | None
) -> Iterator[tuple[int, bytes, MessageMetadata]]:
    """Yield the task, the payload, and the key and headers of each message.

    `task` is for messages without a task. Raises ConfigError, with its number, if a message is invalid.
    """
    for number, line in enumerate(records, 1):
        to, payload, metadata = task, line, MessageMetadata()
        if form is MessageFormat.JSON:
            to, payload, metadata = _from_json(line, number, task)
        if to is None:
            raise ConfigError(f"message {number} names no task: give TASK, or write JSON lines with `task`")
        yield to, payload, metadata


def _prefixed(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(_LENGTH.size):
        (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (-1,)
        payload = file.read(max(0, length))
        if len(payload) != length:
            raise ConfigError(
                "the input ends within a message: each has its length in four bytes, big-endian, before it"
            )
        yield payload


def _from_json(line: bytes, number: int, task: int | None) -> tuple[int | None, bytes, MessageMetadata]:
    unknown: list[str] = []
    try:
        fields = json.loads(line)
        unknown += fields.keys() - {*_KEYS, "source", *TAPPED_FIELDS}
        if "task" in fields:
            task = check_task(fields["task"])
        payload = _bytes_of(fields) if "base64" in fields else _bytes_of(fields["message"])
        metadata = MessageMetadata()
        if fields.get("key") is not None:
            metadata["key"] = _bytes_of(fields["key"])
        if fields.get("headers"):
            metadata["headers"] = list(map(_header_of, fields["headers"]))
    except (ValueError, TypeError, KeyError, AttributeError, InvalidTaskError, RecursionError) as error:
        if not unknown:
            raise ConfigError(
                f'message {number} is not of the form {{"task": 42, "message": "text", "key": "k", '
                f'"headers": [["name", "value"]]}}; for bytes, write "base64" instead of "message", and '
                f'as a key or a value {{"base64": ...}}: {line[:80]!r}'
            ) from error
    for name in unknown:
        raise unknown_error(f"key {name!r} in message {number}", name, _KEYS)
    if (size := fields.get("payload_bytes", len(payload))) != len(payload):
        raise ConfigError(f"message {number} has only {len(payload)} of {size} bytes: use tap --bytes={size}")
    return task, payload, metadata


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return bytes(value.encode())


def _header_of(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError
    return pair[0], None if pair[1] is None else _bytes_of(pair[1])


def make_message_writer(
    file: BinaryIO, form: MessageFormat, *, terminal_encoding: str | None
) -> Callable[[TaskMessage], int]:
    """Return a function that writes a message to a file, and returns the number of bytes.

    Raises ConfigError if a terminal cannot show the messages.
    `terminal_encoding`: of a terminal, for which control characters are escaped; None: no terminal.
    """
    if form is MessageFormat.PREFIXED:
        if terminal_encoding:
            raise ConfigError("--format prefixed is for files and pipes: a terminal would interpret it")
        return lambda message: file.write(_LENGTH.pack(len(message.payload)) + message.payload)
    if form is MessageFormat.JSON:
        return lambda message: file.write(json.dumps(json_fields(message)).encode() + b"\n")
    if terminal_encoding:
        return lambda message: file.write(_escape_payload(message.payload, terminal_encoding) + b"\n")
    return lambda message: file.write(message.payload + b"\n")


def json_fields(message: TaskMessage) -> dict[str, Any]:
    """Return the JSON fields of a message, without its key and headers if they cannot be decoded."""
    payload = _as_value(message.payload)
    fields: dict[str, Any] = {"task": message.task}
    fields |= payload if isinstance(payload, dict) else {"message": payload}
    with suppress(MalformedError):
        if message.key is not None:
            fields["key"] = _as_value(message.key)
        if message.headers:
            fields["headers"] = [
                [name, None if value is None else _as_value(value)] for name, value in message.headers
            ]
    return fields


def _as_value(value: bytes) -> str | dict[str, str]:
    """Return bytes as a string, or as an object with `base64` if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _escape_payload(payload: bytes, encoding: str) -> bytes:
    return escape_unprintable(payload.decode(errors="backslashreplace")).encode(
        encoding, errors="backslashreplace"
    )


def wait_for_reader(out: BinaryIO) -> None:
    """Wait at most 1 s until a pipe's reader has read all. Raises BrokenPipeError if it closes the pipe."""
    poller = select.poll()
    poller.register(out, 0)  # reports only that the reader has closed the pipe
    for _ in range(_MAX_POLLS):
        if not _unread_bytes(out):
            return
        if poller.poll(_POLL_MILLIS):
            raise BrokenPipeError


def count_read_messages(out: BinaryIO, sizes: Sequence[int]) -> int:
    """Return the number of the last written messages, with these sizes, that the reader has read."""
    unread, read = _unread_bytes(out), len(sizes)
    while unread > 0 and read:
        read -= 1
        unread -= sizes[read]
    return read


def _unread_bytes(out: BinaryIO) -> int:
    (unread,) = struct.unpack("i", fcntl.ioctl(out, termios.FIONREAD, bytes(4)))
    return int(unread)
