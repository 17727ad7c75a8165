"""A sender has a share at a worker while connected, then a resumable session, and then no state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from helpers.admin import samples
from helpers.hostile import SEND, frame, hello
from helpers.topology import TOPOLOGY, collect, ledger, metric, one_worker, queued

from tuplewire import Client
from tuplewire.connection import receipts
from tuplewire.errors import FlushTimeoutError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.testing import eventually

TASK = 1
CONNECTED = 'tuplewire_sessions{state="connected"}'
RESUMABLE = 'tuplewire_sessions{state="resumable"}'
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


async def die(channel: grpc.aio.Channel, messages: int = 0) -> None:
    """Open a session, send some messages, and end without a goodbye."""
    call, _ = await opened(channel)
    if messages:
        await call.write(frame(1, (b"x",) * messages, TASK))
        assert await acknowledged(call) == 1
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


async def test_what_the_dead_have_left_is_taken_off_the_queue(tmp_path: Path) -> None:
    """Messages of a disconnected sender use queue space of other senders until they are consumed."""
    with one_worker("w", "--receive-queue-messages=1000", directory=tmp_path, tasks=range(10)) as worker:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            await die(channel, messages=1000)
        eventually(lambda: metric(worker, RESUMABLE) == 1)
        assert queued(worker, TASK) == 1000
        with Client(worker.address, topology=TOPOLOGY) as client:
            client.send(TASK, b"late")
            with pytest.raises(FlushTimeoutError):
                client.flush(0.5)
            with client.recv([TASK], timeout=30) as subscription:
                assert len(collect(subscription, 1001)) == 1001
            client.flush(30)


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


def flows_of(client: Client) -> int:
    """Return the number of flows that a client's sender has an account for."""
    assert client._sender is not None
    return len(client._sender.buffer.window._flows)


def test_accounts_come_and_go(worker: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides forget tasks without traffic, and start to count again when messages follow."""
    monkeypatch.setattr(receipts, "CLOSE_UNUSED_SECONDS", 0.2)
    with Client(worker.address, topology=TOPOLOGY) as client, client.recv(range(1000)) as subscription:

        def forgotten() -> bool:
            return not flows_of(client)

        for run in range(3):
            for task in range(1000):
                client.send(task, b"%d" % run)
            received = 0
            while received < 1000:
                received += len(next(subscription))
            subscription.acknowledge()
            client.flush(30)
            eventually(forgotten)
        assert client.ledger().acknowledged == 3000
