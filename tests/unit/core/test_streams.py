"""Streams over gRPC and in memory: they release their resources, and deliver all that has arrived."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from helpers.hostile import hello
from helpers.topology import TOPOLOGY

from tuplewire.connection.channels import ChannelFactory
from tuplewire.connection.grpc_channel import ERROR_KEY, grpc_stream_opener
from tuplewire.connection.memory_stream import MemoryStream
from tuplewire.connection.stream import StreamBroken, StreamOpener
from tuplewire.errors import DrainingError, TuplewireError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import encode_frame
from tuplewire_service.messaging import send_service
from tuplewire_service.messaging.base import AcceptedPeers, ConnectionStatus
from tuplewire_service.messaging.grpc.grpc_transport import GrpcContext
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.reception import Reception
from tuplewire_service.messaging.send_service import SendService
from tuplewire_service.messaging.server_stream import PendingHandshakes, ServerStream
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.testing.harness import Recorder


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


@pytest.mark.parametrize("reads", [False, True])
async def test_a_failed_write_loses_nothing_that_has_arrived(*, reads: bool) -> None:
    """After a failed write, the last messages and the reason can be read; unread ones keep no call open."""

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
                if not reads:
                    continue
                assert [await stream.read() for _ in range(10)] == [b"%d" % each for each in range(10)]
                with pytest.raises(StreamBroken):
                    await stream.read()
                assert isinstance(await stream.end(), DrainingError)


class SlowPeer(ServerStream):
    """A stream to a peer that reads nothing before `reads` is set, and the error that ends it."""

    peer = "test:1"

    def __init__(self, *requests: bytes) -> None:
        self.requests = list(requests)
        self.reads = asyncio.Event()
        self.error: TuplewireError | None = None

    async def read(self) -> bytes | None:
        if not self.requests:
            await asyncio.Event().wait()
        return self.requests.pop(0)

    async def write(self, data: bytes) -> None:
        del data
        await self.reads.wait()

    async def refuse(self, error: TuplewireError) -> NoReturn:
        self.error = error
        raise StreamBroken


async def test_a_drain_refuses_messages_of_a_sender_that_has_not_read_its_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a drain has excluded a sender, no message of it arrives, even if it was still connecting."""
    monkeypatch.setattr(send_service, "_STREAM_CLOSE_SECONDS", 0.01)
    recorder = Recorder()
    reception = Reception(lambda: None)
    reception.register(recorder)
    service = SendService(TOPOLOGY, TransportSettings(), PendingHandshakes(), Counter(), reception)
    service.receiver_ready.set()
    stream = SlowPeer(hello(), encode_frame(1, [[TaskGroup.of(1, [b"x"]).numbered(1, 0)]]))
    serving = asyncio.create_task(service.serve(stream))
    while not service._streams:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await service.set_accepted_peers(AcceptedPeers.WORKERS)
    stream.reads.set()
    await asyncio.wait([serving], timeout=5)
    assert recorder.received() == []
    assert isinstance(stream.error, DrainingError)
    assert isinstance(serving.exception(), StreamBroken)


def test_connections_of_several_threads_are_all_closed() -> None:
    """A connection is closed with its context, even if another thread connects at the same time."""
    context, closed = LocalContext(), set[object]()

    class Connection:
        on_status: Callable[[], object] | None = None

        @property
        def status(self) -> ConnectionStatus:
            on_status, self.on_status = self.on_status, None
            if on_status is not None:
                on_status()
            return ConnectionStatus.READY

        def close(self) -> None:
            closed.add(self)

    connections: list[Any] = [Connection() for _ in range(3)]
    context._register(connections[0])
    other = threading.Thread(target=context._register, args=(connections[1],))

    def register_other() -> None:
        other.start()
        other.join(0.1)

    connections[0].on_status = register_other
    context._register(connections[2])
    other.join()
    context.term()
    assert closed == set(connections)


async def test_others_have_their_turn_between_two_messages() -> None:
    """A reader with many messages does not block the event loop."""
    near, far = MemoryStream(), MemoryStream()
    near.connect(far)
    for letter in (b"a", b"b", b"c"):
        await near.write(letter)
    seen: list[bytes | None] = []

    async def other() -> None:
        for _ in range(3):
            seen.append(None)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(3):
        seen.append(await far.read())  # noqa: PERF401 - in the order of the turns
    await task
    assert seen == [None, b"a", None, b"b", None, b"c"]


def test_a_server_refuses_foreign_streams() -> None:
    """A server without a source of messages does not serve Recv, and Send accepts only its own requests."""
    context = GrpcContext()
    address = f"127.0.0.1:{context.bind('topology', 0).port}"

    async def ended(method: str, *requests: bytes) -> TuplewireError:
        open_stream = grpc_stream_opener(address, SessionSettings(), ChannelFactory(Credentials()))
        async with open_stream(method) as stream:
            with contextlib.suppress(StreamBroken):
                for request in requests:
                    await stream.write(request)
                await stream.read()
            return await stream.end()

    try:
        assert "UNIMPLEMENTED: Recv is not served here" in str(asyncio.run(ended("Recv")))
        assert "1 bytes are not a SendRequest" in str(asyncio.run(ended("Send", b"\xff")))
    finally:
        context.term()
