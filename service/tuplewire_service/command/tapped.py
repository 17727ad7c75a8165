"""Tapped messages as text and as JSON. All their content is untrusted, so text is escaped.

Used by inspection_commands.py. Owns no state. Thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tuplewire.errors import MalformedError
from tuplewire.packing.packing import FAULTS, read_array_size, read_items, read_value
from tuplewire.text.escaping import escape_unprintable, escape_value
from tuplewire.values.headers import decode_headers
from tuplewire.values.message import TaskMessage
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.messages import Decoding, as_json
from tuplewire_service.command.viewer.columns import short_client

_PARTS = 3  # of a tuple: source, message ID, values
_FACTS = (
    "size_bytes",
    "sender",
    "from_worker",
    "place",
    "redelivered",
    "accepted_unix_micros",
    "seen_unix_micros",
)


def tapped_as_text(message: pb.TappedMessage, decoding: Decoding) -> str:
    """Return a line with the time, task, place, sender, key and headers, and the payload after a bar."""
    sender = short_client(message.sender)
    seconds, micros = divmod(message.seen_unix_micros, 1_000_000)
    instant = time.strftime("%H:%M:%S", time.gmtime(seconds))
    facts: dict[str, Any] = {"task": message.task, "at": message.place, "sender": sender}
    if message.HasField("source"):
        facts["source"] = message.source
    if message.accepted_unix_micros:
        age = max(0, message.seen_unix_micros - message.accepted_unix_micros)  # clocks of two hosts
        facts["age_ms"] = f"{age / 1000:.1f}"
    if message.redelivered:
        facts["redelivered"] = "yes"
    facts.update(_key_and_headers(message))
    facts["bytes"] = message.size_bytes
    told = " ".join(f"{name}={escape_value(value)}" for name, value in facts.items())
    return f"{instant}.{micros // 1000:03d}Z {told} | {_payload(message, decoding)}"


def _key_and_headers(message: pb.TappedMessage) -> dict[str, str]:
    if message.headers_bytes > len(message.headers):  # they exceed the limit of the tap
        return {"headers": f"({message.headers_bytes} bytes)"}
    try:
        key, headers = decode_headers(message.headers)
    except MalformedError:
        return {"headers": f"({message.headers_bytes} bytes that are none)"}
    found = {} if key is None else {"key": _text(key)}
    if headers:
        found["headers"] = ",".join(f"{name}:{_text(value or b'')}" for name, value in headers)
    return found


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _payload(message: pb.TappedMessage, decoding: Decoding) -> str:
    """Return the payload, as plain text if it is incomplete or cannot be decoded."""
    payload = message.payload
    whole = len(payload) == message.size_bytes
    if decoding is not Decoding.TEXT and whole:
        try:
            if decoding is Decoding.TUPLE:
                return escape_unprintable(_tuple(payload))
            return escape_unprintable(json.dumps(json.loads(payload), ensure_ascii=False))
        except (*FAULTS, RecursionError, TypeError):
            return f"(no {decoding}) {escape_unprintable(_text(payload))}"
    return escape_unprintable(_text(payload)) + ("" if whole else " ...")


def _tuple(payload: bytes) -> str:
    """Return a tuple as `task:component:stream [values]`, with its message ID if it is anchored."""
    # The field names of the values are not in the payload, but in the topology.
    size, at = read_array_size(payload, 0)
    if size != _PARTS:
        raise ValueError("a tuple has three parts")
    source, at = read_value(payload, at)
    size, at = read_array_size(payload, at)
    ids, at = read_items(payload, at, size, 1)
    size, at = read_array_size(payload, at)
    values, at = read_items(payload, at, size, 1)
    if at != len(payload):
        raise ValueError("there is more behind the tuple")
    roots = f" of {ids!r}" if ids else ""
    return f"{source} {values!r}{roots}"


def tapped_as_json(message: pb.TappedMessage) -> str:
    """Return a JSON object with the fields of `tuplewire recv --format json`, and facts about the passage."""
    received = TaskMessage.received(message.task, message.payload, message.headers)
    source = message.source if message.HasField("source") else None
    facts = {name: getattr(message, name) for name in _FACTS}
    return json.dumps({**as_json(received), "source": source, **facts})
