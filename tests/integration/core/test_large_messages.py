"""Messages over the limits of some peers: consumers get them, or one clear error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from helpers.hostile import RECV, answer_of, subscribe
from helpers.topology import TOPOLOGY, collect, numbered, one_worker, queued

from tuplewire import Client
from tuplewire.errors import PayloadTooLargeError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import messaging_pb2 as pb

MIB = 1 << 20
SIZE = 6 * MIB


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Endpoint]:
    """Run a worker with eight times the default limits, and fill task 1 beyond gRPC's default."""
    flags = ("--max-message-bytes=8MiB", "--max-frame-bytes=8MiB", "--receive-queue-bytes=64MiB")
    with one_worker("w", *flags, directory=tmp_path, tasks=range(1, 5)) as endpoint:
        with Client(endpoint.address, topology=TOPOLOGY, max_message_bytes=8 * MIB) as client:
            client.send(1, b"x" * SIZE)
            client.send(2, b"small")
            for _ in range(12):
                client.send(3, b"y" * MIB)
        yield endpoint


def test_a_consumer_with_defaults_gets_a_large_message(worker: Endpoint) -> None:
    """The worker's limits apply to its responses; other tasks of the subscription are delivered, too."""
    with (
        Client(worker.address, topology=TOPOLOGY) as client,
        client.recv([1, 2, 3], timeout=20) as subscription,
    ):
        sizes = sorted(len(payload) for _, payload in collect(subscription, 14))
    assert sizes == [5, *[MIB] * 12, SIZE]


@contextlib.contextmanager
def _foreign(worker: Endpoint, task: int, **fields: Any) -> Iterator[Any]:
    """Subscribe as a client in any language does, with gRPC's default limits."""
    cursor = pb.TaskCursor(task=task, credit=100, credit_bytes=64 * MIB)
    first = subscribe(tasks=[cursor], **fields)
    with grpc.insecure_channel(worker.address) as channel:
        stub: Any = channel.stream_stream(RECV)
        call = stub(chain([first], iter(Event().wait, True)), timeout=20)
        yield call
        call.cancel()


def _frames(call: Any) -> Iterator[pb.Frame]:
    for data in call:
        response = pb.RecvResponse.FromString(data)
        if response.HasField("frame"):
            yield response.frame


def test_frames_fit_a_client_with_grpcs_defaults(worker: Endpoint) -> None:
    """With twelve queued messages of 1 MiB, no response exceeds the 4 MiB that the client accepts."""
    got = 0
    with _foreign(worker, 3) as call:
        for frame in _frames(call):
            assert frame.ByteSize() <= 4 * MIB
            got += sum(len(group.lengths) for group in frame.groups)
            if got == 12:
                break


def test_frames_fit_what_a_client_says(worker: Endpoint) -> None:
    """Responses also fit a limit that is little more than one message."""
    with _foreign(worker, 3, max_response_bytes=MIB + 1000) as call:
        frames = _frames(call)
        assert [sum(len(group.lengths) for group in next(frames).groups) for _ in range(12)] == [1] * 12


def test_a_message_that_fits_no_response_is_named(worker: Endpoint) -> None:
    """The stream ends once, with the reason; the message remains for a consumer with a larger limit."""
    with _foreign(worker, 1) as call:
        with contextlib.suppress(grpc.RpcError):
            list(_frames(call))
        answer = answer_of(call, [])
    assert answer.error == "MESSAGE_TOO_LARGE"
    assert f"{SIZE} bytes waits in task 1" in answer.details
    assert queued(worker, 1) == 1


def test_a_worker_with_smaller_limits_than_its_consumer(tmp_path: Path) -> None:
    """The consumer gets all messages; its request over the worker's limit fails without a retry."""
    flags = ("--max-message-bytes=64KiB", "--max-frame-bytes=64KiB")
    with (
        one_worker("w", *flags, directory=tmp_path, tasks=[1]) as endpoint,
        Client(endpoint.address, topology=TOPOLOGY) as client,
        client.recv([1], timeout=20) as subscription,
    ):
        client.send(numbered(1, range(1000)))
        collect(subscription, 1000)
        too_many = client.recv(range(100_000))
        with pytest.raises(PayloadTooLargeError, match="name fewer tasks"):
            next(too_many)
