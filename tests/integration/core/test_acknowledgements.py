"""A worker acknowledges frames together, or immediately on request, and splits long lists of refusals."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from helpers.hostile import OPTIONS, SEND, frame, hello, talk
from helpers.topology import one_worker
from helpers.traffic import client_of, deliver

from tuplewire import TaskGroup, TaskMessageBatch
from tuplewire.errors import RefusedMessagesError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Run a worker with task 0."""
    with one_worker("w", directory=tmp_path_factory.mktemp("acks"), tasks=[0]) as endpoint:
        yield endpoint


@pytest.fixture
def stream(worker: Endpoint) -> Iterator[tuple[SimpleQueue[bytes | None], Any]]:
    """Open a Send stream: yield a queue for the requests, and the responses after the welcome."""
    with grpc.insecure_channel(worker.address, options=OPTIONS) as channel:
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
    """A frame that is followed by a brief probe is acknowledged before the next frame is sent."""
    requests, responses = stream
    probe = pb.SendRequest(probe=pb.Probe(brief=True)).SerializeToString()
    for number in range(1, 11):
        requests.put(frame(number, task=0))
        requests.put(probe)
        assert next(each.ack.sequence for each in responses if each.HasField("ack")) == number


GROUPS = 60_000


def test_the_answers_to_frames_of_many_refused_groups_arrive(worker: Endpoint) -> None:
    """Every refused task is named, the first ones with a description, in responses below the size limit."""
    groups = [TaskGroup.of(task, [b"x"]) for task in range(1, GROUPS + 1)]
    frames = [
        encode_frame(1 + start // MAX_FRAME_GROUPS, [[each] for each in groups[start:][:MAX_FRAME_GROUPS]])
        for start in range(0, GROUPS, MAX_FRAME_GROUPS)
    ]
    answer = talk(worker, SEND, [hello(), *frames])
    assert answer.error == ""
    acks = [pb.SendResponse.FromString(each).ack for each in answer.responses]
    refusals = [refusal for ack in acks for refusal in ack.refusals]
    assert {refusal.task for refusal in refusals} == set(range(1, GROUPS + 1))
    assert {refusal.code for refusal in refusals} == {pb.ERROR_CODE_UNKNOWN_TASK}
    assert "is not in assignment version 1" in refusals[0].detail
    assert max(map(len, answer.responses)) < 2 << 20


def test_a_client_hears_of_many_refusals(worker: Endpoint) -> None:
    """flush() raises RefusedMessagesError, and the ledger counts every refused message."""
    with client_of(worker.address) as client:
        client.send(TaskMessageBatch.from_columns(range(1, GROUPS + 1), [b"x"] * GROUPS))
        with pytest.raises(RefusedMessagesError):
            client.flush(60)
        assert client.ledger().dropped["unknown_task"] == GROUPS
        deliver(client, 0, b"taken")
        assert client.ledger().balanced
