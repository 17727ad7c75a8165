"""A sender has a share at a worker while connected, then a resumable session, and then no state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from helpers.admin import samples
from helpers.hostile import SEND, frame, hello
from helpers.topology import TOPOLOGY, collect, ledger, metric, numbered, one_worker, queued

from tuplewire import Client
from tuplewire.connection import receipts
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import FlushTimeoutError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.control_pb2 import SessionStatus
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


def sessions(worker: Endpoint) -> Sequence[SessionStatus]:
    """Return the sessions of a worker."""
    with ControlClient(worker.address) as control:
        return control.status(max_clients=10).sessions


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


async def test_a_disconnected_sender_is_not_held_up(tmp_path: Path) -> None:
    """A task blocks a sender that has used up its window, until it disconnects and after it reconnects."""
    blocking = f'tuplewire_blocking_seconds_total{{task="{TASK}",where="local"}}'
    queue_full = 'tuplewire_state_seconds_total{state="backpressured_queue"}'
    with one_worker("w", "--receive-queue-messages=1000", directory=tmp_path, tasks=[TASK]) as worker:

        def grown() -> tuple[float, float]:
            before = samples(worker.metrics_url)
            time.sleep(1)
            after = samples(worker.metrics_url)
            return after[blocking] - before.get(blocking, 0.0), after[queue_full] - before[queue_full]

        async with grpc.aio.insecure_channel(worker.address) as channel:
            call, welcome = await opened(channel, sender_id="full")
            await call.write(frame(1, (b"x",) * 1000, TASK))
            assert await acknowledged(call) == 1
            assert min(await asyncio.to_thread(grown)) > 0.5
            call.cancel()
            await asyncio.to_thread(eventually, lambda: not any(s.connected for s in sessions(worker)))
            assert await asyncio.to_thread(grown) == (0, 0)
            assert [each.exhausted_tasks for each in sessions(worker)] == [0]
            again = {"sender_id": "full", "receiver_incarnation": welcome.receiver_incarnation}
            call, _ = await opened(channel, **again)
            assert min(await asyncio.to_thread(grown)) > 0.5
            call.cancel()


async def test_a_sender_without_credit_hears_of_a_larger_share(tmp_path: Path) -> None:
    """A sender without credit gets the share of a disconnected sender, even if no message is consumed."""
    with one_worker("w", "--receive-queue-messages=1000", directory=tmp_path, tasks=range(10)) as worker:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            others = [(await opened(channel))[0] for _ in range(2)]
            with Client(worker.address, topology=TOPOLOGY) as client:
                client.send(numbered(TASK, range(1000)))
                await asyncio.to_thread(eventually, lambda: queued(worker, TASK) == 500)
                for other in others:
                    other.cancel()
                await asyncio.to_thread(client.flush, 30)
        assert queued(worker, TASK) == 1000


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


async def test_a_sender_resumes_after_its_share_has_lapsed(worker: Endpoint) -> None:
    """A sender that returns after its lease resumes at the same position, without loss or duplicates."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        call, welcome = await opened(channel, sender_id="away")
        await call.write(frame(1, (b"1", b"2"), TASK))
        assert await acknowledged(call) == 1
        call.cancel()
        await asyncio.to_thread(eventually, lambda: metric(worker, RESUMABLE) == 1)
        again = {"sender_id": "away", "receiver_incarnation": welcome.receiver_incarnation}
        call, resumed = await opened(channel, **again)
        assert resumed.receiver_incarnation == welcome.receiver_incarnation
        assert resumed.last_sequence == 1
        assert metric(worker, CONNECTED) == 1
        await call.write(frame(2, (b"3",), TASK))
        assert await acknowledged(call) == 2
        call.cancel()

    assert not metric(worker, RESUMABLE)
    with Client(worker.address, topology=TOPOLOGY).recv([TASK], timeout=30) as subscription:
        assert collect(subscription, 3) == [(None, b"1"), (None, b"2"), (None, b"3")]


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
