"""Frequent small frames are batched; an acknowledgement or a waiting caller triggers the next frame.

The interval is an hour here, so that it never triggers a frame.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc
from helpers.stub_server import answering, welcome

from tuplewire import Client
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.pacer import BURST_FRAMES
from tuplewire.session.ack_requests import QUICK_SECONDS
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame


class Receiver:
    """Receives frames, and acknowledges them when a test requests it."""

    def __init__(self) -> None:
        self.frames: SimpleQueue[int] = SimpleQueue()
        """The number of messages in each frame."""
        self._responses: SimpleQueue[bytes | None] = SimpleQueue()
        self._taken = 0

    def answer(self, requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer a Send stream."""
        next(requests)
        yield welcome()
        threading.Thread(target=self._take, args=(requests,), daemon=True).start()
        yield from iter(self._responses.get, None)

    def _take(self, requests: Iterator[bytes]) -> None:
        for request in requests:
            frame = decode(pb.SendRequest, request)
            if isinstance(frame, OpaqueFrame):
                self._taken += 1
                self.frames.put(sum(map(len, groups_of(frame))))
        self.end()

    def end(self) -> None:
        """End the stream."""
        self._responses.put(None)

    def acknowledge(self) -> None:
        """Acknowledge all received frames."""
        ack = pb.Ack(sequence=self._taken)
        self._responses.put(pb.SendResponse(ack=ack).SerializeToString())


def let_loop_turn() -> None:
    """Let the client's event loop finish its pending work, including the write of a frame."""
    for _ in range(10):
        messaging_loop().call(lambda: None)


def test_what_follows_a_burst_is_gathered() -> None:
    """Messages after a burst share a frame, which is sent at the next acknowledgement or flush."""
    handler = Receiver()
    with (
        answering(handler.answer) as address,
        Client(address, topology="test", linger_seconds=3600.0, flush_seconds=0.1) as client,
    ):
        for _ in range(BURST_FRAMES):
            client.send(1, b"x")
            assert handler.frames.get(timeout=20) == 1
            time.sleep(QUICK_SECONDS)  # faster frames wait for an acknowledgement anyway
        for _ in range(5):
            client.send(1, b"x")
            let_loop_turn()
        handler.acknowledge()
        assert handler.frames.get(timeout=20) == 5
        for _ in range(7):
            client.send(1, b"x")
            let_loop_turn()
        with ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(client.flush, 20)
            assert handler.frames.get(timeout=20) == 7
            handler.acknowledge()
            flushed.result()
        assert client.ledger().acknowledged == BURST_FRAMES + 12
