"""A topology in several workers with acker tasks: tuple outcomes, timeouts, errors and termination."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from helpers.hosted import hosted
from helpers.logged import logged

from tuplewire import Client, TaskGroup
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_service.testing import eventually
from tuplewire_topology import BasicBolt, BasicOutputCollector, Bolt, Spout, Topology, TopologyBuilder, Tuple
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.coordination.coordinator import Termination
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.timer import SimulatedTimer
from tuplewire_topology.serial.serializer import TupleSerializer

SECONDS = 60.0
COUNT = 3000
HERE, THERE = (1, 3, 5), (2, 4, 6)
"""The tasks of the two workers: half has tasks 1 and 2, numbers 3, sum 4, and the ackers 5 and 6."""

LINKS = ("local", "grpc", "zmq", "clients")


class Fates:
    """The outcomes that a spout received and the numbers that a bolt saw; copies are this object."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.failed: list[int] = []
        self.seen: Counter[int] = Counter()

    def __deepcopy__(self, memo: object) -> Fates:
        return self


class Numbers(Spout):
    """Emits numbers, and emits a failed number again."""

    outputs = ("number",)

    def __init__(self, fates: Fates, count: int = COUNT) -> None:
        self.fates = fates
        self.todo = deque(range(count))

    def next_tuple(self) -> None:
        number = self.todo.popleft()
        self.collector.emit([number], message_id=number)

    @property
    def exhausted(self) -> bool:
        return not self.todo

    def ack(self, message_id: Any) -> None:
        self.fates.acked.append(message_id)

    def fail(self, message_id: Any) -> None:
        self.fates.failed.append(message_id)
        self.todo.append(message_id)


class Twice(BasicBolt):
    """Emits each number two times."""

    outputs = ("number",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        for _ in range(2):
            collector.emit([message["number"]])


class Look(BasicBolt):
    """Records every number, and calls an optional function with it."""

    def __init__(self, fates: Fates, then: Callable[[int], None] | None = None) -> None:
        self.fates = fates
        self.then = then

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        number = message["number"]
        self.fates.seen[number] += 1
        if self.then is not None:
            self.then(number)


def topology_of(fates: Fates, look: BasicBolt | Bolt, count: int = COUNT, ackers: int = 2) -> Topology:
    """Return a topology: numbers, two tasks that emit each twice, a bolt for all of them, and ackers."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(fates, count))
    builder.set_bolt("half", Twice(), 2).shuffle_grouping("numbers")
    builder.set_bolt("sum", look).shuffle_grouping("half")
    return with_ackers(builder.create_topology(), ackers)


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
def test_a_spout_hears_what_becomes_of_its_tuples(link: str) -> None:
    """Both workers process every number, its spout is notified once, and then the topology finishes."""
    fates = Fates()
    with several(topology_of(fates, Look(fates)), link) as workers:
        ask_until_over(workers)
        assert fates.seen == Counter(dict.fromkeys(range(COUNT), 2))
        assert sorted(fates.acked) == list(range(COUNT))
        assert not fates.failed
        assert workers[0].spouts[0].pending == 0
        assert [each.counts.errors for worker in workers for each in worker.statistics()] == [0] * 6


def test_max_spout_pending_between_processes() -> None:
    """A spout's pending tuples stay within the limit, even if their acks come from another process."""
    fates, held = Fates(), threading.Event()

    def hold(_: int) -> None:
        held.wait(SECONDS)

    conf = {"topology.max.spout.pending": 10}
    with several(topology_of(fates, Look(fates, hold)), "grpc", conf) as workers:
        (spout,) = workers[0].spouts
        eventually(lambda: fates.seen, SECONDS)
        eventually(lambda: spout.pending == 10, SECONDS)
        assert spout.tally.snapshot().emitted == 10
        held.set()
        ask_until_over(workers)
    assert sorted(fates.acked) == list(range(COUNT))


def test_what_takes_too_long_has_failed() -> None:
    """A tuple that is not acked fails after the timeout, and later acks of it are ignored."""
    fates, timer = Fates(), SimulatedTimer()
    forgotten: list[tuple[Bolt, Tuple]] = []

    class Forget(Bolt):
        def execute(self, message: Tuple) -> None:
            if fates.failed:
                self.collector.ack(message)
            else:
                forgotten.append((self, message))

    conf = {"topology.message.timeout.secs": 30}
    with several(topology_of(fates, Forget(), 10), "grpc", conf, timer=timer) as workers:
        eventually(lambda: len(forgotten) == 20, SECONDS)
        (spout,) = workers[0].spouts
        eventually(lambda: spout.pending == 10, SECONDS)
        for seconds in (29, 1, 15):
            assert not any(worker.report().at_rest for worker in workers[:1])
            timer.advance(seconds)
            eventually(lambda: not spout._rotation_due, SECONDS)  # two due rotations count as one
        eventually(lambda: len(fates.failed) == 10, SECONDS)
        ask_until_over(workers)
    assert sorted(fates.acked) == list(range(10))


def test_nobody_follows_without_ackers() -> None:
    """Without acker tasks, a tuple counts as processed when it is emitted, and the topology finishes."""
    fates = Fates()
    with several(topology_of(fates, Look(fates), ackers=0), "grpc") as workers:
        ask_until_over(workers)
        assert fates.seen == Counter(dict.fromkeys(range(COUNT), 2))
        assert len(fates.acked) == COUNT


def test_messages_without_destination_do_not_hold_up_the_end() -> None:
    """Messages that the link drops count as taken, so that the topology finishes without their delivery."""
    fates = Fates()
    topology = topology_of(fates, Look(fates), ackers=0)
    with worker_links("local", topology, ([3], [])) as (link, other):
        worker = ExecutorWorker(topology, [3], topology_id="t", link=link)
        worker.start()
        worker.switch(active=True)
        ask_until_over([worker])
        assert worker.report().taken == COUNT
        worker.close()
        other.close(0.0)


def test_foreign_message_ids_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A tuple with a message id that no executor assigned is logged as malformed, and stops nothing."""
    fates = Fates()
    topology = topology_of(fates, Look(fates))
    foreign = Tuple([1], topology.source(1, "default"), ((1, "mine"),))
    with several(topology, "grpc") as workers:
        payload = TupleSerializer(topology).serialize(foreign)
        workers[1].transfer.receive(TaskGroup.of(4, [payload], 1), lambda: None)
        assert len(logged(caplog, "tuple.malformed")) == 1
        eventually(lambda: len(fates.acked) == COUNT, SECONDS)
