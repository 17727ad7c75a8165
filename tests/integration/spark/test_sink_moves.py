"""Spark's streaming sink writes each row once while its tasks move between real workers, without a JVM."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import eventually
from helpers.moving_workers import ELSEWHERE, TASK, Workers, three_workers
from helpers.program import in_threads
from helpers.spark_calls import begin_attempt, end_attempt
from helpers.topology import TOPOLOGY, has_ended, messages_of, numbers, queued
from helpers.traffic import client_of, take

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.spark.options import sink_options
from tuplewire.spark.writer import PartitionResult, TuplewireStreamWriter
from tuplewire.subscription import Subscription


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Run three workers that drain for at most 60 seconds; the first one owns the task."""
    with three_workers(tmp_path, drain_seconds=60) as running:
        yield running


class Driver:
    """A run of a query: makes a writer for each epoch, as Spark does."""

    def __init__(self, workers: Workers, at: str = "c") -> None:
        self._options = {"address": workers.running[at].address, "topology": TOPOLOGY, "timeout": "20"}
        self._run = uuid.uuid4().hex

    def begin(self) -> TuplewireStreamWriter:
        """Return the writer of an epoch."""
        return TuplewireStreamWriter(sink_options(self._options))

    def attempt(
        self,
        writer: TuplewireStreamWriter,
        epoch: int,
        payloads: range,
        partition: int = 0,
        tasks: tuple[int, ...] = (TASK,),
    ) -> PartitionResult:
        """Compute a partition that sends each number to each task."""
        begin_attempt(partition, epoch=epoch, run=self._run)
        rows = [(task, str(number)) for number in payloads for task in tasks]
        columns = {
            "task": pa.array([task for task, _ in rows], pa.int32()),
            "message": pa.array([message for _, message in rows]),
        }
        part = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
        end_attempt()
        return part

    def epoch(self, epoch: int, payloads: range, tasks: tuple[int, ...] = (TASK,)) -> None:
        """Compute and publish an epoch."""
        writer = self.begin()
        writer.commit([self.attempt(writer, epoch, payloads, tasks=tasks)], epoch)


def take_all(worker: Endpoint, count: int, task: int = TASK) -> list[int]:
    """Consume `count` messages, and check that the queue is then empty."""
    got = numbers(take(worker, task, count))
    assert queued(worker, task) == 0
    return got


def some(batches: Subscription, least: int) -> list[int]:
    """Consume at least `least` messages, and acknowledge all messages received."""
    got: list[int] = []
    while len(got) < least:
        got += numbers(messages_of(next(batches)))
    batches.acknowledge()
    return got


def test_a_task_moves_between_staging_and_publishing(workers: Workers) -> None:
    """A commit sends staged rows to the task's new owner, even if some attempts ran after the move."""
    driver = Driver(workers)
    writer = driver.begin()
    parts = [driver.attempt(writer, 0, range(50))]
    workers.put("b")
    parts.append(driver.attempt(writer, 0, range(50, 100), partition=1))
    assert [peer.worker_id for each in parts for peer in each.staged] == ["a", "a"]
    writer.commit(list(parts), 0)
    driver.epoch(1, range(100, 150))
    assert take_all(workers.running["b"], 150) == list(range(150))


def test_an_epoch_published_again_after_a_move(workers: Workers) -> None:
    """After a partial publication and moves, the next driver publishes only the tasks that are missing."""
    other = ELSEWHERE["b"]
    driver = Driver(workers)
    driver.epoch(0, range(10), (TASK, other))
    writer = driver.begin()
    part = driver.attempt(writer, 1, range(10, 20), tasks=(TASK, other))
    (at_a,) = ({peer: staged} for peer, staged in part.staged.items() if peer.worker_id == "a")
    writer.commit([replace(part, staged=at_a)], 1)
    workers.put("c")
    for _ in range(2):
        Driver(workers).epoch(1, range(10, 20), (TASK, other))
    workers.put("b")
    driver = Driver(workers)
    driver.epoch(1, range(10, 20), (TASK, other))
    driver.epoch(2, range(20, 30), (TASK, other))
    for task in (TASK, other):
        assert take_all(workers.running["b"], 30, task) == list(range(30))


def test_an_epoch_published_again_after_its_worker_ended_with_an_empty_queue(workers: Workers) -> None:
    """A worker reports its published epochs even if its consumer has taken all messages, and none moved."""
    Driver(workers).epoch(0, range(10))
    assert take_all(workers.running["a"], 10) == list(range(10))
    workers.put("b")
    workers.drain("a")
    workers.put("b")
    Driver(workers).epoch(0, range(10))
    assert queued(workers.running["b"], TASK) == 0


def test_a_run_continues_at_a_new_worker_while_another_one_is_away(workers: Workers) -> None:
    """A worker that has an earlier epoch of the run is enough: the driver does not wait for other workers."""
    driver = Driver(workers, "a")
    driver.epoch(0, range(10))
    assert take_all(workers.running["a"], 10) == list(range(10))
    workers.drain("b")
    workers.start("b")
    workers.put("a")
    os.kill(workers.running["c"].process_id, signal.SIGKILL)
    workers.put("b", told="ab")
    driver.epoch(1, range(10, 20))
    assert take_all(workers.running["b"], 10) == list(range(10, 20))


def test_an_epoch_published_again_after_its_worker_was_replaced(workers: Workers) -> None:
    """A worker's published epochs stay known after it is replaced: a repeated epoch adds no messages."""
    driver = Driver(workers)
    driver.epoch(0, range(10))
    driver.epoch(1, range(10, 20))
    for name, following in [("a", "b"), ("b", "c"), ("c", "a")]:
        workers.put(following)
        workers.drain(name, 2)  # messages that another worker has accepted wait for their consumer
        workers.start(name)
        workers.put(following)
    driver = Driver(workers, "a")
    driver.epoch(1, range(10, 20))
    driver.epoch(2, range(20, 30))
    assert take_all(workers.running["a"], 30) == list(range(30))


def test_a_worker_that_still_drains_is_asked(workers: Workers) -> None:
    """The next driver also queries a worker that is still draining, although it has left the assignment."""
    far = ELSEWHERE["a"]
    Driver(workers).epoch(0, range(10), (TASK, far))
    workers.put("b")
    leaving = workers.running.pop("a")
    with client_of(leaving.address) as client, client.recv([far], timeout=20) as batches:
        next(batches)  # not acknowledged yet
        with ControlClient(leaving.address) as control:
            control.drain()
        workers.put("b")
        Driver(workers).epoch(0, range(10), (TASK,))
        assert not has_ended(leaving)
        batches.acknowledge()
    eventually(lambda: has_ended(leaving), 60)
    assert take_all(workers.running["b"], 10) == list(range(10))


def test_a_task_moves_while_its_epoch_is_published(tmp_path: Path) -> None:
    """An epoch stays complete and in order while its task moves and a second driver publishes it again."""
    with ExitStack() as stack:
        workers = Workers(tmp_path, stack, drain_seconds=60, flags=["--receive-queue-messages=100"])
        workers.put("a")
        driver = Driver(workers)
        writer = driver.begin()
        parts = [
            driver.attempt(writer, 0, range(n, n + 100), partition=n // 100) for n in range(0, 1000, 100)
        ]
        stack.enter_context(in_threads(lambda: writer.commit([*parts], 0)))
        eventually(lambda: queued(workers.running["a"], TASK) >= 100, 20)
        got: list[int] = []
        with ExitStack() as reading:
            for owner in "bcab":
                workers.put(owner)
                client = reading.enter_context(client_of(workers.running[owner].address))
                with client.recv([TASK], timeout=20) as batches:
                    got += some(batches, 100)
        stack.enter_context(in_threads(partial(Driver(workers).epoch, 0, range(1000))))
        got += take_all(workers.running["b"], 1000 - len(got))
    assert got == list(range(1000))


def test_moves_back_to_back_under_a_sink(workers: Workers) -> None:
    """Epochs are published while moves overlap: each row arrives once, and in order within its epoch."""

    def move() -> None:
        for number, owner in enumerate("bcacbabcbacabc"):
            workers.put(owner, told=[name for name in "cab" if name != "abc"[number % 3]])
        workers.put("b")

    driver = Driver(workers)
    with in_threads(move):
        for epoch in range(8):
            driver.epoch(epoch, range(20 * epoch, 20 * epoch + 20))
    got = take_all(workers.running["b"], 160)
    for first in range(0, 160, 20):
        assert [each for each in got if first <= each < first + 20] == list(range(first, first + 20))
