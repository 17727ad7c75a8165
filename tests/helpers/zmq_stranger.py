"""A ZeroMQ socket that violates the transport's protocol, or follows it only as a test requires."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import zmq

from tuplewire_service.messaging.zmq.frames import Allowance, Frame, FrameKind, decode, encode

PLENTY = Allowance(2**40, 2**50)
_ANSWER_MILLIS = 20_000


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


class StandIn:
    """A ROUTER in place of a worker's, with answers chosen by the test. It runs in a thread until closed."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.heard: list[Frame] = []
        self._answers: list[list[bytes]] = []
        self._peer = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def put(self, kind: FrameKind, body: bytes = b"", allowance: Allowance = PLENTY) -> None:
        """Send a frame to the sender of the last received frame."""
        self._answers.append(encode(kind, allowance, body))

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(20):
                self._peer, *parts = self._socket.recv_multipart()
                self.heard.append(decode(parts))
            while self._answers and self._peer:
                self._socket.send_multipart([self._peer, *self._answers.pop(0)])

    def close(self) -> None:
        """Close it and its connections. Further calls do nothing."""
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)
