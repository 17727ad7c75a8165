"""Messages over the limits of some peers, and long lists of refusals: they arrive, or one clear error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import grpc
import pytest
from helpers.hostile import OPTIONS, RECV, SEND, answer_of, frame, hello, subscribe, talk
from helpers.topology import TOPOLOGY, collect, numbered, one_worker, queued
from helpers.traffic import client_of

from tuplewire import Client, TaskGroup
from tuplewire.errors import PayloadTooLargeError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame

MIB = 1 << 20
SIZE = 6 * MIB
FLAGS = ("--max-message-bytes=8MiB", "--max-frame-bytes=8MiB", "--receive-queue-bytes=64MiB")
"""Eight times the default limits, for the worker of `endpoint`. Each test uses different tasks."""


def send(endpoint: Endpoint, task: int, size: int, count: int = 1) -> None:
    """Send messages of this size."""
    with Client(endpoint.address, topology=TOPOLOGY, max_message_bytes=8 * MIB) as client:
        for _ in range(count):
            client.send(task, bytes(size))


def test_a_consumer_with_defaults_gets_a_large_message(endpoint: Endpoint) -> None:
    """The worker's limits apply to its responses; other tasks of the subscription are delivered, too."""
    send(endpoint, 1, SIZE)
    send(endpoint, 2, 5)
    send(endpoint, 3, MIB, 12)
    with client_of(endpoint.address) as client, client.recv([1, 2, 3], timeout=20) as subscription:
        sizes = sorted(len(payload) for _, payload in collect(subscription, 14))
    assert sizes == [5, *[MIB] * 12, SIZE]


@contextlib.contextmanager
def _foreign(endpoint: Endpoint, task: int, **fields: Any) -> Iterator[Any]:
    """Subscribe as a client in any language does, with gRPC's default limits."""
    cursor = pb.TaskCursor(task=task, credit_sequence=100, credit_bytes=64 * MIB)
    first = subscribe(tasks=[cursor], **fields)
    with grpc.insecure_channel(endpoint.address) as channel:
        stub: Any = channel.stream_stream(RECV)
        call = stub(chain([first], iter(Event().wait, True)), timeout=20)
        yield call
        call.cancel()


def _frames(call: Any) -> Iterator[pb.Frame]:
    for data in call:
        response = pb.RecvResponse.FromString(data)
        if response.HasField("frame"):
            yield response.frame


@pytest.mark.parametrize(
    ("task", "stated", "limit"), [(4, {}, 4 * MIB), (5, {"max_response_bytes": MIB + 1000}, MIB + 1000)]
)
def test_frames_fit_a_client(endpoint: Endpoint, task: int, stated: dict[str, int], limit: int) -> None:
    """No response exceeds gRPC's default, or a stated limit that is little more than one message."""
    send(endpoint, task, MIB, 12)
    got = 0
    with _foreign(endpoint, task, **stated) as call:
        frames = _frames(call)
        while got < 12:
            frame = next(frames)
            assert frame.ByteSize() <= limit
            got += sum(len(group.lengths) for group in frame.groups)


def test_a_message_that_fits_no_response_is_named(endpoint: Endpoint) -> None:
    """The stream ends once, with the reason; the message remains for a consumer with a larger limit."""
    send(endpoint, 6, SIZE)
    with _foreign(endpoint, 6) as call:
        with contextlib.suppress(grpc.RpcError):
            list(_frames(call))
        answer = answer_of(call, [])
    assert answer.error == "MESSAGE_TOO_LARGE"
    assert f"{SIZE} bytes waits in task 6" in answer.details
    assert queued(endpoint, 6) == 1


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


@pytest.fixture(scope="module")
def one_task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Run a worker with task 0."""
    with one_worker("w", directory=tmp_path_factory.mktemp("acks"), tasks=[0]) as endpoint:
        yield endpoint


@pytest.fixture
def stream(one_task: Endpoint) -> Iterator[tuple[SimpleQueue[bytes | None], Any]]:
    """Open a Send stream: yield a queue for the requests, and the responses after the welcome."""
    with grpc.insecure_channel(one_task.address, options=OPTIONS) as channel:
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
        requests.put(frame(number, task=0))
    told: list[int] = []
    while not told or told[-1] < 100:
        response = next(responses)
        if response.HasField("ack"):
            told.append(response.ack.sequence)
    assert len(told) <= 50


def test_a_sender_that_waits_is_told_at_once(stream: tuple[SimpleQueue[bytes | None], Any]) -> None:
    """A frame that is followed by a probe for changes only is acknowledged before the next frame is sent."""
    requests, responses = stream
    probe = pb.SendRequest(probe=pb.Probe(changes_only=True)).SerializeToString()
    for number in range(1, 11):
        requests.put(frame(number, task=0))
        requests.put(probe)
        assert next(each.ack.sequence for each in responses if each.HasField("ack")) == number


GROUPS = 60_000


def test_the_answers_to_frames_of_many_refused_groups_arrive(one_task: Endpoint) -> None:
    """Every refused task is named, the first ones with a description, in responses below the size limit."""
    groups = [TaskGroup.of(task, [b"x"]) for task in range(1, GROUPS + 1)]
    frames = [
        encode_frame(1 + start // MAX_FRAME_GROUPS, [[each] for each in groups[start:][:MAX_FRAME_GROUPS]])
        for start in range(0, GROUPS, MAX_FRAME_GROUPS)
    ]
    answer = talk(one_task, SEND, [hello(), *frames])
    assert answer.error == ""
    acks = [pb.SendResponse.FromString(each).ack for each in answer.responses]
    refusals = [refusal for ack in acks for refusal in ack.refusals]
    assert {refusal.task for refusal in refusals} == set(range(1, GROUPS + 1))
    assert {refusal.code for refusal in refusals} == {pb.ERROR_CODE_UNKNOWN_TASK}
    assert "is not in assignment version 1" in refusals[0].detail
    assert max(map(len, answer.responses)) < 2 << 20
