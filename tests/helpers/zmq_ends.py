"""Ends of the ZeroMQ transport for a test: contexts, processes, and sockets that break its protocol."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Self

import zmq

from helpers.program import Threads, serve
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.zmq.zmq_stream import Allowance, Frame, FrameKind, decode, encode
from tuplewire_service.messaging.zmq.zmq_transport import ZmqServerConnection
from tuplewire_service.testing.harness import HOST, TOPOLOGY, Recorder, eventually

PLENTY = Allowance(2**40, 2**50)
_ANSWER_MILLIS = 20_000


@contextlib.contextmanager
def transport(**settings: object) -> Iterator[IContext]:
    """Yield a prepared context."""
    conf = {key.replace("__", "."): value for key, value in settings.items()}
    context = TransportFactory.make_context({TRANSPORT_KEY: "zmq", **conf})
    try:
        yield context
    finally:
        context.term()


@contextlib.contextmanager
def bound(recorder: Recorder, **settings: object) -> Iterator[tuple[IContext, ZmqServerConnection]]:
    """Yield a context and one of its servers."""
    with transport(**settings) as context:
        bound_server = context.bind(TOPOLOGY, 0, recorder)
        assert isinstance(bound_server, ZmqServerConnection)
        yield context, bound_server


def works(context: IContext, port: int, recorder: Recorder) -> None:
    """Check that a new client is served."""
    client = context.connect(TOPOLOGY, HOST, port)
    before = len(recorder.received())
    client.send(1, b"still there")
    eventually(lambda: len(recorder.received()) == before + 1)
    client.close()


def server(pipe: Connection, mode: str = "distributed", directory: str | None = None) -> None:
    """Run a process with a server; it answers `port`, and the `payloads` that task 1 has received."""
    tempfile.tempdir = directory
    recorder = Recorder()
    with transport(storm__cluster__mode=mode) as context:
        port = context.bind(TOPOLOGY, 0, recorder).port
        serve(pipe, {"port": lambda: port, "payloads": lambda: recorder.payloads(1)}, [])


def sender(pipe: Connection, port: int) -> None:
    """Run a process that sends numbered messages to task 1 until it is killed."""
    client = TransportFactory.make_context({TRANSPORT_KEY: "zmq"}).connect(TOPOLOGY, HOST, port)
    threads = Threads()

    def send() -> None:
        for number in itertools.count():
            client.send(1, b"%d" % number)

    threads.start(send)
    serve(pipe, {}, threads.errors)


class Stranger:
    """A DEALER that is connected to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = self._socket.sndtimeo = _ANSWER_MILLIS
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def say(self, *parts: bytes) -> None:
        """Send arbitrary parts."""
        self._socket.send_multipart(parts)

    def put(self, kind: FrameKind, body: bytes = b"", allowance: Allowance = PLENTY) -> None:
        """Send a frame."""
        self.say(*encode(kind, allowance, body))

    def hear(self) -> Frame:
        """Return the next frame. Raises zmq.Again after a timeout."""
        return decode(self._socket.recv_multipart())

    def ending(self) -> str:
        """Read until the refusal, and return its code."""
        while (frame := self.hear()).kind is not FrameKind.REFUSED:
            pass
        return frame.body.partition(b"\0")[0].decode()
