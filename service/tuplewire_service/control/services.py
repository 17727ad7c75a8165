"""The services beside Messaging, as the transport's server takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError, RefusedError
from tuplewire_service.messaging.grpc.grpc_stream import refuse

Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[Context, str], None]
"""Raises RefusedError when the caller may not call /SERVICE/METHOD."""


class Services:
    """Gathers what the generated add_..._to_server functions would add to a server.

    Guarantee: no method is reached that `check` refuses, and a request that is no protobuf is refused as
    MALFORMED. gRPC by itself answers UNKNOWN, and logs a traceback.
    """

    def __init__(self, check: Check) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []
        self._check = check

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """Take a service's handlers."""
        self.handlers.extend(_Reading(each, self._check) for each in handlers)

    def add_registered_method_handlers(self, _service: str, _handlers: dict[str, Any]) -> None:
        """Do nothing: the generic handlers serve the same methods, also on servers without this shortcut."""


class _Reading(grpc.GenericRpcHandler):
    """Another handler's methods, for requests that are still bytes."""

    def __init__(self, inner: grpc.GenericRpcHandler, check: Check) -> None:
        self._inner = inner
        self._check = check

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See grpc.GenericRpcHandler."""
        method: Any = self._inner.service(handler_call_details)
        if method is None:
            return None
        path = str(handler_call_details.method)

        async def answer(data: bytes, context: Context) -> Any:
            return await method.unary_unary(await self._read(path, method, data, context), context)

        async def answers(data: bytes, context: Context) -> AsyncIterator[Any]:
            request = await self._read(path, method, data, context)
            async for response in method.unary_stream(request, context):
                yield response

        if method.response_streaming:
            return grpc.unary_stream_rpc_method_handler(answers, None, method.response_serializer)
        return grpc.unary_unary_rpc_method_handler(answer, None, method.response_serializer)

    async def _read(self, path: str, method: Any, data: bytes, context: Context) -> Any:
        try:
            self._check(context, path)
            return method.request_deserializer(data)
        except DecodeError as error:
            problem = MalformedError(f"{len(data)} bytes are not a request of this method: {error}")
            await refuse(context, problem)
        except RefusedError as error:
            await refuse(context, error)
