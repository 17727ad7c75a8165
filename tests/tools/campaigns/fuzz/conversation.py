"""The requests of an attacker in one call, the worker's answer, and a check of that answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from helpers.hostile import Answer, answer_of, ask_over

from tuplewire.wire import messaging_pb2 as pb

MAX_REQUEST_BYTES = 4 << 20
"""The largest request that a worker with default limits accepts; gRPC itself rejects larger ones."""
HEALTH = "/grpc.health.v1.Health/Check"
_STUCK_SECONDS = 60.0
_NAMES = {name.removeprefix("ERROR_CODE_") for name, number in pb.ErrorCode.items() if number}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One call, right after another one; `refusal` is the only correct answer, if there is one."""

    method: str
    requests: tuple[bytes, ...]
    broken_off: bool = False
    unary: bool = False
    after: Conversation | None = None
    refusal: str = ""

    def __str__(self) -> str:
        shown = [
            f"{request[:40].hex()}{'...' if len(request) > 40 else ''} ({len(request)} bytes)"
            for request in self.requests[:8]
        ]
        return f"{self.method} {shown}{' and more' if len(self.requests) > 8 else ''}"


def hold(channel: grpc.Channel, conversation: Conversation) -> Answer:
    """Run a conversation over a connection."""
    if conversation.after:
        hold(channel, conversation.after)
    if conversation.unary:
        (request,) = conversation.requests
        return ask_over(channel, conversation.method, request)
    gone = threading.Event()

    def requests() -> Iterator[bytes]:
        yield from conversation.requests
        if conversation.broken_off:
            gone.wait()

    stub: Any = channel.stream_stream(conversation.method)
    call = stub(requests(), timeout=_STUCK_SECONDS)
    try:
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                if conversation.broken_off:
                    call.cancel()
    finally:
        gone.set()
    return answer_of(call, [])


def complaint(conversation: Conversation, answer: Answer) -> str:
    """Return the problem of an answer, as text; empty if the answer is allowed."""
    status = answer.status
    if conversation.refusal:
        right = answer.error == conversation.refusal
        return "" if right else f"{answer.error or status.name} instead of {conversation.refusal}"
    if answer.error:
        return "" if answer.error in _NAMES else f"{answer.error!r} is no name of an error"
    if status is grpc.StatusCode.OK:
        return ""
    if status is grpc.StatusCode.CANCELLED and conversation.broken_off:
        return ""
    if status is grpc.StatusCode.NOT_FOUND and conversation.method == HEALTH:
        return ""  # as the standard health service prescribes
    oversize = max(map(len, conversation.requests), default=0) > MAX_REQUEST_BYTES
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and oversize:
        return ""
    return f"{status.name} without a name: {answer.details}"
