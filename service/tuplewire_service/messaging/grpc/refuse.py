"""Errors to gRPC statuses: every refusal has a named code in its trailing metadata, and reaches the peer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NoReturn

import grpc

from tuplewire.channel import ERROR_KEY
from tuplewire.errors import (
    DrainingError,
    MalformedError,
    MessageError,
    NotReadyError,
    RefusedError,
    ResourceLimitError,
    TuplewireError,
)

MAX_ID_LENGTH = 256
_LAST_WRITE_SECONDS = 1.0
MAX_DETAIL_LENGTH = 500
"""Errors quote what the peer said; gRPC drops a status whose metadata is over 8 KiB, name and all."""


def code_of(error: TuplewireError) -> str:
    """Return the name of the wire's ErrorCode for an error."""
    return error.code if isinstance(error, RefusedError) else "MALFORMED"


def check_id(name: str, value: str) -> None:
    """Raise MalformedError for a peer's id that is empty, or too long to be remembered."""
    if not 0 < len(value) <= MAX_ID_LENGTH:
        raise MalformedError(f"a {name} has 1 to {MAX_ID_LENGTH} characters, not {len(value)}")


async def finish_writing(writer: asyncio.Task[None]) -> None:
    """Let a stream's writer, which was told to end, finish the write that is under way; raise what it raised.

    A write that is broken off stays with gRPC, which sends no status meanwhile: the peer would wait for one
    as long as the connection holds. Only a peer that does not read is left like that.
    """
    try:
        await asyncio.wait([writer], timeout=_LAST_WRITE_SECONDS)
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.RpcError, asyncio.InvalidStateError):
            await writer


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: TuplewireError) -> NoReturn:
    """End a stream with the status that stands for an error."""
    status = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, MessageError):
        status = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, DrainingError | NotReadyError):
        status = grpc.StatusCode.UNAVAILABLE
    elif isinstance(error, ResourceLimitError):
        status = grpc.StatusCode.RESOURCE_EXHAUSTED
    await context.abort(status, str(error)[:MAX_DETAIL_LENGTH], ((ERROR_KEY, code_of(error)),))
    raise AssertionError  # abort raises; this tells the type checker
