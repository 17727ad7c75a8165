"""The writers of Spark's sink against a real worker, called as Spark calls them, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from helpers.topology import TOPOLOGY, Pair, collect, numbers, pair_of_workers, queued
from helpers.traffic import client_of
from pyspark import TaskContext

from tuplewire.errors import RefusedMessagesError, StaleIncarnationError
from tuplewire.spark.client_handle import close_clients
from tuplewire.spark.options import sink_options
from tuplewire.spark.writer import Part, TuplewireBatchWriter, TuplewireStreamWriter
from tuplewire_service.testing import eventually


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    """Run two workers for all tests of this file."""
    with pair_of_workers() as pair:
        yield pair


@pytest.fixture(autouse=True)
def _no_task_left() -> Iterator[None]:
    """Leave no Spark task and no connection behind."""
    yield
    TaskContext._setTaskContext(None)
    close_clients()


def attempt(partition: int, attempt_id: int) -> None:
    """Be an attempt of a Spark task."""
    context = TaskContext()
    context._partitionId, context._taskAttemptId = partition, attempt_id
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
