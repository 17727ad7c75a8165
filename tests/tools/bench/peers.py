"""The programs that Tuplewire is compared with: bare gRPC (frames, single messages, relays, echo), and pyzmq.

These programs are not transports: they have no sequence numbers, no resending and no tasks. They do the
minimum that any program on the same library must do, so they are an upper bound for programs that do more.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import grpc
import zmq
from agent import serve
from workload import CHECK_EVERY, MESSAGE_BYTES, WAIT_SECONDS, Frames, Look, Meter, Pace, Usage, stamp

from tuplewire.wire.messaging_pb2 import Ack, Frame, Group, SendRequest, SendResponse

T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
SERVICE = "tuplewire.bench.Peer"


class LoopThread:
    """An event loop in a separate thread, for gRPC aio; the main thread answers requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop until it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


# --- gRPC aio: server -------------------------------------------------------------------------


async def listen(handlers: dict[str, Any]) -> tuple[grpc.aio.Server, int]:
    """Serve handlers on a free port; return the server and the port."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def _split(frame: bytes) -> list[bytes]:
    return [frame[start : start + MESSAGE_BYTES] for start in range(0, len(frame), MESSAGE_BYTES)]


class GrpcServer:
    """Counts frames and acknowledges each, cumulatively, on the response stream."""

    def __init__(self) -> None:
        self.meter = Meter()

    async def frames(self, requests: AsyncIterator[bytes], _: _Context) -> AsyncIterator[bytes]:
        """Receive frames of concatenated payloads."""
        sequence = 0
        async for frame in requests:
            self.meter.add(len(frame) // MESSAGE_BYTES, len(frame), partial(_split, frame))
            sequence += 1
            yield sequence.to_bytes(8, "big")

    async def messages(
        self, requests: AsyncIterator[SendRequest], _: _Context
    ) -> AsyncIterator[SendResponse]:
        """Receive the project's own requests, of one message each."""
        sequence = 0
        async for request in requests:
            for group in request.frame.groups:
                data = group.data
                self.meter.add(len(group.lengths), len(data), partial(_split, data))
            sequence += 1
            yield SendResponse(ack=Ack(sequence=sequence))

    async def take(self, requests: AsyncIterator[bytes], _: _Context) -> bytes:
        """Receive single messages, and answer once at the end."""
        async for message in requests:
            self.meter.add(1, len(message), partial(list, (message,)))
        return b""

    @staticmethod
    async def echo(requests: AsyncIterator[bytes], _: _Context) -> AsyncIterator[bytes]:
        """Return each request."""
        async for request in requests:
            yield request

    async def start(self) -> int:
        """Listen on a free port and return it."""
        handlers = {
            "Frames": grpc.stream_stream_rpc_method_handler(self.frames),
            "Messages": grpc.stream_stream_rpc_method_handler(
                self.messages, SendRequest.FromString, SendResponse.SerializeToString
            ),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
            "Take": grpc.stream_unary_rpc_method_handler(self.take),
        }
        self._server, port = await listen(handlers)
        return port


def grpc_server() -> None:
    """Role: the receiving end of both gRPC streams, and the echo."""
    server = GrpcServer()
    port = LoopThread().run(server.start())
    serve({"port": lambda: {"port": port}, "begin": server.meter.begin, "finish": server.meter.finish})


# --- gRPC aio: relay --------------------------------------------------------------------------


def grpc_relay(port: str) -> None:
    """Role: forwards the bytes of a stream to the process at `port`, and does nothing else."""
    loop = LoopThread()

    async def start() -> tuple[grpc.aio.Server, int]:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)

        async def take(requests: AsyncIterator[bytes], _: _Context) -> bytes:
            """Write the messages to the next process; close that stream when this one ends."""
            call: Any = channel.stream_unary(f"/{SERVICE}/Take")()
            async for message in requests:
                await call.write(message)
            await call.done_writing()
            answer: bytes = await call
            return answer

        return await listen({"Take": grpc.stream_unary_rpc_method_handler(take)})

    server, listening = loop.run(start())
    serve({"port": lambda: {"port": listening}})
    loop.run(server.stop(None))


# --- gRPC aio: client -------------------------------------------------------------------------


def _one_message(payload: bytes) -> SendRequest:
    return SendRequest(frame=Frame(sequence=1, groups=[Group(task=1, lengths=[len(payload)], data=payload)]))


class GrpcClient:
    """One stream to the server, with a reader of its acknowledgements."""

    def __init__(self, port: int, *, framed: bool) -> None:
        self._port = port
        self._framed = framed
        self._usage = Usage()
        self._written = self._acknowledged = 0
        self._awaited: int | None = None
        self._settled = asyncio.Event()

    async def open(self) -> None:
        """Start the stream."""
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=OPTIONS)
        self._call: Any
        if self._framed:
            self._call = channel.stream_stream(f"/{SERVICE}/Frames")()
        else:
            self._call = channel.stream_stream(
                f"/{SERVICE}/Messages", SendRequest.SerializeToString, SendResponse.FromString
            )()
        self._channel = channel
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for ack in self._call:
            self._acknowledged = int.from_bytes(ack, "big") if self._framed else ack.ack.sequence
            if self._acknowledged == self._awaited:
                self._settled.set()

    async def load(self, frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, Any]:
        """Send frames for `seconds` seconds, or at least `messages` messages, all numbered."""
        self._usage.begin()
        frames = Frames(frame, seconds, messages)
        write = self._call.write
        for payloads in frames:
            if self._framed:
                await write(b"".join(payloads))
                self._written += 1
            else:
                for payload in payloads:
                    await write(_one_message(payload))
                self._written += len(payloads)
        return frames.told()

    async def settle(self) -> dict[str, Any]:
        """Wait until all messages are acknowledged."""
        self._awaited = self._written
        if self._acknowledged < self._written:
            await asyncio.wait_for(self._settled.wait(), WAIT_SECONDS)
        self._settled.clear()
        return {"pending": self._written - self._acknowledged, "cpu_ns": self._usage.nanoseconds()}

    async def close(self) -> None:
        """Close the stream and the channel."""
        await self._call.done_writing()
        await self._reader
        await self._channel.close()


def grpc_client(port: str, kind: str) -> None:
    """Role: the sending end of one gRPC stream; kind: `frames` or `messages`."""
    loop = LoopThread()
    client = GrpcClient(int(port), framed=kind == "frames")
    loop.run(client.open())
    serve({"load": lambda **how: loop.run(client.load(**how)), "settle": lambda: loop.run(client.settle())})
    loop.run(client.close())


def grpc_pace(port: str) -> None:
    """Role: sends at a fixed rate, and reads no answers.

    It uses the blocking stub, which had the lower latency of gRPC's two stubs: the stricter bound.
    """
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    take: Any = channel.stream_unary(f"/{SERVICE}/Take")

    def pace(rate: int, seconds: float) -> dict[str, Any]:
        schedule = Pace(rate, seconds)
        take(iter(schedule))
        return schedule.told()

    serve({"pace": pace})
    channel.close()


def grpc_echo(port: str) -> None:
    """Role: both ends of a round trip at a fixed rate, also with the blocking stub."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    echo: Any = channel.stream_stream(f"/{SERVICE}/Echo")
    latencies: list[int] = []

    def pace(rate: int, seconds: float) -> dict[str, Any]:
        schedule = Pace(rate, seconds)
        latencies[:] = [time.monotonic_ns() - stamp(answer) for answer in echo(iter(schedule))]
        return schedule.told()

    serve(
        {
            "begin": lambda look: {"extra": 0},  # noqa: ARG005 - it measures latency in any case
            "pace": pace,
            "finish": lambda expected: {  # noqa: ARG005
                "received": len(latencies),
                "latencies_ns": latencies,
                "last_ns": time.monotonic_ns(),
            },
        }
    )
    channel.close()


# --- pyzmq ------------------------------------------------------------------------------------


_END = b"end"
"""The end mark of a trial; it arrives last, since a PUSH socket with one peer preserves the order."""


_FRAMES = 100
"""High-water mark of sockets with frames: the default of 1,000 frames of 400 KB is too large for a queue."""


class ZmqPull:
    """PULL in a separate thread: one message per call, or frames of concatenated payloads."""

    def __init__(self, *, framed: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        if framed:
            self._socket.set_hwm(_FRAMES)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._usage = Usage()
        self._look: Look = "count"
        self._ended = threading.Event()
        threading.Thread(target=self._serve, args=(framed,), daemon=True).start()

    def _serve(self, framed: bool) -> None:  # noqa: FBT001 - the thread's argument
        while True:
            messages, disorder = self._frames() if framed else self._messages()
            self._result = {"received": messages, "disorder": disorder, "last_ns": time.monotonic_ns()}
            self._ended.set()

    def _messages(self) -> tuple[int, int]:
        """Receive and check one message per call until the trial ends; return the number, and disorder."""
        recv = self._socket.recv
        messages = size_bytes = disorder = 0
        message = recv()
        if self._look == "order":
            while message != _END:
                disorder += stamp(message) != messages
                messages += 1
                message = recv()
        while (length := len(message)) == MESSAGE_BYTES:
            messages += 1
            size_bytes += length
            message = recv()
        return messages, disorder

    def _frames(self) -> tuple[int, int]:
        """Receive frames; their payloads become objects only if the trial reads them."""
        recv = self._socket.recv
        messages = size_bytes = disorder = 0
        while (frame := recv()) != _END:
            if self._look == "order":
                disorder += sum(stamp(each) != number for number, each in enumerate(_split(frame), messages))
            elif self._look == "touch":
                size_bytes += sum(map(len, _split(frame)))
            messages += len(frame) // MESSAGE_BYTES
        return messages, disorder

    def begin(self, look: Look) -> dict[str, Any]:
        """Start a trial."""
        self._look = look
        self._ended.clear()
        self._usage.begin()
        return {"extra": 0}

    def finish(self, expected: int) -> dict[str, Any]:
        """Wait for the end of the trial; the caller compares `expected`."""
        if not self._ended.wait(WAIT_SECONDS):
            raise TimeoutError(f"pyzmq: {expected} messages sent, but their end has not come")
        return {**self._result, "cpu_ns": self._usage.nanoseconds()}


def zmq_pull(kind: str) -> None:
    """Role: the receiving end of pyzmq; kind: `messages` or `frames`."""
    pull = ZmqPull(framed=kind == "frames")
    serve({"port": lambda: {"port": pull.port}, "begin": pull.begin, "finish": pull.finish})


def zmq_push(port: str, kind: str) -> None:
    """Role: the sending end of pyzmq, one message per call or frames of concatenated payloads."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    if kind == "frames":
        socket.set_hwm(_FRAMES)
    socket.connect(f"tcp://127.0.0.1:{port}")
    usage = Usage()

    def load(frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, Any]:
        usage.begin()
        send = socket.send
        frames = Frames(frame if kind == "frames" else max(frame, CHECK_EVERY), seconds, messages)
        for payloads in frames:
            if kind == "frames":
                send(b"".join(payloads))
            else:
                for payload in payloads:
                    send(payload)
        send(_END)
        return frames.told()

    serve({"load": load, "settle": lambda: {"pending": 0, "cpu_ns": usage.nanoseconds()}})
    context.destroy()


ROLES: dict[str, Callable[..., None]] = {
    "grpc-server": grpc_server,
    "grpc-client": grpc_client,
    "grpc-relay": grpc_relay,
    "grpc-pace": grpc_pace,
    "grpc-echo": grpc_echo,
    "zmq-pull": zmq_pull,
    "zmq-push": zmq_push,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
