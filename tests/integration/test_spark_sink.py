"""The writers of Spark's sink against a real worker, called as Spark calls them, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from helpers.topology import TOPOLOGY, Pair, collect, ledger, numbers, queued
from helpers.traffic import client_of
from pyspark import TaskContext

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    NotLocalError,
    ProtocolError,
    RefusedMessagesError,
    ResourceLimitError,
    SequenceGapError,
    StaleIncarnationError,
    UnknownTaskError,
    WrongTopologyError,
)
from tuplewire.spark.options import sink_options
from tuplewire.spark.task_workers import Publisher
from tuplewire.spark.writer import Part, TuplewireBatchWriter, TuplewireStreamWriter
from tuplewire.wire import control_pb2
from tuplewire.wire.opaque_pb2 import OpaqueFrame, OpaqueGroup
from tuplewire_service.launching.local_workers import Endpoint, LocalWorkers
from tuplewire_service.testing import eventually

SMALL_TASK = 5


@pytest.fixture(autouse=True)
def _no_task_left() -> Iterator[None]:
    """Leave no Spark task behind."""
    yield
    TaskContext._setTaskContext(None)


def attempt(partition: int, attempt_id: int) -> None:
    """Be an attempt of a Spark task."""
    context = TaskContext()
    context._partitionId, context._taskAttemptId = partition, attempt_id
    context._localProperties = {"sql.streaming.queryId": "q"}
    TaskContext._setTaskContext(context)


def rows(task: int, payloads: range) -> pa.RecordBatch:
    """Return rows as Spark hands them over."""
    columns = {
        "task": pa.array([task] * len(payloads), pa.int32()),
        "message": pa.array([str(number) for number in payloads]),
    }
    return pa.RecordBatch.from_pydict(columns)


def options(workers: Pair, **more: str) -> dict[str, str]:
    """Return options that reach a worker."""
    return {"address": workers.near.address, "topology": TOPOLOGY, "timeout": "20", **more}


def take(worker: Endpoint, task: int, count: int) -> list[int]:
    """Consume so many messages; their numbers."""
    with client_of(worker.address) as client, client.recv([task], timeout=20) as batches:
        return numbers(collect(batches, count))


def test_only_the_chosen_attempts_are_sent(workers: Pair) -> None:
    """Two attempts of a partition write at once; Spark chooses one of them, and only that one is seen."""
    task = workers.far_task()
    writer = TuplewireStreamWriter(sink_options(options(workers)))
    parts: list[Part] = []
    attempt(0, 10)
    parts.append(writer.write(iter([rows(task, range(5))])))
    attempt(0, 11)
    parts.append(writer.write(iter([rows(task, range(5))])))
    attempt(1, 12)
    parts.append(writer.write(iter([rows(task, range(5, 9)), rows(task, range(9, 10))])))
    assert [(part.partition, part.attempt, part.messages) for part in parts] == [
        (0, 10, 5),
        (0, 11, 5),
        (1, 12, 5),
    ]
    assert queued(workers.far, task) == 0
    TaskContext._setTaskContext(None)
    writer.commit([parts[2], None, parts[0]], 3)
    with client_of(workers.far.address) as client, client.recv([task], timeout=20) as batches:
        assert numbers(collect(batches, 10)) == list(range(10))


def test_atomic_write_that_fails_sends_nothing(workers: Pair) -> None:
    """What the attempts of a failed job have computed is seen by nobody."""
    task = workers.near_task()
    writer = TuplewireBatchWriter(sink_options(options(workers, atomic="true")))
    attempt(0, 20)
    part = writer.write(iter([rows(task, range(5))]))
    writer.abort([part, None])
    assert queued(workers.near, task) == 0


def test_newer_attempt_fences_the_older(workers: Pair) -> None:
    """An attempt that still runs when the next one begins is stopped; its rows may come twice until then."""
    task = workers.near_task()
    writer = TuplewireBatchWriter(sink_options(options(workers)))

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(task, range(3))
        eventually(lambda: queued(workers.near, task) == 3, 20, "the older attempt has sent a batch")
        attempt(0, 31)
        assert writer.write(iter([rows(task, range(6))])).messages == 6
        yield rows(task, range(3, 6))

    attempt(0, 30)
    with pytest.raises(StaleIncarnationError, match="has taken over"):
        writer.write(slow())
    with client_of(workers.near.address) as client, client.recv([task], timeout=20) as batches:
        assert numbers(collect(batches, 9)) == [0, 1, 2, 0, 1, 2, 3, 4, 5]


def test_refused_row_fails_the_write(workers: Pair) -> None:
    """A task that nobody has is an error of the attempt, and not a row that is missing."""
    writer = TuplewireBatchWriter(sink_options(options(workers)))
    attempt(0, 40)
    with pytest.raises(RefusedMessagesError, match="task 99999 is not in assignment version 1"):
        writer.write(iter([rows(99999, range(1))]))


def test_a_micro_batch_is_seen_once(workers: Pair) -> None:
    """A driver that comes back publishes its last micro-batch again; only what was missing of it is added."""
    near, far = workers.near_task(), workers.far_task()
    writer = TuplewireStreamWriter(sink_options(options(workers)))
    attempt(0, 50)
    part = writer.write(iter([rows(near, range(5)), rows(far, range(5))]))
    # It has died when one worker had its part.
    Publisher(workers.near.address, TOPOLOGY, 20).publish(part.sink, 7, [part.groups[0]])
    assert (queued(workers.near, near), queued(workers.far, far)) == (5, 0)
    for _ in range(2):
        writer.commit([part], 7)
        assert (queued(workers.near, near), queued(workers.far, far)) == (5, 5)
    writer.commit([part], 8)
    assert (queued(workers.near, near), queued(workers.far, far)) == (10, 10)
    take(workers.near, near, 10)
    take(workers.far, far, 10)


def test_large_micro_batches_wait_for_consumers(workers: Pair) -> None:
    """Many pieces are one micro-batch; the next waits while what is published is over the worker's bound."""
    task = SMALL_TASK
    with LocalWorkers(1, TOPOLOGY, flags=["--drain-seconds=1", "--receive-queue-bytes=4MiB"]) as local:
        local.assign({0: [task]})
        (worker,) = local.endpoints
        writer = TuplewireStreamWriter(sink_options({**options(workers), "address": worker.address}))
        impatient = sink_options({**options(workers, timeout="0.3"), "address": worker.address})
        attempt(0, 60)
        payloads = pa.array([b"%-10000d" % number for number in range(300)])
        batch = pa.RecordBatch.from_pydict({"task": pa.array([task] * 300, pa.int32()), "message": payloads})
        part = writer.write(iter([batch]))
        writer.commit([part], 0)
        assert queued(worker, task) == 300
        with pytest.raises(ResourceLimitError, match="not consumed"):
            TuplewireStreamWriter(impatient).commit([part], 1)
        assert queued(worker, task) == 300
        with Client(worker.address, topology=TOPOLOGY) as client, client.recv([task], timeout=20) as batches:
            assert numbers(collect(batches, 300)) == list(range(300))
            writer.commit([part], 1)
            assert numbers(collect(batches, 300)) == list(range(300))
        with pytest.raises(ResourceLimitError, match="raise receive-queue-bytes"):
            writer.commit([part, part], 2)
        assert ledger(worker).balanced


def test_unknown_task_publishes_nothing(workers: Pair) -> None:
    """One row for a task that nobody has, and no row of the micro-batch is seen."""
    task = workers.near_task()
    writer = TuplewireStreamWriter(sink_options(options(workers)))
    attempt(0, 70)
    part = writer.write(iter([rows(task, range(5)), rows(99_999, range(1))]))
    with pytest.raises(UnknownTaskError, match="task 99999 is not in assignment version 1"):
        writer.commit([part], 0)
    assert queued(workers.near, task) == 0


def frame(**columns: Any) -> bytes:
    """Return an encoded frame of one group."""
    return OpaqueFrame(groups=[OpaqueGroup(**columns)]).SerializeToString()


ONE = {"lengths": b"\1\0\0\0", "data": b"x"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"frame": b"\xff"}, ProtocolError),
        ({"sink": ""}, ProtocolError),
        ({"sink": "s" * 1000}, ProtocolError),
        ({"topology": "other"}, WrongTopologyError),
        ({"frame": frame(task=1, lengths=b"abc")}, ProtocolError),
        ({"frame": frame(task=1, forwarded=7, **ONE)}, ProtocolError),
        ({"frame": frame(task=1500, **ONE)}, NotLocalError),
        ({"frame": b""}, ProtocolError),
        ({"frame": frame(task=1, **ONE), "piece": 3}, SequenceGapError),
    ],
)
def test_wrong_requests_are_refused(workers: Pair, changes: dict[str, Any], error: type[Exception]) -> None:
    """A request that does not hold together is refused by name, and changes nothing."""
    request = control_pb2.PublishRequest(topology=TOPOLOGY, sink="wrong", epoch=1, last=True)
    for name, value in changes.items():
        setattr(request, name, value)
    before = ledger(workers.near)
    with ControlClient(workers.near.address) as control, pytest.raises(error):
        control._call("Publish", request)
    assert ledger(workers.near) == before
