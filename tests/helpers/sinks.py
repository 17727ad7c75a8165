"""A sink's epochs without Spark: staged and published at one worker, or at all workers of the tasks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from helpers.topology import TOPOLOGY
from tuplewire import TaskGroup
from tuplewire.connection.control_client import ControlClient
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.staging import AttemptStager, Publisher
from tuplewire.wire.codec import plain_frame
from tuplewire.wire.control_pb2 import PublishRequest, StagedAttempt, StageRequest


def first_piece(
    sink: str,
    epoch: int,
    attempt: str,
    groups: Sequence[TaskGroup],
    worker_id: str = "",
    topology: str = TOPOLOGY,
) -> StageRequest:
    """Return the first piece of an attempt of partition 0."""
    return StageRequest(
        topology=topology,
        sink=sink,
        epoch=epoch,
        attempt=attempt,
        frame=plain_frame(groups),
        expected_worker_id=worker_id,
    )


def publish(
    control: ControlClient,
    sink: str,
    epoch: int,
    groups: Sequence[TaskGroup],
    worker_id: str = "",
    publisher: ControlClient | None = None,
) -> int:
    """Stage one attempt and publish it, perhaps by another client; return the number of new messages."""
    attempt = uuid.uuid4().hex
    assert not control.stage(first_piece(sink, epoch, attempt, groups, worker_id))
    named = StagedAttempt(partition=0, attempt=attempt, messages=sum(map(len, groups)), piece_count=1)
    request = PublishRequest(topology=TOPOLOGY, sink=sink, epoch=epoch, attempts=[named])
    request.expected_worker_id = worker_id
    return (publisher or control).publish(request).chosen_messages


def write(address: str, groups: Sequence[TaskGroup], timeout: float, sink: str = "s", epoch: int = 1) -> int:
    """Stage and publish one attempt as Spark's sink does; return the number of new messages."""
    options = SinkOptions(address=address, topology=TOPOLOGY, timeout=timeout)
    with AttemptStager(options, sink, epoch, 0) as stage:
        stage.add(groups)
        chosen = {peer: [staged] for peer, staged in stage.finish().items()}
    with Publisher(options, sink, epoch, chosen) as publisher:
        return publisher.publish()
