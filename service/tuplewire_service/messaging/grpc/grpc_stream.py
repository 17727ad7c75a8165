"""Calls of the Messaging service as the streams that sessions go over."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from tuplewire.connection.channel import BROKEN
from tuplewire.connection.stream import StreamBroken
from tuplewire.errors import TuplewireError
from tuplewire_service.messaging.access import EVERYTHING, IAccess
from tuplewire_service.messaging.grpc.grpc_settings import Admit
from tuplewire_service.messaging.grpc.refuse import refuse
from tuplewire_service.messaging.streamed.streamed_stream import ServerStream

_Context = grpc.aio.ServicerContext[Any, Any]


class GrpcServerStream(ServerStream):
    """A call in progress."""

    def __init__(self, context: _Context, admit: Admit | None) -> None:
        self._context = context
        self._admit = admit

    @property
    def peer(self) -> str:
        """See ServerStream."""
        return self._context.peer()

    def admit(self) -> IAccess:
        """See ServerStream."""
        return EVERYTHING if self._admit is None else self._admit(self._context)

    async def write(self, data: bytes) -> None:
        """See Stream."""
        try:
            await self._context.write(data)
        except BROKEN as error:
            raise StreamBroken from error

    async def read(self) -> bytes | None:
        """See Stream."""
        try:
            data = await self._context.read()
        except BROKEN as error:
            raise StreamBroken from error
        return None if data is grpc.aio.EOF else data

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
