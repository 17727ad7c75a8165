"""The programs that Tuplewire is compared with: bare gRPC (frames, single messages, relays, echo), and pyzmq.

These programs are not transports: they have no sequence numbers, no resending and no tasks. They do the
minimum that any program on the same library must do, so they are an upper bound for programs that do more.
Each function is a role of a process; see agent.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import grpc
import zmq
from agent import serve
from workload import CHECK_EVERY, MESSAGE_BYTES, WAIT_SECONDS, Look, Meter, asks, loads, paces, stamp

from tuplewire.wire.messaging_pb2 import Ack, Frame, Group, SendRequest, SendResponse

T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
_SERVICE = "tuplewire.bench.Peer"


class LoopThread:
    """An event loop in a separate thread, for gRPC aio; the main thread answers requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop until it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _split(frame: bytes) -> list[bytes]:
    return [frame[start : start + MESSAGE_BYTES] for start in range(0, len(frame), MESSAGE_BYTES)]


async def _listen(**handlers: Any) -> tuple[grpc.aio.Server, int]:
    """Serve handlers on a free port; return the server and the port."""
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def _channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)


def grpc_server() -> None:
    """Receive from all other roles of gRPC, and return echoes."""
    meter = Meter()

    async def frames(requests: AsyncIterator[bytes], _: _Context) -> AsyncIterator[bytes]:
        """Receive frames of concatenated payloads; acknowledge each, cumulatively."""
        sequence = 0
        async for frame in requests:
            meter.add(len(frame) // MESSAGE_BYTES, len(frame), partial(_split, frame))
            sequence += 1
            yield sequence.to_bytes(8, "big")

    async def messages(requests: AsyncIterator[SendRequest], _: _Context) -> AsyncIterator[SendResponse]:
        """Receive the project's own requests, of one message each; acknowledge each."""
        sequence = 0
        async for request in requests:
            for group in request.frame.groups:
                data = group.data
                meter.add(len(group.lengths), len(data), partial(_split, data))
            sequence += 1
            yield SendResponse(ack=Ack(sequence=sequence))

    async def take(requests: AsyncIterator[bytes], _: _Context) -> bytes:
        """Receive single messages, and answer once at the end."""
        async for message in requests:
            meter.add(1, len(message), partial(list, (message,)))
        return b""

    async def echo(requests: AsyncIterator[bytes], _: _Context) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def answer(request: bytes, _: _Context) -> bytes:
        return request

    loop = LoopThread()
    server, port = loop.run(
        _listen(
            Frames=grpc.stream_stream_rpc_method_handler(frames),
            Messages=grpc.stream_stream_rpc_method_handler(
                messages, SendRequest.FromString, SendResponse.SerializeToString
            ),
            Take=grpc.stream_unary_rpc_method_handler(take),
            Echo=grpc.stream_stream_rpc_method_handler(echo),
            Ask=grpc.unary_unary_rpc_method_handler(answer),
        )
    )
    serve({"port": lambda: {"port": port}, **meter.verbs})
    loop.run(server.stop(None))


def grpc_relay(port: int) -> None:
    """Forward the bytes of a stream or a call to the process at `port`, and do nothing else."""
    loop = LoopThread()

    async def start() -> tuple[grpc.aio.Server, int]:
        channel = _channel(port)
        forward: Any = channel.unary_unary(f"/{_SERVICE}/Ask")

        async def take(requests: AsyncIterator[bytes], _: _Context) -> bytes:
            """Write the messages to the next process; close that stream when this one ends."""
            call: Any = channel.stream_unary(f"/{_SERVICE}/Take")()
            async for message in requests:
                await call.write(message)
            await call.done_writing()
            return bytes(await call)

        async def answer(request: bytes, _: _Context) -> bytes:
            return bytes(await forward(request))

        return await _listen(
            Take=grpc.stream_unary_rpc_method_handler(take), Ask=grpc.unary_unary_rpc_method_handler(answer)
        )

    server, listening = loop.run(start())
    serve({"port": lambda: {"port": listening}})
    loop.run(server.stop(None))


def _one_message(payload: bytes) -> bytes:
    group = Group(task=1, lengths=[len(payload)], data=payload)
    return SendRequest(frame=Frame(sequence=1, groups=[group])).SerializeToString()


class _Stream:
    """One stream to the server, with a reader of its acknowledgements."""

    def __init__(self, port: int, *, framed: bool) -> None:
        self._framed = framed
        self._written = self._acknowledged = 0
        self._awaited: int | None = None
        self._settled = asyncio.Event()
        self._channel = _channel(port)
        method: Any = self._channel.stream_stream(f"/{_SERVICE}/{'Frames' if framed else 'Messages'}")
        self._call = method()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for ack in self._call:
            whole = int.from_bytes(ack, "big") if self._framed else SendResponse.FromString(ack).ack.sequence
            self._acknowledged = whole
            if self._acknowledged == self._awaited:
                self._settled.set()

    async def send_all(self, lists: Iterable[list[bytes]]) -> None:
        """Send each list as a frame, or as single messages."""
        write = self._call.write
        for payloads in lists:
            for request in (b"".join(payloads),) if self._framed else map(_one_message, payloads):
                await write(request)
                self._written += 1

    async def settle(self) -> dict[str, int]:
        """Wait until all messages are acknowledged."""
        self._awaited = self._written
        if self._acknowledged < self._written:
            await asyncio.wait_for(self._settled.wait(), WAIT_SECONDS)
        self._settled.clear()
        return {"pending": self._written - self._acknowledged}

    async def close(self) -> None:
        await self._call.done_writing()
        await self._reader
        await self._channel.close()


def grpc_client(port: int, framed: bool) -> None:  # noqa: FBT001 - the role's argument
    """Send frames, or single messages, over one stream."""
    loop = LoopThread()

    async def start() -> _Stream:
        return _Stream(port, framed=framed)

    stream = loop.run(start())
    load = loads(lambda lists: loop.run(stream.send_all(lists)))
    serve({"load": load, "settle": lambda: loop.run(stream.settle())})
    loop.run(stream.close())


def _stub(port: int, kind: str, method: str) -> Any:
    """Return a method of the blocking stub, which had the lower latency: the stricter bound."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
    return getattr(channel, kind)(f"/{_SERVICE}/{method}")


def grpc_pace(port: int) -> None:
    """Send at a fixed rate, and read no answers."""
    serve({"pace": paces(_stub(port, "stream_unary", "Take"))})


def grpc_echo(port: int) -> None:
    """Be both ends of a round trip at a fixed rate."""
    echo = _stub(port, "stream_stream", "Echo")
    meter = Meter()

    def send_all(payloads: Iterator[bytes]) -> None:
        for answer in echo(payloads):
            meter.add(1, len(answer), partial(list, (answer,)))

    serve({**meter.verbs, "pace": paces(send_all)})


def grpc_requester(port: int) -> None:
    """Make unary calls in a loop."""
    serve({"ask": asks(_stub(port, "unary_unary", "Ask"))})


_END = b"end"
"""The end mark of a trial; it arrives last, since a PUSH socket with one peer preserves the order."""
_FRAMES = 100
"""High-water mark of sockets with frames: the default of 1,000 frames of 400 KB is too large for a queue."""


def _socket(kind: int, *, framed: bool) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(kind)
    if framed:
        socket.set_hwm(_FRAMES)
    return socket


def zmq_pull(framed: bool) -> None:  # noqa: FBT001 - the role's argument
    """Receive one message per call, or frames of concatenated payloads, in a separate thread."""
    socket = _socket(zmq.PULL, framed=framed)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    recv = socket.recv
    look: Look = "count"
    ended = threading.Event()
    result: dict[str, int] = {}

    def messages() -> tuple[int, int]:
        """Receive and check one message per call until the trial ends; return the number, and disorder."""
        count = size_bytes = disorder = 0
        message = recv()
        if look == "order":
            while message != _END:
                disorder += stamp(message) != count
                count += 1
                message = recv()
        while (length := len(message)) == MESSAGE_BYTES:
            count += 1
            size_bytes += length
            message = recv()
        return count, disorder

    def frames() -> tuple[int, int]:
        """Receive frames; their payloads become objects only if the trial reads them."""
        count = size_bytes = disorder = 0
        while (frame := recv()) != _END:
            if look == "order":
                disorder += sum(stamp(each) != number for number, each in enumerate(_split(frame), count))
            elif look == "touch":
                size_bytes += sum(map(len, _split(frame)))
            count += len(frame) // MESSAGE_BYTES
        return count, disorder

    def receive() -> None:
        while True:
            count, disorder = frames() if framed else messages()
            result.update(received=count, disorder=disorder, last_ns=time.monotonic_ns())
            ended.set()

    def begin(**trial: Look) -> dict[str, int]:
        nonlocal look
        look = trial["look"]
        ended.clear()
        return {"extra": 0}

    def finish(expected: int) -> dict[str, int]:
        """Wait for the end of the trial; the caller compares `expected`."""
        if not ended.wait(WAIT_SECONDS):
            raise TimeoutError(f"pyzmq: {expected} messages sent, but their end has not come")
        return result

    threading.Thread(target=receive, daemon=True).start()
    serve({"port": lambda: {"port": port}, "begin": begin, "finish": finish})


def zmq_push(port: int, framed: bool) -> None:  # noqa: FBT001 - the role's argument
    """Send one message per call, or frames of concatenated payloads."""
    socket = _socket(zmq.PUSH, framed=framed)
    socket.connect(f"tcp://127.0.0.1:{port}")

    def send_all(lists: Iterable[list[bytes]]) -> None:
        send = socket.send
        for payloads in lists:
            for request in (b"".join(payloads),) if framed else payloads:
                send(request)
        send(_END)

    load = loads(send_all, 1 if framed else CHECK_EVERY)
    serve({"load": load, "settle": lambda: {"pending": 0}})
    zmq.Context.instance().destroy()
