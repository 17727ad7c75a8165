"""When a worker acknowledges frames: several together, or immediately on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from helpers.hostile import OPTIONS, SEND, frame, hello
from helpers.topology import one_worker

from tuplewire.wire import messaging_pb2 as pb


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[tuple[SimpleQueue[bytes | None], Any]]:
    """Open a Send stream: yield a queue for the requests, and the responses after the welcome."""
    with (
        one_worker("w", directory=tmp_path, tasks=[1]) as worker,
        grpc.insecure_channel(worker.address, options=OPTIONS) as channel,
    ):
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        stub: Any = channel.stream_stream(SEND)
        call = stub(iter(requests.get, None), timeout=20)
        requests.put(hello())
        assert pb.SendResponse.FromString(next(call)).HasField("welcome")
        yield requests, (pb.SendResponse.FromString(response) for response in call)
        requests.put(None)


def test_frames_are_acknowledged_together(stream: tuple[SimpleQueue[bytes | None], Any]) -> None:
    """A hundred frames need at most fifty acknowledgements; the last one covers all frames."""
    requests, responses = stream
    for number in range(1, 101):
        requests.put(frame(number))
    told: list[int] = []
    while not told or told[-1] < 100:
        response = next(responses)
        if response.HasField("ack"):
            told.append(response.ack.sequence)
    assert len(told) <= 50


def test_a_sender_that_waits_is_told_at_once(stream: tuple[SimpleQueue[bytes | None], Any]) -> None:
    """A frame that is followed by a brief probe is acknowledged before the next frame is sent."""
    requests, responses = stream
    probe = pb.SendRequest(probe=pb.Probe(brief=True)).SerializeToString()
    for number in range(1, 11):
        requests.put(frame(number))
        requests.put(probe)
        assert next(each.ack.sequence for each in responses if each.HasField("ack")) == number
