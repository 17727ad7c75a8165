"""The readers of Spark's source against real workers, called as each Spark calls them, without a JVM."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.spark_calls import payloads
from helpers.topology import (
    TOPOLOGY,
    Pair,
    acknowledged,
    assign,
    collect,
    numbered,
    one_worker,
    pair_of_workers,
    queued,
)
from helpers.traffic import client_of, deliver
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tuplewire import TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import SupersededError, UnreachableError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.spark.data_source_api import OldStreamReader
from tuplewire.spark.offsets import DataLossError
from tuplewire.spark.options import source_options
from tuplewire.spark.reader import RangePartition, TuplewireBatchReader, TuplewireStreamReader
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

QUEUE = 1000


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    """Run two workers with short queues for all tests of this file."""
    with pair_of_workers(f"--receive-queue-messages={QUEUE}") as pair:
        yield pair


def given(endpoint: Endpoint, tasks: str, **more: str) -> Any:
    """Return the options of a source that reads these tasks."""
    return source_options(
        {"address": endpoint.address, "topology": TOPOLOGY, "tasks": tasks, "timeout": "20", **more}
    )


@contextmanager
def stream_reader(endpoint: Endpoint, tasks: str, **more: str) -> Iterator[TuplewireStreamReader]:
    """Make a reader, as a query does, and stop it at the end."""
    reader = TuplewireStreamReader(given(endpoint, tasks, **more))
    yield reader
    reader.stop()


def large(task: int, numbers: range) -> TaskMessageBatch:
    """Return numbered messages of 12 KB; a few dozen of them fill a frame."""
    return TaskMessageBatch.from_columns(task, [b"%-12000d" % number for number in numbers])


def planned(reader: TuplewireStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the start of a new query, and the end of its first micro-batch, with all available messages."""
    start = reader.initialOffset()
    return start, reader.latestOffset(start, ReadAllAvailable())


def test_committed_only_once_spark_is_done(workers: Pair) -> None:
    """A range can be read repeatedly, and is acknowledged when Spark requests the next one."""
    task = workers.far_task()
    send_numbers(workers, task, range(100))
    with stream_reader(workers.near, str(task)) as reader:
        start = reader.initialOffset()
        middle = reader.latestOffset(start, ReadMaxRows(60))
        for _ in range(2):
            assert payloads(reader, reader.partitions(start, middle)) == list(range(60))
        assert acknowledged(workers.far, task) == 0
        end = reader.latestOffset(middle, ReadAllAvailable())
        assert acknowledged(workers.far, task) == 60
        assert payloads(reader, reader.partitions(middle, end)) == list(range(60, 100))
        reader.commit(end)
        assert queued(workers.far, task) == 0


def test_few_messages_wait_for_more(workers: Pair) -> None:
    """Few messages wait for minMessagesPerTrigger, for maxTriggerDelay, or until the queue is nearly full."""
    task = workers.far_task()
    with client_of(workers.near.address) as client:
        deliver(client, numbered(task, range(9)))
        with stream_reader(workers.near, str(task), minMessagesPerTrigger="10") as reader:
            start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
            assert reader.latestOffset(start, limit) == start
            deliver(client, numbered(task, range(9, 12)))
            end = reader.latestOffset(start, limit)
            assert payloads(reader, reader.partitions(start, end)) == list(range(12))
            deliver(client, numbered(task, range(12, 15)))
            assert reader.latestOffset(end, limit) == end
            assert reader.latestOffset(end, ReadAllAvailable()) != end  # Trigger.Once
            reader.prepareForTriggerAvailableNow()
            assert reader.latestOffset(end, limit) != end
        delayed = {"minMessagesPerTrigger": "1000000", "maxTriggerDelay": "1s"}
        with stream_reader(workers.near, str(task), **delayed) as reader:
            start = reader.initialOffset()
            assert reader.latestOffset(start, limit) == start
            eventually(lambda: reader.latestOffset(start, limit) != start, timeout=20)
            delayed["maxTriggerDelay"] = "1h"
        with stream_reader(workers.near, str(task), **delayed) as reader:
            assert reader.latestOffset(start, limit) == start
            client.send(numbered(task, range(15, QUEUE - 5)))
            eventually(lambda: reader.latestOffset(start, limit) != start, timeout=20)


@pytest.mark.parametrize("between", ["attempt", "consumer"])
def test_a_read_goes_on_after_another(workers: Pair, task: int, between: str) -> None:
    """A read continues after another attempt or consumer has read the same, even one before the commit."""
    with client_of(workers.near.address) as client, stream_reader(workers.near, str(task)) as reader:
        deliver(client, large(task, range(900)))
        start, end = planned(reader)
        (partition,) = reader.partitions(start, end)
        first = reader.read(partition)
        got = [next(first)]
        if between == "attempt":
            assert payloads(reader, [partition]) == list(range(900))
        else:
            with client.recv([task], timeout=20) as batches:
                next(batches)  # not acknowledged
        got += first
        assert [each for batch in got for each in batch.column("sequence").to_pylist()] == list(range(1, 901))
        assert acknowledged(workers.near, task) == 0
        with client.recv([task], timeout=20) as batches:
            next(batches)  # not acknowledged
        deliver(client, numbered(task, range(900, 910)))
        reader.commit(end)
        assert acknowledged(workers.near, task) == 900
        later = reader.latestOffset(end, ReadAllAvailable())
        assert payloads(reader, reader.partitions(end, later)) == list(range(900, 910))
        reader.commit(later)


def test_a_read_goes_on_through_broken_connections(workers: Pair, task: int) -> None:
    """A read survives cut connections, and fails if the worker is unreachable for longer than the timeout."""
    with (
        FaultProxy(workers.near.address) as proxy,
        client_of(workers.near.address) as client,
        stream_reader(workers.near, str(task)) as reader,
    ):
        deliver(client, large(task, range(900)))
        start, end = planned(reader)
        (partition,) = reader.partitions(start, end)
        assert isinstance(partition, RangePartition)
        got = []
        cuts = 0
        wanted = partition.message_range
        through = dataclasses.replace(wanted.end, address=proxy.address)
        partition = RangePartition(dataclasses.replace(wanted, end=through))
        proxy.throttle(2e6)  # otherwise, all bytes may have arrived before the first cut
        for number, batch in enumerate(reader.read(partition)):
            got += batch.column("sequence").to_pylist()
            # After a cut, batches that have already arrived are returned before a new connection is made.
            if number == 0 or (number >= 3 and cuts < 2):
                cuts += proxy.cut() > 0
                proxy.throttle(2e6 if cuts < 2 else math.inf)
        assert cuts == 2
        assert got == list(range(1, 901))
        reader.commit(end)
        proxy.cut()
        proxy.close()
        gone = given(workers.near, str(task), timeout="0.3")
        with pytest.raises(UnreachableError):
            list(TuplewireBatchReader(gone).read(partition))


def test_never_takes_a_task_from_a_program(workers: Pair, task: int) -> None:
    """A task that a client consumes is not read; the error names the client."""
    with client_of(workers.near.address, client_id="mine") as client:
        deliver(client, numbered(task, range(3)))
        with client.recv([task], timeout=20) as batches:
            next(batches)
            reader = TuplewireBatchReader(given(workers.near, str(task), timeout="0.3"))
            with pytest.raises(SupersededError, match="mine"):
                payloads(reader, reader.partitions())
            batches.acknowledge()


def test_partition_of_nothing(workers: Pair) -> None:
    """A read of the empty partition that Spark plans for no messages returns nothing."""
    reader = TuplewireBatchReader(given(workers.near, str(workers.near_task())))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_tasks_that_are_assigned_later_are_read(tmp_path: Path) -> None:
    """A task is read from its first message on. Without an owner, it fails if failOnDataLoss is true."""
    flags = ("--drain-seconds=0.1",)
    with one_worker("a", *flags, directory=tmp_path) as a, one_worker("b", *flags, directory=tmp_path) as b:
        at_a, at_b = ("a", a.address), ("b", b.address)

        def assigned(version: int, tasks: dict[tuple[str, str], list[int]]) -> None:
            assign((a, b), version, tasks)

        assigned(1, {at_a: [1, 10], at_b: []})
        with client_of(a.address) as client, stream_reader(a, "1,10-", failOnDataLoss="true") as reader:
            client.send(numbered(1, range(3)))
            deliver(client, numbered(10, range(2)))
            start, end = planned(reader)
            assert payloads(reader, reader.partitions(start, end)) == [0, 1, 2, 0, 1]
            assigned(2, {at_a: [1, 2, 10], at_b: [11]})
            for task in (2, 11):
                client.send(numbered(task, range(4)))
            client.flush()
            start = end
            eventually(lambda: reader.latestOffset(start, ReadAllAvailable()) != start, 20)
            end = reader.latestOffset(start, ReadAllAvailable())
            assert payloads(reader, reader.partitions(start, end)) == [0, 1, 2, 3], "task 2 is in no range"
            assigned(3, {at_a: [1, 2, 10], at_b: []})
            with pytest.raises(DataLossError, match="task 11 is no longer assigned"):
                eventually(lambda: reader.latestOffset(end, ReadAllAvailable()) != end, 5)
        with stream_reader(a, "*", failOnDataLoss="false") as reader:
            assert set(reader.latestOffset(end, ReadAllAvailable())["tasks"]) == {"1", "2", "10"}


def test_tasks_are_read_although_none_is_assigned_at_the_start(tmp_path: Path) -> None:
    """A query of a range without assigned tasks reads its tasks once they are assigned."""
    with one_worker("a", "--drain-seconds=0.1", directory=tmp_path) as a, stream_reader(a, "10-") as reader:
        assign(a, 1, {("a", a.address): [1]})
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assign(a, 2, {("a", a.address): [1, 10]})
        with client_of(a.address) as client:
            deliver(client, numbered(10, range(3)))
            eventually(lambda: reader.latestOffset(start, ReadAllAvailable()) != start, 20)
            end = reader.latestOffset(start, ReadAllAvailable())
            assert payloads(reader, reader.partitions(start, end)) == [0, 1, 2]
            reader.commit(end)


def test_a_first_batch_is_repeated_after_later_messages(workers: Pair, task: int) -> None:
    """With startingOffsets=latest, a repeated first micro-batch has its messages, not only later ones."""
    send_numbers(workers, task, range(5))
    with stream_reader(workers.near, str(task), startingOffsets="latest") as reader:
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        send_numbers(workers, task, range(5, 8))
        end = reader.latestOffset(start, ReadAllAvailable())
    send_numbers(workers, task, range(8, 10))
    with stream_reader(workers.near, str(task), startingOffsets="latest") as reader:
        repeated = reader.initialOffset()
        assert repeated != start
        assert payloads(reader, reader.partitions(repeated, end)) == [5, 6, 7]
        later = reader.latestOffset(end, ReadAllAvailable())
        assert payloads(reader, reader.partitions(end, later)) == [8, 9]
        reader.commit(later)


def test_a_worker_that_is_away_for_a_moment_ends_no_query(
    workers: Pair, task: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a worker does not answer between two requests, the query polls again, also with availableNow."""
    send_numbers(workers, task, range(3))
    poll = ControlClient.poll
    failures = iter([UnreachableError("away")])

    def poll_with_failure(client: ControlClient, request: pb.PollRequest) -> pb.PollResponse:
        if request.tasks[0].entries_to_sequence and (failure := next(failures, None)) is not None:
            raise failure
        return poll(client, request)

    monkeypatch.setattr(ControlClient, "poll", poll_with_failure)
    with stream_reader(workers.near, str(task)) as reader:
        reader.prepareForTriggerAvailableNow()
        start, end = planned(reader)
        assert next(failures, None) is None
        assert payloads(reader, reader.partitions(start, end)) == [0, 1, 2]
        reader.commit(end)


class Maker:
    """Makes the reader of a task's messages; can be pickled."""

    def __init__(self, address: str, task: int, **more: str) -> None:
        self.options = {"address": address, "topology": TOPOLOGY, "tasks": str(task), "timeout": "20", **more}

    def __call__(self) -> TuplewireStreamReader:
        return TuplewireStreamReader(source_options(self.options))


@contextmanager
def earlier_query(workers: Pair, task: int, **more: str) -> Iterator[OldStreamReader]:
    """Make a reader, as each start of a query does, and stop it at the end."""
    reader = OldStreamReader(Maker(workers.near.address, task, **more))
    yield reader
    reader.stop()


def read_planned(reader: OldStreamReader, start: Any, end: Any) -> list[int]:
    """Plan a micro-batch and read it with a new, unpickled reader, as Spark's tasks do."""
    partitions = reader.partitions(start, end)
    other = OldStreamReader(reader._create_reader)
    copy = pickle.loads(pickle.dumps(other))  # noqa: S301 - pickled by this test
    return payloads(copy, partitions)


def send_numbers(workers: Pair, task: int, numbers: range) -> None:
    """Send numbered messages."""
    with client_of(workers.near.address) as client:
        deliver(client, numbered(task, numbers))


def first_batch(workers: Pair, task: int, *, committed: bool = True) -> Any:
    """Run a query with one micro-batch, and send more messages; return the end of the micro-batch."""
    send_numbers(workers, task, range(10))
    with earlier_query(workers, task) as reader:
        first = reader.latestOffset()
        assert read_planned(reader, reader.initialOffset(), first) == list(range(10))
        if committed:
            reader.commit(first)
    send_numbers(workers, task, range(10, 20))
    return first


def test_goes_on_where_the_last_batch_has_ended(workers: Pair) -> None:
    """A reader resumes at the end of the last batch, although Spark does not pass the start offset."""
    task = workers.far_task()
    send_numbers(workers, task, range(10))
    with earlier_query(workers, task) as reader:
        first = reader.latestOffset()
        assert read_planned(reader, reader.initialOffset(), first) == list(range(10))
        assert acknowledged(workers.far, task) == 0
        send_numbers(workers, task, range(10, 20))
        second = reader.latestOffset()
        assert acknowledged(workers.far, task) == 10
    # The earlier run logged the second batch, but did not run it.
    with earlier_query(workers, task) as reader:
        assert read_planned(reader, second, second) == []
        assert read_planned(reader, first, second) == list(range(10, 20))
        third = reader.latestOffset()
        assert third["tasks"][str(task)]["sequence"] == second["tasks"][str(task)]["sequence"]
        assert read_planned(reader, second, third) == []
        assert acknowledged(workers.far, task) == 20


def test_a_first_batch_is_repeated_by_an_earlier_spark(workers: Pair, task: int) -> None:
    """With startingOffsets=latest, a new initial offset discards no messages of the repeated micro-batch."""
    send_numbers(workers, task, range(5))
    with earlier_query(workers, task, startingOffsets="latest") as reader:
        reader.latestOffset()
        send_numbers(workers, task, range(5, 8))
        end = reader.latestOffset()
    send_numbers(workers, task, range(8, 10))
    with earlier_query(workers, task, startingOffsets="latest") as reader:
        assert read_planned(reader, reader.initialOffset(), end) == [5, 6, 7]
        later = reader.latestOffset()
        assert read_planned(reader, end, later) == [8, 9]
        reader.commit(later)


@pytest.mark.parametrize("committed", [True, False], ids=["ended", "killed"])
def test_available_now_asks_before_it_tells(workers: Pair, task: int, *, committed: bool) -> None:
    """With availableNow, Spark requests the end offset before it passes the end of the last run."""
    first = first_batch(workers, task, committed=committed)
    with earlier_query(workers, task) as reader:
        second = reader.latestOffset()
        assert read_planned(reader, first, first) == []
        assert read_planned(reader, first, second) == list(range(10, 20))
        reader.commit(second)
    with earlier_query(workers, task) as reader:
        third = reader.latestOffset()
        assert third["tasks"][str(task)]["sequence"] == second["tasks"][str(task)]["sequence"]
        assert read_planned(reader, second, third) == []


def test_available_now_with_latest_acknowledges_only_what_was_read(workers: Pair, task: int) -> None:
    """A restarted query reads the messages since its last run, although Spark first requests an end."""
    latest = {"startingOffsets": "latest"}
    send_numbers(workers, task, range(5))
    with earlier_query(workers, task, **latest) as reader:
        first = reader.latestOffset()
        assert read_planned(reader, reader.initialOffset(), first) == [], "they are before the query"
    send_numbers(workers, task, range(5, 8))
    for numbers in (range(5, 8), range(8, 20)):
        before = acknowledged(workers.near, task)
        with earlier_query(workers, task, **latest) as reader:
            second = reader.latestOffset()
            assert acknowledged(workers.near, task) == before, "no micro-batch has the rest"
            assert read_planned(reader, first, first) == []
            for _ in range(2):
                assert read_planned(reader, first, second) == list(numbers)
            assert acknowledged(workers.near, task) == numbers.start
        send_numbers(workers, task, range(numbers.stop, 20))
        first = second


def test_available_now_with_latest_repeats_its_first_batch(workers: Pair, task: int) -> None:
    """If the first micro-batch was not committed, a restarted query reads it, and then the later messages."""
    send_numbers(workers, task, range(5))
    with earlier_query(workers, task, startingOffsets="latest") as reader:
        reader.initialOffset()
        send_numbers(workers, task, range(5, 8))
        first = reader.latestOffset()
    send_numbers(workers, task, range(8, 10))
    with earlier_query(workers, task, startingOffsets="latest") as reader:
        second = reader.latestOffset()
        assert read_planned(reader, first, first) == []
        assert read_planned(reader, reader.initialOffset(), first) == [5, 6, 7]
        assert acknowledged(workers.near, task) == 0
        assert read_planned(reader, first, second) == [8, 9]
        reader.commit(second)
        assert queued(workers.near, task) == 0


def test_loss_is_noticed_after_a_restart(workers: Pair, task: int) -> None:
    """If another client consumes messages between two runs, the next run reports them as lost."""
    first = first_batch(workers, task)
    with client_of(workers.near.address) as client, client.recv([task], timeout=20) as batches:
        collect(batches, 10)
        batches.acknowledge()
    send_numbers(workers, task, range(20, 30))
    with earlier_query(workers, task) as reader:
        second = reader.latestOffset()
        assert read_planned(reader, first, first) == []
        with pytest.raises(DataLossError, match="another program consumes"):
            reader.partitions(first, second)


def test_errors_wait_for_sparks_first_question(workers: Pair) -> None:
    """The constructor does not raise, because Spark would hide the error behind its own."""
    maker = Maker(workers.near.address, workers.near_task())
    maker.options["colour"] = "red"
    reader = OldStreamReader(maker)
    with pytest.raises(Exception, match="unknown option 'colour'"):
        reader.latestOffset()
    reader.stop()
