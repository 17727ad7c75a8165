"""Encoding of the key and headers of a message, which have the types of Kafka's.

Each message has one encoded `MessageHeaders`, which workers forward without decoding. It is empty for a
message without key and headers. Functions import protobuf, because messages without both do not need it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tuplewire.errors import MAX_TASK, MalformedError, MessageError
from tuplewire.values.group import as_bytes

TOMBSTONE = "tuplewire-tombstone"
"""The header of a message from a Spark row with a key and a null value, which deletes a key in Kafka."""
REPLY_TO = "tuplewire-reply-to"
"""The header of a request: the task that receives the answer, in decimal digits."""
DEADLINE = "tuplewire-deadline"
"""The header with the time at which the sender of a request stops waiting, in milliseconds since 1970."""


def encode_headers(key: Any, headers: Any) -> bytes:
    """Encode a key (or None) and headers: pairs of a str, and bytes or None. Raises MessageError."""
    if key is None and not headers:
        return b""
    if isinstance(headers, Mapping):
        raise MessageError(f"headers are pairs, not a {type(headers).__name__}; pass list(headers.items())")
    from tuplewire.wire.messaging_pb2 import MessageHeaders

    encoded = MessageHeaders()
    if key is not None:
        encoded.key = as_bytes(key, "a key")
    try:
        for name, value in headers or ():
            content = None if value is None else as_bytes(value, f"the value of the header {name!r}")
            encoded.headers.add(name=_check_name(name), value=content)
    except MessageError:
        raise
    except (TypeError, ValueError) as error:
        raise MessageError(
            f"headers are pairs of a name (str) and a value (bytes), not {headers!r:.200}"
        ) from error
    return encoded.SerializeToString()


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise MessageError(f"a header's name is a str, not {type(name).__name__}: {name!r}")
    return name


def decode_headers(encoded: bytes) -> tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Decode a key and headers. Raise MalformedError if another program has sent invalid bytes."""
    if not encoded:
        return None, ()
    from google.protobuf.message import DecodeError

    from tuplewire.wire.messaging_pb2 import MessageHeaders

    try:
        decoded = MessageHeaders.FromString(encoded)
    except DecodeError as error:
        raise MalformedError(
            f"{len(encoded)} bytes next to a payload are not a MessageHeaders: {error}; fix the program that "
            "sent the message, its payload can be read"
        ) from error
    key = decoded.key if decoded.HasField("key") else None
    return key, tuple((each.name, each.value if each.HasField("value") else None) for each in decoded.headers)


def parse_number(headers: Iterable[tuple[str, bytes | None]], name: str) -> int | None:
    """Return the number in a header; None if there is no such header, or no number in it."""
    value = dict(headers).get(name) or b""
    return int(value) if value.isdigit() and len(value) <= 18 else None


def parse_reply_task(headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """Return the task for the answer to a request; None if there is no such header, or no task id in it."""
    task = parse_number(headers, REPLY_TO)
    return None if task is None or task > MAX_TASK else task


def encode_header_column(
    keys: Collection[Any] | None, headers: Collection[Any] | None, count: int
) -> list[bytes] | None:
    """Return the encoded key and headers of each of `count` messages; None if none of them has any.

    `keys` and `headers` have a value or None for each message. Raises MalformedError if their length is not
    `count`, and MessageError like encode_headers().
    """
    for column, name in ((keys, "keys"), (headers, "headers")):
        if column is not None and len(column) != count:
            raise MalformedError(f"{len(column)} {name} and {count} payloads: the columns differ in length")
    none: Iterable[None] = (None,) * count
    column = list(map(encode_headers, none if keys is None else keys, none if headers is None else headers))
    return column if any(column) else None
