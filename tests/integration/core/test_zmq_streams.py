"""Streams of the ZeroMQ transport: slow readers and lost connections."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from helpers import eventually
from helpers.program import Program
from helpers.zmq_ends import PLENTY, StandIn, Stranger, bound, sender, works

from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.stream import StreamBroken
from tuplewire_service.messaging.server_stream import ServerStream
from tuplewire_service.messaging.zmq.zmq_sockets import Sockets, ZmqSettings
from tuplewire_service.messaging.zmq.zmq_stream import NOTHING, Allowance, FrameKind, zmq_stream_opener
from tuplewire_service.testing.harness import HOST, TOPOLOGY, Recorder, is_settled

LAST_MESSAGES = 5
CLOSED_TIMES = 50


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """Yield a stand-in that listens in place of a worker."""
    made = StandIn()
    yield made
    made.close()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Yield the sockets that streams are opened with."""
    made = Sockets(ZmqSettings())
    yield made
    messaging_loop().run(made.suspend(), timeout=20)


# --- slow readers ------------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_holds_nobody_up(recorder: Recorder) -> None:
    """A peer that does not read delays its own messages, but not the messages of other clients."""
    with bound(recorder, zmq__hwm=4) as (context, bound_server), Stranger(bound_server.port) as stranger:
        stranger.put(FrameKind.OPEN, b"Send", NOTHING)
        eventually(lambda: len(bound_server._streams) == 1)
        client = context.connect(TOPOLOGY, HOST, bound_server.port)
        for number in range(200):
            client.send(1, b"%d" % number)
        eventually(is_settled(client))
        assert recorder.payloads(1) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("hwm", [0, 1])
def test_any_high_water_mark_will_do(recorder: Recorder, hwm: int) -> None:
    """The smallest window makes a stream slow; with Storm's 0, only the bytes are limited."""
    with bound(recorder, zmq__hwm=hwm) as (context, bound_server):
        client = context.connect(TOPOLOGY, HOST, bound_server.port)
        for number in range(500):
            client.send(1, b"%d" % number)
        eventually(is_settled(client), timeout=30)
        assert recorder.payloads(1) == [b"%d" % number for number in range(500)]
        assert client.statistics().reconnects == 0


def test_a_write_waits_for_room(stand_in: StandIn, sockets: Sockets) -> None:
    """A message beyond the other side's window is not written until the window grows."""
    thread = messaging_loop()
    open_stream = zmq_stream_opener(
        sockets, f"tcp://127.0.0.1:{stand_in.port}", "stand-in", Allowance(1000, 1000)
    )

    def data() -> list[bytes]:
        return [frame.body for frame in stand_in.heard if frame.kind is FrameKind.DATA]

    async def write() -> None:
        async with open_stream("Send") as stream:
            for number in range(5):
                await stream.write(b"%d" % number)
            await stream.done_writing()
            assert await stream.read() == b"answer"
            assert await stream.read() is None

    stand_in.put(FrameKind.GRANT, b"", Allowance(9, 2))
    writing = thread.submit(write())
    eventually(lambda: data() == [b"0", b"1"])
    stand_in.put(FrameKind.GRANT, b"", Allowance(9, 3))
    eventually(lambda: data() == [b"0", b"1", b"2"])
    stand_in.put(FrameKind.GRANT, b"", PLENTY)
    eventually(lambda: len(data()) == 5 and stand_in.heard[-1].kind is FrameKind.DONE)
    stand_in.put(FrameKind.DATA, b"answer")
    stand_in.put(FrameKind.DONE)
    writing.result(20)


# --- lost connections --------------------------------------------------------------------------------


def test_a_stream_that_was_cut_is_broken(stand_in: StandIn, sockets: Sockets) -> None:
    """Received data is read first; then reads and writes fail, and end() returns the reason."""
    thread = messaging_loop()
    open_stream = zmq_stream_opener(
        sockets, f"tcp://127.0.0.1:{stand_in.port}", "stand-in", Allowance(1000, 1000)
    )
    stand_in.put(FrameKind.GRANT)
    stand_in.put(FrameKind.DATA, b"last")

    async def use() -> str:
        async with open_stream("Send") as stream:
            await stream.write(b"x")
            assert await stream.read() == b"last"
            closing = thread.loop.run_in_executor(None, stand_in.close)
            with pytest.raises(StreamBroken):
                await stream.read()
            with pytest.raises(StreamBroken):
                await stream.write(b"y")
            await closing
            return str(await stream.end())

    assert thread.submit(use()).result(20) == "stand-in: the connection was lost"


def test_the_last_messages_of_a_server_that_closes_arrive(sockets: Sockets) -> None:
    """Messages that a server writes to a stream before it closes are read on the other side."""

    async def served(stream: ServerStream) -> None:
        while await stream.read() != b"end":
            pass
        for number in range(LAST_MESSAGES):
            await stream.write(b"%d" % number)

    async def read(endpoint: str, asked: threading.Event) -> list[bytes]:
        got: list[bytes] = []
        async with zmq_stream_opener(sockets, endpoint, endpoint, ZmqSettings().stream_window)(
            "Last"
        ) as stream:
            await stream.write(b"end")
            asked.set()
            with contextlib.suppress(StreamBroken):
                for _ in range(LAST_MESSAGES):  # not read by a server that is about to close
                    await stream.write(b"more")
            with contextlib.suppress(StreamBroken):
                while (message := await stream.read()) is not None:
                    got.append(message)
        return got

    for _ in range(CLOSED_TIMES):
        with bound(Recorder()) as (_, closing):
            closing._handlers["Last"] = served
            asked = threading.Event()
            reading = messaging_loop().submit(read(f"tcp://{HOST}:{closing.port}", asked))
            assert asked.wait(10)
            closing.close()
        assert reading.result(10) == [b"%d" % number for number in range(LAST_MESSAGES)]


def test_a_killed_client_is_forgotten(recorder: Recorder) -> None:
    """A killed client's stream ends, and the messages that arrived before are complete."""
    with bound(recorder) as (context, bound_server), Program(sender, bound_server.port) as program:
        eventually(lambda: len(recorder.seen()) > 100, timeout=30)
        os.kill(program.process_id, signal.SIGKILL)
        eventually(lambda: not bound_server._streams, timeout=10)
        numbers = [int(payload) for payload in recorder.payloads(1)]
        assert numbers == list(range(len(numbers)))
        works(context, bound_server.port, recorder)
