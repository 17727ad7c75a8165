"""A gRPC stream releases its resources in all cases."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from tuplewire.connection.dialling import Dialler
from tuplewire.connection.grpc_channel import dial_grpc
from tuplewire.connection.stream import StreamBroken
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings


async def test_a_stream_whose_write_has_failed_is_ended_in_grpc_too() -> None:
    """If a server ends a stream with unread messages, no call remains open on the client."""

    async def answers(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"not read"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "over")

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(answers)
    server.add_registered_method_handlers("tuplewire.v1.Messaging", {"Send": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    dial = dial_grpc(f"127.0.0.1:{port}", SessionSettings(), Dialler(Credentials()))
    for _ in range(20):
        async with dial("Send") as stream:
            with contextlib.suppress(StreamBroken):
                while True:
                    await stream.write(b"asked")
    await server.stop(None)
