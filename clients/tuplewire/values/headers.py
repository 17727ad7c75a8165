"""What travels with a message beside its payload: a key and headers, in the shape of Kafka's.

They travel encoded, one `MessageHeaders` for each message, which no worker opens. An empty one stands for
neither key nor headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError, MessageError
from tuplewire.values.group import as_bytes
from tuplewire.wire.messaging_pb2 import MessageHeader, MessageHeaders

TOMBSTONE = "tuplewire-tombstone"
"""The header of a message that was a key and a null in Spark, as Kafka's users delete by key."""


def encode_headers(key: Any, headers: Any) -> bytes:
    """Return a message's key (None: it has none) and headers (pairs of a str and bytes or None), encoded.

    Raises MessageError, which says what is wrong, for a key or a value that is not bytes and the like.
    """
    if key is None and not headers:
        return b""
    if isinstance(headers, Mapping):
        raise MessageError(f"headers are pairs, not a {type(headers).__name__}; pass list(headers.items())")
    encoded = MessageHeaders()
    if key is not None:
        encoded.key = as_bytes(key, "a key")
    try:
        encoded.headers.extend(_header(name, value) for name, value in headers or ())
    except MessageError:
        raise
    except (TypeError, ValueError) as error:
        raise MessageError(
            f"headers are pairs of a name (str) and a value (bytes), not {headers!r:.200}"
        ) from error
    return encoded.SerializeToString()


def _header(name: Any, value: Any) -> MessageHeader:
    if not isinstance(name, str):
        raise MessageError(f"a header's name is a str, not {type(name).__name__}: {name!r}")
    if value is None:
        return MessageHeader(name=name)
    return MessageHeader(name=name, value=as_bytes(value, f"the value of the header {name!r}"))


def decode_headers(encoded: bytes) -> tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Return key and headers; MalformedError for bytes that are none, which another program has sent."""
    if not encoded:
        return None, ()
    try:
        read = MessageHeaders.FromString(encoded)
    except DecodeError as error:
        raise MalformedError(
            f"{len(encoded)} bytes beside a payload are not a MessageHeaders: {error}; mend the program that "
            "sent the message, its payload can be read"
        ) from error
    key = read.key if read.HasField("key") else None
    return key, tuple((each.name, each.value if each.HasField("value") else None) for each in read.headers)


def header_column(
    keys: Collection[Any] | None, headers: Collection[Any] | None, count: int
) -> list[bytes] | None:
    """Return so many encoded entries; None if no message has a key or headers.

    keys, headers: a value for each message, None where it has none. Raises MalformedError if there are not so
    many, MessageError as encode_headers.
    """
    for column, name in ((keys, "keys"), (headers, "headers")):
        if column is not None and len(column) != count:
            raise MalformedError(f"{len(column)} {name} and {count} payloads: the columns differ in length")
    none: Iterable[None] = (None,) * count
    column = list(map(encode_headers, none if keys is None else keys, none if headers is None else headers))
    return column if any(column) else None
