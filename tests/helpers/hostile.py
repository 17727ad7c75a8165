"""Requests of a client that breaks the protocol, and the worker's answers."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Any

import grpc

from helpers.topology import TOPOLOGY
from tuplewire import TaskGroup
from tuplewire.connection.grpc_channel import ERROR_KEY
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.settings.config import PROTOCOL_VERSION
from tuplewire.values.columns import varint
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame

SEND = "/tuplewire.v1.Messaging/Send"
RECV = "/tuplewire.v1.Messaging/Recv"
TARGET_TASK = 1
"""The target task of hostile messages."""


@dataclass(frozen=True)
class Answer:
    """The result of a stream or call."""

    status: grpc.StatusCode
    error: str
    details: str
    responses: list[bytes]


OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def talk(endpoint: Endpoint, method: str, requests: list[bytes]) -> Answer:
    """Write requests to a stream on a separate connection, half-close it, and return its result."""
    with grpc.insecure_channel(endpoint.address, options=OPTIONS) as channel:
        return talk_over(channel, method, requests)


def talk_over(channel: grpc.Channel, method: str, requests: list[bytes]) -> Answer:
    """Do the same over an existing connection."""
    stub: Any = channel.stream_stream(method)
    call = stub(iter(requests), timeout=20)
    responses = []
    with contextlib.suppress(grpc.RpcError):
        responses.extend(call)
    return answer_of(call, responses)


def answer_of(call: Any, responses: list[bytes]) -> Answer:
    """Return the result of a finished call."""
    trailing = dict(call.trailing_metadata() or ())
    return Answer(call.code(), str(trailing.get(ERROR_KEY, "")), call.details() or "", responses)


def ask(endpoint: Endpoint, method: str, request: bytes) -> Answer:
    """Make a call with one request and one response."""
    with grpc.insecure_channel(endpoint.address, options=OPTIONS) as channel:
        return ask_over(channel, method, request)


def ask_over(channel: grpc.Channel, method: str, request: bytes) -> Answer:
    """Do the same over an existing connection."""
    stub: Any = channel.unary_unary(method)
    try:
        response, call = stub.with_call(request, timeout=20)
    except grpc.RpcError as error:
        return answer_of(error, [])
    return answer_of(call, [response])


_ids = iter(range(10**6))
_OPENING: dict[str, Any] = {"protocol_version": PROTOCOL_VERSION, "topology": TOPOLOGY, "incarnation": 1}
"""The fields of both first requests, hello and subscribe."""


def hello(**changes: Any) -> bytes:
    """Return the hello of a new sender, with changes."""
    own: dict[str, Any] = {"sender_id": f"hostile-{next(_ids)}", "ack_mode": pb.ACK_MODE_QUEUED}
    return pb.SendRequest(hello=pb.Hello(**{**_OPENING, **own, **changes})).SerializeToString()


def subscribe(*tasks: int, **changes: Any) -> bytes:
    """Return the subscribe of a new consumer, with changes."""
    cursors = [pb.TaskCursor(task=task, credit_sequence=10, credit_bytes=1000) for task in tasks]
    own: dict[str, Any] = {"consumer_id": f"hostile-{next(_ids)}", "tasks": cursors}
    return pb.RecvRequest(subscribe=pb.Subscribe(**{**_OPENING, **own, **changes})).SerializeToString()


def frame(sequence: int = 1, payloads: tuple[bytes, ...] = (b"x",), task: int = TARGET_TASK) -> bytes:
    """Return a frame as written by a correct sender."""
    return encode_frame(sequence, [[TaskGroup.of(task, payloads)]])


def raw_frame(*, task: int = TARGET_TASK, lengths: bytes = b"", data: bytes = b"") -> bytes:
    """Return a frame with one group of exactly these columns, which may contradict each other."""
    group = b"\x08" + varint(task % 2**64) + b"\x10\x00"
    group += b"\x1a" + varint(len(lengths)) + lengths + b"\x22" + varint(len(data)) + data
    body = b"\x08\x01\x12" + varint(len(group)) + group
    return b"\x12" + varint(len(body)) + body


def lengths(*sizes: int) -> bytes:
    """Return a column of lengths."""
    return struct.pack(f"<{len(sizes)}I", *sizes)
