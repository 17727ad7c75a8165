"""A topology in several workers with acker tasks: tuple outcomes, timeouts, errors and termination."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.hosted import hosted
from helpers.logged import logged
from helpers.runtimes import COUNT, Notes, Numbers, Pass, check_order, passing

from tuplewire import Client, TaskGroup
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_service.testing import eventually
from tuplewire_topology import BasicBolt, BasicOutputCollector, Bolt, Topology, Tuple
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.coordination.coordinator import Termination
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.timer import SimulatedTimer
from tuplewire_topology.serial.serializer import TupleSerializer

SECONDS = 60.0
HERE, THERE = (1, 2, 4, 7), (3, 5, 6, 8)
"""The tasks of the two workers; 7 and 8 are the ackers."""

LINKS = ("local", "grpc", "zmq", "clients")


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes of the test."""
    return Notes(tmp_path)


def topology_of(notes: Notes, bolt: Bolt | BasicBolt, count: int = COUNT, ackers: int = 2) -> Topology:
    """Return a topology with numbers, a bolt that passes them on, and ackers."""
    return with_ackers(passing(Numbers(notes, count), bolt), ackers)


def acked(notes: Notes) -> list[int]:
    """Return the acked numbers, sorted."""
    return sorted(map(int, notes.read("acked")))


@contextmanager
def worker_links(transport: str, topology: Topology, shares: Sequence[Sequence[int]]) -> Iterator[list[Link]]:
    """Yield a link to each worker of this process; a transport connects the workers."""
    with hosted(topology, *shares, transport=transport) as workers:
        yield [each.link for each in workers]


@contextmanager
def client_links(shares: Sequence[Sequence[int]]) -> Iterator[list[Link]]:
    """Yield links that are clients of worker processes, one per share; all messages are acknowledged."""
    with WorkerProcesses(len(shares), "t") as processes:
        processes.assign(dict(enumerate(shares)))
        addresses = [each.unix_address for each in processes.endpoints]
        clients = [Client(each, topology="t", ack_mode="processed") for each in addresses]
        yield [Link(each) for each in clients]
        for each in clients:
            assert (each.ledger().pending, sum(each.ledger().dropped.values())) == (0, 0)


@contextmanager
def several(
    topology: Topology, link: str, conf: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[list[ExecutorWorker]]:
    """Run a topology in two workers that reach each other only through their links."""
    shares = (HERE, THERE)
    with ExitStack() as stack:
        links = stack.enter_context(
            client_links(shares) if link == "clients" else worker_links(link, topology, shares)
        )
        workers = [
            ExecutorWorker(topology, share, topology_id="t", conf=conf, link=each, **more)
            for share, each in zip(shares, links, strict=True)
        ]
        for worker in workers:
            stack.callback(worker.close)
            worker.start()
        for worker in workers:
            worker.switch(active=True)
        yield workers


def ask_until_over(workers: Sequence[ExecutorWorker]) -> None:
    """Poll the workers until the topology has finished; raise TimeoutError if that takes too long."""
    termination = Termination(len(workers))
    deadline = time.monotonic() + SECONDS
    while not termination.over:
        for rank, worker in enumerate(workers):
            report = worker.report()
            assert report.failure is None, report.failure
            termination.take(rank, termination.wave, report)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not over: {[worker.report() for worker in workers]}")
        threading.Event().wait(0.005)


@pytest.mark.parametrize("link", LINKS)
def test_a_spout_hears_what_becomes_of_its_tuples(link: str, notes: Notes) -> None:
    """Both workers process every number, its spout is notified once, and then the topology finishes."""
    with several(topology_of(notes, Pass(notes)), link) as workers:
        ask_until_over(workers)
        check_order(notes)
        assert acked(notes) == list(range(COUNT))
        assert not notes.read("failed")
        assert workers[0].spouts[0].pending == 0
        assert [each.counts.errors for worker in workers for each in worker.statistics()] == [0] * 8


def test_max_spout_pending_between_processes(notes: Notes) -> None:
    """A spout's pending tuples stay within the limit, even if their acks come from another process."""
    held = threading.Event()

    class Hold(Pass):
        def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
            held.wait(SECONDS)
            super().execute(message, collector)

    conf = {"topology.max.spout.pending": 10}
    with several(topology_of(notes, Hold(notes)), "grpc", conf) as workers:
        (spout,) = workers[0].spouts
        eventually(lambda: spout.pending == 10, SECONDS)
        assert spout.tally.snapshot().emitted == 10
        held.set()
        ask_until_over(workers)
    assert acked(notes) == list(range(COUNT))


def test_what_takes_too_long_has_failed(notes: Notes) -> None:
    """A tuple that is not acked fails after the timeout, and later acks of it are ignored."""
    timer = SimulatedTimer()
    forgotten: list[tuple[Bolt, Tuple]] = []

    class Forget(Bolt):
        outputs = ("number",)

        def execute(self, message: Tuple) -> None:
            if notes.read("failed"):
                self.collector.ack(message)
            else:
                forgotten.append((self, message))

    conf = {"topology.message.timeout.secs": 30}
    with several(topology_of(notes, Forget(), 10), "grpc", conf, timer=timer) as workers:
        eventually(lambda: len(forgotten) == 10, SECONDS)
        (spout,) = workers[0].spouts
        eventually(lambda: spout.pending == 10, SECONDS)
        for seconds in (29, 1, 15):
            assert not any(worker.report().at_rest for worker in workers[:1])
            timer.advance(seconds)
            eventually(lambda: not spout._rotation_due, SECONDS)  # two due rotations count as one
        eventually(lambda: notes.count("failed") == 10, SECONDS)
        ask_until_over(workers)
    assert acked(notes) == list(range(10))


def test_messages_without_destination_do_not_hold_up_the_end(notes: Notes) -> None:
    """Messages to tasks without a worker count as lost and as taken, so that the topology finishes."""
    topology = topology_of(notes, Pass(notes), ackers=0)
    with worker_links("local", topology, ([1], [])) as (link, other):
        worker = ExecutorWorker(topology, [1], topology_id="t", link=link)
        worker.start()
        worker.switch(active=True)
        ask_until_over([worker])
        assert (worker.report().taken, link.lost()) == (COUNT, COUNT)
        worker.close()
        other.close(0.0)


def test_foreign_message_ids_are_refused(caplog: pytest.LogCaptureFixture, notes: Notes) -> None:
    """A tuple with a message id that no executor assigned is logged as malformed, and stops nothing."""
    topology = topology_of(notes, Pass(notes))
    foreign = Tuple([1], topology.source(2, "default"), ((1, "mine"),))
    with several(topology, "grpc") as workers:
        payload = TupleSerializer(topology).serialize(foreign)
        workers[1].transfer.receive(TaskGroup.of(5, [payload], 2), lambda: None)
        assert len(logged(caplog, "tuple.malformed")) == 1
        eventually(lambda: notes.count("acked") == COUNT, SECONDS)
