"""Spark's readers while their tasks move between real workers, without a JVM."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.moving_workers import TASK, Workers, three_workers
from helpers.program import in_threads
from helpers.spark_calls import payloads
from helpers.topology import TOPOLOGY, has_ended, ledger, numbered, queued, status
from helpers.traffic import client_of, deliver
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tuplewire import TaskMessageBatch
from tuplewire.spark.data_source_api import OldStreamReader
from tuplewire.spark.offsets import DataLossError
from tuplewire.spark.options import source_options
from tuplewire.spark.range_reader import RangeReader
from tuplewire.spark.reader import TuplewireStreamReader


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Run three workers for one test, which may end them."""
    with three_workers(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Run three workers for all tests that read every message and end no worker."""
    with three_workers(tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture
def shared(running: Workers) -> Workers:
    """Return the shared workers, with the task at the first and all earlier messages acknowledged."""
    running.put("a")
    with query(running) as last:

        def settled() -> bool:
            last.step()  # acknowledges the messages read before
            moving = any(status(each).moving_task_count for each in running.running.values())
            return not moving and queued(running.running["a"], TASK) == 0

        eventually(settled, 30)
    return running


def given(workers: Workers, name: str = "c", **more: str) -> Any:
    """Return the options of a source."""
    address = workers.running[name].address
    where = {"address": address, "topology": TOPOLOGY, "tasks": str(TASK), "timeout": "20"}
    return source_options({**where, **more})


class Query:
    """A query as Spark runs it: each offset is logged before its micro-batch is read."""

    def __init__(self, options: Any) -> None:
        self.reader = TuplewireStreamReader(options)
        self.at = self.reader.initialOffset()
        self.got: list[int] = []

    def plan(self, most: int | None = None) -> dict[str, Any]:
        """Return the end offset of the next micro-batch."""
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        return self.reader.latestOffset(self.at, limit)

    def read(self, end: dict[str, Any]) -> None:
        """Read a micro-batch, and commit it."""
        self.got += payloads(self.reader, self.reader.partitions(self.at, end))
        self.reader.commit(end)
        self.at = end

    def step(self) -> None:
        """Run one micro-batch."""
        end = self.plan()
        if end != self.at:
            self.read(end)

    def read_all(self, count: int) -> None:
        """Run micro-batches until `count` messages have arrived, each once."""

        def has_all() -> bool:
            self.step()
            assert len(set(self.got)) == len(self.got), "some came twice"
            return len(self.got) >= count

        eventually(has_all, 30, f"{count} messages have come")
        assert sorted(self.got) == list(range(count))


@contextmanager
def query(workers: Workers, name: str = "c", **more: str) -> Iterator[Query]:
    """Run a query, and stop it."""
    running = Query(given(workers, name, **more))
    yield running
    running.reader.stop()


def send(workers: Workers, numbers: range, name: str = "b") -> None:
    """Send messages through a worker."""
    with client_of(workers.running[name].address) as client:
        deliver(client, numbered(TASK, numbers))


def read_under_load(workers: Workers, count: int, move: Callable[[], None]) -> None:
    """Read `count` messages from each of two clients while the task moves: each once, in order per client."""

    def produce(name: str, offset: int) -> None:
        with client_of(workers.running[name].address) as client:
            for number in range(offset, offset + count, 20):
                deliver(client, numbered(TASK, range(number, number + 20)))

    producers = partial(produce, "a", 0), partial(produce, "b", count)
    with query(workers) as running:
        with in_threads(*producers, move):
            running.read_all(2 * count)
        for low in (0, count):
            mine = [number for number in running.got if low <= number < low + count]
            assert mine == sorted(mine)


def test_moves_of_which_the_asked_worker_has_not_heard(
    shared: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that left a queue are not reported as lost: the reader waits until it learns the new owner."""
    looked = threading.Event()
    has_moved = RangeReader._has_moved

    def noted(*arguments: Any) -> bool | None:
        found = has_moved(*arguments)
        looked.set()
        return found

    monkeypatch.setattr(RangeReader, "_has_moved", noted)
    with query(shared, "c") as running:
        send(shared, range(100), "a")
        end = running.plan()
        shared.put("b", told=["a", "b"])
        eventually(lambda: ledger(shared.running["a"]).pending == 0, 20, "all has left the queue")
        shared.put("a", told=["a"])
        with in_threads(partial(running.read, end)):
            assert looked.wait(20)
            shared.put("a")
        assert running.got == list(range(100))


def test_a_task_moves_between_planning_and_reading(shared: Workers) -> None:
    """A planned micro-batch has exactly the planned messages, also when it is read again."""
    with query(shared) as running:
        send(shared, range(60), "a")
        send(shared, range(60, 100), "c")
        end = running.plan(80)
        shared.put("b")
        send(shared, range(100, 150), "b")
        for _ in range(2):
            got = payloads(running.reader, running.reader.partitions(running.at, end))
            assert sorted(got) == list(range(80))
        with query(shared, "b") as again:  # another driver
            again.at = running.at
            shared.put("a")
            again.read(end)
            assert sorted(again.got) == list(range(80))
            again.read_all(150)


def test_a_query_with_available_now_ends_after_a_move(shared: Workers) -> None:
    """After a move, the query ends with the messages that the new owner had then, and reads no later ones."""
    with query(shared) as running:
        send(shared, range(10), "a")
        running.reader.prepareForTriggerAvailableNow()
        shared.put("b")
        running.step()
        send(shared, range(10, 20))
        running.step()
        assert running.plan() == running.at
        assert sorted(running.got) == list(range(10))
    with query(shared) as later:
        later.at, later.got = running.at, running.got
        later.read_all(20)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_task_moves_between_two_runs_of_an_earlier_spark(shared: Workers, starting: str) -> None:
    """With availableNow, Spark 4.0 and 4.1 request the end first, and the last batch is not acknowledged."""
    options = {"startingOffsets": starting, "failOnDataLoss": "true"}

    @contextmanager
    def run() -> Iterator[OldStreamReader]:
        reader = OldStreamReader(lambda: TuplewireStreamReader(given(shared, **options)))
        yield reader
        reader.stop()

    with run() as reader:
        start = reader.initialOffset()
        send(shared, range(10), "a")
        first = reader.latestOffset()
        assert payloads(reader, reader.partitions(start, first)) == list(range(10))
    shared.put("b")
    send(shared, range(10, 20), "b")
    with run() as reader:
        second = reader.latestOffset()
        assert payloads(reader, reader.partitions(first, first)) == []
        assert payloads(reader, reader.partitions(first, second)) == list(range(10, 20))
    shared.put("c")
    with run() as reader:
        third = reader.latestOffset()
        assert payloads(reader, reader.partitions(second, third)) == []
        reader.commit(third)
        assert queued(shared.running["c"], TASK) == 0


def test_a_task_moves_while_it_is_read(shared: Workers) -> None:
    """A reader continues at the new owner within a micro-batch; the previous owner does not wait for it."""
    count = 600
    with client_of(shared.running["a"].address) as client:
        deliver(
            client, TaskMessageBatch.from_columns(TASK, [b"%-12000d" % number for number in range(count)])
        )
    with query(shared) as running:
        before = running.at["tasks"][str(TASK)]["sequence"]
        end = running.plan()
        (partition,) = running.reader.partitions(running.at, end)
        batches = running.reader.read(partition)
        first = next(batches)
        shared.put("b")
        rows = [first, *batches]
        assert [int(each) for batch in rows for each in batch.column("message").to_pylist()] == list(
            range(count)
        )
        assert [each for batch in rows for each in batch.column("sequence").to_pylist()] == list(
            range(before + 1, before + count + 1)
        )
        running.at = end
        running.got = list(range(count))
        send(shared, range(count, count + 100))
        running.read_all(count + 100)


def test_workers_are_replaced_one_by_one(workers: Workers) -> None:
    """A query reads each message once during a rolling restart, also of the worker in its options."""
    with query(workers, "a") as running:
        sent = 0
        for name, other in [("a", "b"), ("b", "c"), ("c", "a")] * 2:
            send(workers, range(sent, sent + 50), name)
            running.step()
            send(workers, range(sent + 50, sent + 100), other)
            sent += 100
            workers.replace(name, other)
        running.read_all(sent)


def test_a_query_that_was_away_while_all_workers_were_replaced(workers: Workers) -> None:
    """A planned micro-batch and later messages can still be read after every worker was replaced."""
    with query(workers) as running:
        send(workers, range(50), "a")
        send(workers, range(50, 100), "b")
        running.read(running.plan(30))
        end = running.plan(40)
    for name, other in [("a", "b"), ("b", "c"), ("c", "a")]:
        workers.replace(name, other)
    with query(workers) as again:
        again.at, again.got = running.at, running.got
        again.read(end)
        assert sorted(again.got) == list(range(70))
        again.read_all(100)


def test_a_worker_that_dies_takes_its_messages(workers: Workers) -> None:
    """After a worker dies, the query reports the lost messages, or skips them with failOnDataLoss=false."""
    with query(workers, timeout="5") as running:
        send(workers, range(100), "a")
        end = running.plan(60)
        running.reader.latestOffset(end, ReadMaxRows(1))
        os.kill(workers.running.pop("a").process_id, signal.SIGKILL)
        workers.start("a")
        workers.put("b")
        with query(workers, timeout="1") as strict:
            strict.at = running.at
            with pytest.raises(
                DataLossError, match=r"messages 1 to 60 of task 1 are gone.*lost with the worker"
            ):
                strict.read(end)
        with pytest.raises(DataLossError, match=r"40 unread messages.*failOnDataLoss=false"):
            running.reader.latestOffset(end, ReadAllAvailable())
        with query(workers, failOnDataLoss="false", timeout="1") as brave:
            brave.at = running.at
            brave.read(end)
            send(workers, range(5))
            brave.read_all(5)


def test_messages_that_nobody_takes_over_are_named(workers: Workers) -> None:
    """If no worker takes over a drained worker's messages, the query reports their number as lost."""
    with query(workers) as running:
        send(workers, range(100), "a")
        running.read(running.plan(60))
        running.reader.latestOffset(running.at, ReadMaxRows(1))
        endpoint = workers.running["a"]
        workers.drain("a")
        workers.start("a")
        workers.put("b")
        with pytest.raises(DataLossError, match=r"no worker could accept its messages: up to 40 messages"):
            running.plan()
        assert has_ended(endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_moves_back_to_back_under_load(shared: Workers, seed: int) -> None:
    """Each message arrives once, in order, in forty moves that some workers miss, and no batch times out."""
    chance, names = random.Random(seed), list(shared.running)

    def move() -> None:
        for _ in range(40):
            told = [each for each in chance.sample(names, len(names)) if chance.random() < 0.7]
            shared.put(chance.choice(names), told=told)
        shared.put("a")

    read_under_load(shared, 1500, move)
