"""Tens of thousands of refused message groups: the acknowledgements are split to fit into the stream."""

from __future__ import annotations

from pathlib import Path

from helpers.hostile import SEND, hello, talk
from helpers.topology import TOPOLOGY, one_worker
from helpers.traffic import deliver

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import RefusedMessagesError
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame

GROUPS = 60_000


def test_the_answers_to_frames_of_many_refused_groups_arrive(tmp_path: Path) -> None:
    """Every refused task is named, the first ones with a description, in responses below the size limit."""
    with one_worker("w", directory=tmp_path, tasks=[0]) as worker:
        groups = [TaskGroup.of(task, [b"x"]) for task in range(1, GROUPS + 1)]
        frames = [
            encode_frame(
                1 + start // MAX_FRAME_GROUPS, [[each] for each in groups[start:][:MAX_FRAME_GROUPS]]
            )
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


def test_a_client_hears_of_many_refusals(tmp_path: Path) -> None:
    """flush() raises RefusedMessagesError, and the ledger counts every refused message."""
    with (
        one_worker("w", directory=tmp_path, tasks=[0]) as worker,
        Client(worker.address, topology=TOPOLOGY) as client,
    ):
        batch = TaskMessageBatch.from_columns(range(1, GROUPS + 1), [b"x"] * GROUPS)
        client.send(batch)
        try:
            client.flush(30)
        except RefusedMessagesError:
            assert client.ledger().dropped["unknown_task"] == GROUPS
        else:
            raise AssertionError("nothing was refused")
        deliver(client, 0, b"taken")
        assert client.ledger().balanced
