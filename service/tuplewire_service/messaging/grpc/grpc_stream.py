"""Calls of the Messaging service as the streams that sessions go over."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from tuplewire.connection.grpc_channel import ERROR_KEY, GrpcStream
from tuplewire.connection.stream import StreamBroken
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
from tuplewire_service.messaging.streamed.streamed_stream import (
    EVERYTHING,
    MAX_DETAIL_LENGTH,
    IAccess,
    ServerStream,
    code_of,
)

_Context = grpc.aio.ServicerContext[Any, Any]


async def refuse(context: _Context, error: TuplewireError) -> NoReturn:
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


Admit = Callable[[_Context], IAccess]
"""Says what the caller of a method may do; raises RefusedError for one who may not even come in."""


class GrpcServerStream(GrpcStream, ServerStream):
    """A call in progress."""

    def __init__(self, context: _Context, admit: Admit | None) -> None:
        super().__init__(context)
        self._context = context
        self.peer = context.peer()
        self._admit = admit

    def admit(self) -> IAccess:
        return EVERYTHING if self._admit is None else self._admit(self._context)

    async def refuse(self, error: TuplewireError) -> NoReturn:
        """See ServerStream: a status, with the code in its trailing metadata."""
        await refuse(self._context, error)


def handler_of(
    serve: Callable[[ServerStream], Awaitable[None]], admit: Admit | None
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return the handler of a streaming method that a service serves to those who are admitted."""

    async def handle(_: object, context: _Context) -> None:
        with contextlib.suppress(StreamBroken):  # nobody is there any more to whom it could be told
            await serve(GrpcServerStream(context, admit))

    return grpc.stream_stream_rpc_method_handler(handle)
