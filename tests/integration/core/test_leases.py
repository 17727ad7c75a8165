"""A sender has a share of a queue while it is connected, then a resumable session, and then no state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from helpers.admin import samples
from helpers.hostile import SEND, frame, hello
from helpers.ports import free_port
from helpers.topology import TOPOLOGY, ledger, metric, one_worker

from tuplewire.connection.memory_stream import memory_stream_openers
from tuplewire.errors import FlushTimeoutError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.send_events import SendEvents
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging import sender_sessions
from tuplewire_service.messaging.base import ConnectionStatus
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.streamed_transport import StreamedServer
from tuplewire_service.testing import eventually
from tuplewire_service.testing.harness import Recorder

TASK = 1
CONNECTED = 'tuplewire_senders{state="connected"}'
RESUMABLE = 'tuplewire_senders{state="resumable"}'
DEAD = 200


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Endpoint]:
    """Run a worker with a thousand tasks."""
    with one_worker("w", directory=tmp_path, tasks=range(1000)) as endpoint:
        yield endpoint
        assert ledger(endpoint).balanced


async def acknowledged(call: Any) -> int:
    """Return the sequence of the next acknowledgement; other responses may arrive before it."""
    while not (response := pb.SendResponse.FromString(await call.read())).HasField("ack"):
        pass
    return int(response.ack.sequence)


async def opened(channel: grpc.aio.Channel, **changes: Any) -> tuple[Any, pb.Welcome]:
    """Open a session, and return its stream and the welcome."""
    call: Any = channel.stream_stream(SEND)()
    await call.write(hello(**changes))
    return call, pb.SendResponse.FromString(await call.read()).welcome


async def window_of_a_new_sender(channel: grpc.aio.Channel) -> int:
    """Return the number of messages to a task that a new sender may send; the sender then disconnects."""
    call, welcome = await opened(channel)
    await call.write(pb.SendRequest(goodbye=pb.Goodbye()).SerializeToString())
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass
    return int(welcome.initial_credit.messages)


async def die(channel: grpc.aio.Channel) -> None:
    """Open a session, and end without a goodbye."""
    call, _ = await opened(channel)
    call.cancel()


async def test_the_dead_take_no_share(worker: Endpoint) -> None:
    """After many senders end without a goodbye, the next sender has the whole window within seconds."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        whole = await window_of_a_new_sender(channel)
        await asyncio.gather(*(die(channel) for _ in range(DEAD)))
        await asyncio.to_thread(eventually, lambda: metric(worker, RESUMABLE) == DEAD)
        assert await window_of_a_new_sender(channel) == whole
    assert metric(worker, CONNECTED) == 0
    assert metric(worker, RESUMABLE) == DEAD


async def test_a_worker_that_is_gone_is_no_source_any_more(tmp_path: Path) -> None:
    """`resume_seconds` after a worker disconnects, its session and received counts are removed."""
    received = 'tuplewire_received_messages_total{source="peer"}'
    with one_worker("w", "--resume-seconds=1", directory=tmp_path, tasks=[TASK]) as worker:
        for messages in (3, 2):
            async with grpc.aio.insecure_channel(worker.address) as channel:
                call, _ = await opened(channel, kind=pb.PEER_KIND_WORKER, sender_id="peer/1")
                await call.write(frame(1, (b"x",) * messages, TASK))
                assert await acknowledged(call) == 1
                call.cancel()
            assert metric(worker, received) == messages
            eventually(lambda: received not in samples(worker.metrics_url))
            assert metric(worker, CONNECTED) == metric(worker, RESUMABLE) == 0


SENDERS = 50


@pytest.fixture
def context() -> Iterator[LocalContext]:
    """Yield a context of the transport."""
    context = LocalContext()
    context.prepare({})
    yield context
    context.term()


def connect(context: LocalContext, server: StreamedServer[Any]) -> Any:
    """Return a new sender that is connected to a server."""
    return context.connect(TOPOLOGY, "", server.port)


def test_nothing_is_left_of_what_has_ended(context: LocalContext) -> None:
    """Neither the registry nor a context retains closed ports and senders."""
    for _ in range(SENDERS):
        server = context.bind(TOPOLOGY, 0, Recorder())
        sender = connect(context, server)
        sender.send(1, b"x")
        sender.close()
        server.close()
    assert len(context._connections) < 5
    eventually(lambda: not memory_stream_openers, 10)


def test_a_limit_of_sessions_is_told(
    context: LocalContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flush() of a sender over the limit gives the reason; it succeeds after another sender has closed."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sender_sessions, "MAX_SESSIONS", 2)
    server = context.bind(TOPOLOGY, 0, Recorder())
    senders = [connect(context, server) for _ in range(3)]
    for sender in senders[:2]:
        sender.send(1, b"x")
        sender.sender.buffer.flush(10)
    senders[2].send(1, b"x")
    with pytest.raises(FlushTimeoutError, match="2 senders are connected already"):
        senders[2].sender.buffer.flush(0.3)
    senders[0].close()
    senders[2].sender.buffer.flush(10)


def test_nothing_is_written_after_writing_is_stopped(context: LocalContext) -> None:
    """A server that starts later receives nothing; the reclaimed messages are not marked as copies."""
    recorder, port = Recorder(), free_port()
    events = SendEvents(on_settled=lambda _: None, on_released=lambda _: None)
    client: Any = context.connect(TOPOLOGY, "", port, events=events)
    end = client.sender
    assert end.thread.call(lambda: end.buffer.offer([TaskGroup.of(1, [b"a"])], "inbound"))
    end.may_write = False
    context.bind(TOPOLOGY, port, recorder)
    eventually(lambda: client.status is ConnectionStatus.READY, timeout=20)
    left = end.thread.run(end.withdraw(0.2))
    assert [(group.payloads(), group.redelivered, inbound) for group, inbound in left] == [
        ([b"a"], False, "inbound")
    ]
    assert recorder.received() == []
