"""A gRPC stream releases its resources in all cases, and delivers everything that has arrived."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from tuplewire.connection.channels import ChannelFactory
from tuplewire.connection.grpc_channel import ERROR_KEY, grpc_stream_opener
from tuplewire.connection.stream import StreamBroken, StreamOpener
from tuplewire.errors import DrainingError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings


@asynccontextmanager
async def dialled(answers: Any) -> AsyncIterator[StreamOpener]:
    """Serve Send streams by `answers`, and dial them."""
    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(answers)
    server.add_registered_method_handlers("tuplewire.v1.Messaging", {"Send": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield grpc_stream_opener(f"127.0.0.1:{port}", SessionSettings(), ChannelFactory(Credentials()))
    await server.stop(None)


async def test_a_stream_whose_write_has_failed_is_ended_in_grpc_too() -> None:
    """If a server ends a stream with unread messages, no call remains open on the client."""

    async def answers(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"not read"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "over")

    async with dialled(answers) as open_stream:
        for _ in range(20):
            async with open_stream("Send") as stream:
                with contextlib.suppress(StreamBroken):
                    while True:
                        await stream.write(b"asked")


async def test_a_failed_write_loses_nothing_that_has_arrived() -> None:
    """The last messages and the reason can be read after a write has failed, as when a worker drains."""

    async def answers(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number
        context.set_trailing_metadata(((ERROR_KEY, "DRAINING"),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is draining")

    async with dialled(answers) as open_stream:
        for _ in range(20):
            async with open_stream("Send") as stream:
                with contextlib.suppress(StreamBroken):
                    while True:
                        await stream.write(b"asked")
                assert [await stream.read() for _ in range(10)] == [b"%d" % each for each in range(10)]
                with pytest.raises(StreamBroken):
                    await stream.read()
                assert isinstance(await stream.end(), DrainingError)
