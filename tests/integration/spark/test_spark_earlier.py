"""The stream reader against real workers, called as by Spark 4.0 and 4.1, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.spark_calls import payloads
from helpers.topology import TOPOLOGY, Pair, acknowledged, collect, numbered
from helpers.traffic import client_of, deliver

from tuplewire.spark.data_source_api import EarlierStreamReader
from tuplewire.spark.offsets import DataLossError
from tuplewire.spark.options import source_options
from tuplewire.spark.reader import TuplewireStreamReader


class Maker:
    """Makes the reader of a task's messages; can be pickled."""

    def __init__(self, address: str, task: int) -> None:
        self.options = {"address": address, "topology": TOPOLOGY, "tasks": str(task), "timeout": "20"}

    def __call__(self) -> TuplewireStreamReader:
        return TuplewireStreamReader(source_options(self.options))


@contextmanager
def query(workers: Pair, task: int) -> Iterator[EarlierStreamReader]:
    """Make a reader, as each start of a query does, and stop it at the end."""
    reader = EarlierStreamReader(Maker(workers.near.address, task))
    yield reader
    reader.stop()


def planned(reader: EarlierStreamReader, start: Any, end: Any) -> list[int]:
    """Plan a micro-batch and read it with a new, unpickled reader, as Spark's tasks do."""
    partitions = reader.partitions(start, end)
    other = EarlierStreamReader(reader._make)
    copy = pickle.loads(pickle.dumps(other))  # noqa: S301 - pickled by this test
    return payloads(copy, partitions)


def send(workers: Pair, task: int, numbers: range) -> None:
    """Send numbered messages."""
    with client_of(workers.near.address) as client:
        deliver(client, numbered(task, numbers))


def test_goes_on_where_the_last_batch_has_ended(workers: Pair) -> None:
    """A reader resumes at the end of the last batch, although Spark does not pass the start offset."""
    task = workers.far_task()
    send(workers, task, range(10))
    with query(workers, task) as reader:
        first = reader.latestOffset()
        start = reader.initialOffset()
        assert planned(reader, start, first) == list(range(10))
        assert acknowledged(workers.far, task) == 0
        send(workers, task, range(10, 20))
        second = reader.latestOffset()
        assert acknowledged(workers.far, task) == 10
    with query(workers, task) as reader:  # the earlier run logged the second batch, but did not run it
        assert planned(reader, second, second) == []
        assert planned(reader, first, second) == list(range(10, 20))
        third = reader.latestOffset()
        assert third["tasks"][str(task)]["sequence"] == second["tasks"][str(task)]["sequence"]
        assert planned(reader, second, third) == []
        assert acknowledged(workers.far, task) == 20


def test_available_now_asks_before_it_tells(workers: Pair) -> None:
    """With availableNow, Spark requests the end offset before it passes the end of the last run."""
    task = workers.near_task()
    send(workers, task, range(10))
    with query(workers, task) as reader:
        first = reader.latestOffset()
        assert planned(reader, reader.initialOffset(), first) == list(range(10))
        reader.commit(first)
    send(workers, task, range(10, 20))
    with query(workers, task) as reader:
        second = reader.latestOffset()
        assert planned(reader, first, first) == []
        assert planned(reader, first, second) == list(range(10, 20))
        reader.commit(second)
    with query(workers, task) as reader:
        third = reader.latestOffset()
        assert third["tasks"][str(task)]["sequence"] == second["tasks"][str(task)]["sequence"]
        assert planned(reader, second, third) == []


def test_loss_is_noticed_after_a_restart(workers: Pair) -> None:
    """If another client consumes messages between two runs, the next run reports them as lost."""
    task = workers.near_task()
    send(workers, task, range(10))
    with query(workers, task) as reader:
        first = reader.latestOffset()
        assert planned(reader, reader.initialOffset(), first) == list(range(10))
        reader.commit(first)
    send(workers, task, range(10, 20))
    with client_of(workers.near.address) as client, client.recv([task], timeout=20) as batches:
        collect(batches, 10)
        batches.acknowledge()
    send(workers, task, range(20, 30))
    with query(workers, task) as reader:
        second = reader.latestOffset()
        assert planned(reader, first, first) == []
        with pytest.raises(DataLossError, match="another program consumes"):
            reader.partitions(first, second)


def test_errors_wait_for_sparks_first_question(workers: Pair) -> None:
    """The constructor does not raise, because Spark would hide the error behind its own."""
    maker = Maker(workers.near.address, workers.near_task())
    maker.options["colour"] = "red"
    reader = EarlierStreamReader(maker)
    with pytest.raises(Exception, match="unknown option 'colour'"):
        reader.latestOffset()
    reader.stop()
