"""The services beside Messaging, as the transport's server takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError
from tuplewire_service.messaging.grpc.refuse import refuse

Context = grpc.aio.ServicerContext[Any, Any]


class Services:
    """Gathers what the generated add_..._to_server functions would add to a server.

    Guarantee: a request that is no protobuf is refused as MALFORMED. gRPC by itself answers UNKNOWN, and logs
    a traceback.
    """

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """Take a service's handlers."""
        self.handlers.extend(map(_Reading, handlers))

    def add_registered_method_handlers(self, _service: str, _handlers: dict[str, Any]) -> None:
        """Do nothing: the generic handlers serve the same methods, also on servers without this shortcut."""


class _Reading(grpc.GenericRpcHandler):
    """Another handler's methods, for requests that are still bytes."""

    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See grpc.GenericRpcHandler."""
        method: Any = self._inner.service(handler_call_details)
        if method is None:
            return None

        async def answer(data: bytes, context: Context) -> Any:
            return await method.unary_unary(await _read(method, data, context), context)

        async def answers(data: bytes, context: Context) -> AsyncIterator[Any]:
            async for response in method.unary_stream(await _read(method, data, context), context):
                yield response

        if method.response_streaming:
            return grpc.unary_stream_rpc_method_handler(answers, None, method.response_serializer)
        return grpc.unary_unary_rpc_method_handler(answer, None, method.response_serializer)


async def _read(method: Any, data: bytes, context: Context) -> Any:
    try:
        return method.request_deserializer(data)
    except DecodeError as error:
        await refuse(context, MalformedError(f"{len(data)} bytes are not a request of this method: {error}"))
