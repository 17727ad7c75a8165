"""The taps of one `tuplewire tap`, each with a thread and a client, and their messages as text and JSON.

All content of messages is untrusted, so text is escaped. Used by inspection_commands.py. Owns the
threads and clients of the open taps. Thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import MalformedError, TuplewireError, UnreachableError
from tuplewire.packing.packing import READ_ERRORS, read_array_size, read_items, read_value
from tuplewire.text.formatting import escape_unprintable, escape_value
from tuplewire.values.headers import decode_headers
from tuplewire.values.message import TaskMessage
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.messages import TAPPED_FIELDS, PayloadFormat, json_fields
from tuplewire_service.command.parsers import fetch_assignment, fetch_owners, make_control_client
from tuplewire_service.command.viewer.columns import format_client

_OWNER_CHECK_SECONDS = 1.0

_PARTS = 3  # of a tuple: source, message ID, values

_Responses = SimpleQueue[tuple[str, pb.TapResponse | TuplewireError]]


def read_taps(arguments: argparse.Namespace) -> Generator[pb.TapResponse, None, None]:
    """Yield the responses of taps at the tasks' workers, and open a tap at each worker that a task moves to.

    The counts are the sums of all taps. Without tasks, the only tap is at the given worker. With tasks, the
    messages of a response are those that its worker queued: a message also passes the tap at a worker that
    its task has left. Close the generator to end the taps. Raises the error of a tap at a task's worker.
    """
    tasks, arrived = arguments.tasks, _Responses()
    last: dict[str, pb.TapResponse | TuplewireError] = {}
    with ExitStack() as exit_stack:
        first = exit_stack.enter_context(make_control_client(arguments))
        if tasks:
            fetch_assignment(first, tasks)
        while True:
            try:
                owners = fetch_owners(first, tasks)
            except UnreachableError:
                if not any(isinstance(each, pb.TapResponse) for each in last.values()):
                    raise
                owners = {}  # the open taps continue
            for address, worker_id in owners.items():
                if isinstance(latest := last.get(address), TuplewireError):
                    raise latest
                if latest is None:
                    client = exit_stack.enter_context(make_control_client(arguments, address))
                    last[address] = pb.TapResponse()
                    reader = (client, worker_id, arguments, arrived)
                    threading.Thread(target=_read, args=reader, daemon=True).start()
            next_check_at = time.monotonic() + _OWNER_CHECK_SECONDS
            while (wait_seconds := next_check_at - time.monotonic()) > 0:
                try:
                    address, response = arrived.get(timeout=wait_seconds)
                except Empty:
                    break
                last[address] = response
                if isinstance(response, TuplewireError):
                    break
                counts = [each for each in last.values() if isinstance(each, pb.TapResponse)]
                yield pb.TapResponse(
                    messages=[each for each in response.messages if not tasks or each.place == "local"],
                    passed_messages=sum(each.passed_messages for each in counts),
                    omitted_messages=sum(each.omitted_messages for each in counts),
                )


def _read(client: ControlClient, worker_id: str, arguments: argparse.Namespace, arrived: _Responses) -> None:
    tapped = client.tap(
        arguments.tasks, sample=arguments.sample, max_per_second=arguments.rate, max_bytes=arguments.bytes
    )
    try:
        arrived.put((client.address, next(tapped)))  # without messages: the tap is open
        print(f"tapping at {escape_unprintable(worker_id)}; Ctrl-C ends it", file=sys.stderr, flush=True)
        for response in tapped:
            arrived.put((client.address, response))
    except TuplewireError as error:
        arrived.put((client.address, error))


def tapped_as_text(message: pb.TappedMessage, decoding: PayloadFormat) -> str:
    """Return a line: time, task, place, sender, key and headers, and the payload after a bar."""
    sender = format_client(message.sender_id)
    seconds, micros = divmod(message.seen_unix_micros, 1_000_000)
    instant = time.strftime("%H:%M:%S", time.gmtime(seconds))
    facts: dict[str, Any] = {"task": message.task, "place": message.place, "sender": sender}
    if message.HasField("source"):
        facts["source"] = message.source
    if message.accepted_unix_micros:
        age = max(0, message.seen_unix_micros - message.accepted_unix_micros)  # clocks of two hosts
        facts["age_ms"] = f"{age / 1000:.1f}"
    if message.redelivered:
        facts["redelivered"] = "yes"
    facts.update(_key_and_headers(message))
    facts["bytes"] = message.payload_bytes
    fields = " ".join(f"{name}={escape_value(value)}" for name, value in facts.items())
    return f"{instant}.{micros // 1000:03d}Z {fields} | {_payload(message, decoding)}"


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


def _payload(message: pb.TappedMessage, decoding: PayloadFormat) -> str:
    """Return the payload, as plain text if it is incomplete or cannot be decoded."""
    payload = message.payload
    whole = len(payload) == message.payload_bytes
    if decoding is not PayloadFormat.TEXT and whole:
        try:
            if decoding is PayloadFormat.TUPLE:
                return escape_unprintable(_tuple(payload))
            return escape_unprintable(json.dumps(json.loads(payload), ensure_ascii=False))
        except (*READ_ERRORS, RecursionError, TypeError):
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
        raise ValueError("there are bytes after the tuple")
    roots = f" of {ids!r}" if ids else ""
    return f"{source} {values!r}{roots}"


def tapped_as_json(message: pb.TappedMessage) -> str:
    """Return a JSON object with the fields of `tuplewire recv --format json`, and facts about the passage."""
    received = TaskMessage.from_checked(message.task, message.payload, message.headers)
    source = message.source if message.HasField("source") else None
    facts = {name: getattr(message, name) for name in TAPPED_FIELDS}
    return json.dumps({**json_fields(received), "source": source, **facts})
