"""Errors to gRPC statuses: every refusal has a named code in its trailing metadata, and reaches the peer."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from tuplewire.connection.channel import ERROR_KEY
from tuplewire.errors import (
    DrainingError,
    MessageError,
    NotReadyError,
    PermissionDeniedError,
    ResourceLimitError,
    TuplewireError,
    UnauthenticatedError,
    WrongWorkerError,
)
from tuplewire_service.messaging.streamed.streamed_stream import MAX_DETAIL_LENGTH, code_of


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: TuplewireError) -> NoReturn:
    """End a stream with the status that stands for an error."""
    status = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, MessageError):
        status = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, DrainingError | NotReadyError | WrongWorkerError):
        status = grpc.StatusCode.UNAVAILABLE
    elif isinstance(error, ResourceLimitError):
        status = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, UnauthenticatedError):
        status = grpc.StatusCode.UNAUTHENTICATED
    elif isinstance(error, PermissionDeniedError):
        status = grpc.StatusCode.PERMISSION_DENIED
    await context.abort(status, str(error)[:MAX_DETAIL_LENGTH], ((ERROR_KEY, code_of(error)),))
    raise AssertionError  # abort raises; this tells the type checker
