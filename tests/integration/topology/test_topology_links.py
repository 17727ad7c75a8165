"""Executors in several workers: their messages, the outcomes of tuples, timeouts, errors and the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from helpers.executors import wait_idle
from helpers.hosted import hosted
from helpers.logged import logged
from helpers.runtimes import COUNT, Notes, Numbers, Pass, check_order, passing
from helpers.topology import workers_with
from helpers.words import EXPECTED, LINES, Lines, Split

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import RefusedMessagesError, TuplewireError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_service.testing import eventually
from tuplewire_topology import BasicBolt, BasicOutputCollector, Bolt, Topology, TopologyBuilder, Tuple
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.coordination.control_channel import ControlChannel, ControlKind, ControlMessage
from tuplewire_topology.coordination.coordinator import TerminationDetector
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.timer import SimulatedTimer
from tuplewire_topology.serial.serializer import TupleSerializer

SECONDS = 60.0


class Count(BasicBolt):
    """Counts words in a counter that all copies share."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def __deepcopy__(self, memo: object) -> Count:
        return self

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        self.counts[message["word"]] += 1


def word_count(counts: Counter[str]) -> Topology:
    """Return the topology: count has task 1, lines task 2, split tasks 3 and 4."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(LINES))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(counts)).fields_grouping("split", "word")
    return builder.create_topology()


HERE, THERE = (2, 3), (1, 4)


def test_words_are_counted_over_a_transport() -> None:
    """Two workers count the same as a Counter, and report the bytes by source and destination."""
    counts: Counter[str] = Counter()
    topology = word_count(counts)
    conf = {"topology.serialized.message.size.metrics": True}
    with hosted(topology, HERE, THERE, transport="grpc") as hosts, ExitStack() as stack:
        here, there = workers = [
            ExecutorGroup(topology, tasks, topology_id="t", link=each.link, conf=conf)
            for tasks, each in zip((HERE, THERE), hosts, strict=True)
        ]
        for worker in reversed(workers):
            stack.callback(worker.close)
            worker.start()
        for worker in workers:
            worker.set_active(active=True)
        assert wait_idle(here, SECONDS)
        eventually(lambda: counts == EXPECTED, SECONDS)
        assert here.spouts[0].tally.snapshot().acked == len(LINES)
        sizes = dict(there.transfer._received_bytes)
        told = {each.component: each.received_bytes for each in there.statistics()}
    assert sizes.keys() == {(2, 4), (3, 1)}
    assert sum(sum(each.values()) for each in told.values()) == sum(sizes.values())
    serialize = TupleSerializer(topology).serialize
    source = topology.source(2, "default")
    # Tasks 3 and 4 get the lines in turn, starting at the spout's own place in the ring.
    sent = [Tuple([line], source, ((2, number),)) for number, line in enumerate(LINES)]
    half = [sum(len(serialize(message)) for message in sent[start::2]) for start in (0, 1)]
    assert sizes[2, 4] in half


def test_foreign_and_malformed_messages(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are not a tuple are dropped and logged; messages to an unknown task are refused."""
    counts: Counter[str] = Counter()
    topology = word_count(counts)
    good = TupleSerializer(topology).serialize(Tuple(["word"], topology.source(3, "default")))
    with (
        hosted(topology, [1], transport="grpc") as (here,),
        Client(here.peer.address, topology="t") as client,
    ):
        worker = ExecutorGroup(topology, [1], topology_id="t", link=here.link)
        # Sent before the executors exist: the messages wait for them.
        client.send(TaskMessageBatch.from_groups([TaskGroup.of(1, [good, b"\x00"], 3)]))
        client.flush(SECONDS)
        worker.start()
        groups = [TaskGroup.of(77, [good], 3), TaskGroup.of(1, [good], 3)]
        client.send(TaskMessageBatch.from_groups(groups))
        eventually(lambda: counts["word"] == 2, SECONDS)
        with pytest.raises(RefusedMessagesError, match="task 77"):
            client.flush(SECONDS)
        assert len(logged(caplog, "tuple.malformed")) == 1
        assert sum(client.ledger().dropped.values()) == 1
        worker.close()


def test_a_client_link_tells_what_was_refused() -> None:
    """Messages that the worker refuses raise an error in close()."""
    counts: Counter[str] = Counter()
    with workers_with([2], topology="t", drain_seconds=0.1) as processes:
        client = Client(processes.endpoints[0].unix_address, topology="t")
        worker = ExecutorGroup(word_count(counts), [2], topology_id="t", link=Link(client))
        worker.start()
        worker.set_active(active=True)
        assert wait_idle(worker, SECONDS)
        with pytest.raises(RefusedMessagesError, match="task 3"):
            worker.close()


def test_a_lost_subscription_fails_the_worker() -> None:
    """If another client takes over the executors' task, their worker fails instead of waiting forever."""
    counts: Counter[str] = Counter()
    with workers_with([1], topology="t", drain_seconds=0.1) as processes:
        address = processes.endpoints[0].unix_address
        topology = word_count(counts)
        worker = ExecutorGroup(topology, [1], topology_id="t", link=Link(Client(address, topology="t")))
        worker.start()
        with Client(address, topology="t") as other:
            word = Tuple(["word"], topology.source(3, "default"))
            other.send(1, TupleSerializer(topology).serialize(word))
            eventually(lambda: counts["word"], SECONDS, "the subscription is in force")
            with other.recv([1]):
                eventually(lambda: worker.failure, SECONDS)
        assert "taken task 1 over" in str(worker.failure)
        worker.close()


def test_a_tuple_for_several_tasks_is_serialized_once() -> None:
    """A tuple for several tasks of another worker is serialized once."""
    counts: Counter[str] = Counter()
    builder = TopologyBuilder()

    class Words(Lines):
        outputs = ("word",)

    builder.set_spout("words", Words(LINES))
    builder.set_bolt("count", Count(counts), 3).all_grouping("words")
    topology = builder.create_topology()
    counted = patch.object(TupleSerializer, "serialize", autospec=True, side_effect=TupleSerializer.serialize)
    with counted as serialize, hosted(topology, [4], [1, 2, 3]) as (first, second):
        spout = ExecutorGroup(topology, [4], link=first.link, topology_id="t")
        bolts = ExecutorGroup(topology, [1, 2, 3], link=second.link, topology_id="t")
        for worker in (bolts, spout):
            worker.start()
        spout.set_active(active=True)
        eventually(lambda: sum(counts.values()) == 3 * len(LINES), SECONDS)
        assert serialize.call_count == len(LINES)
        for worker in (spout, bolts):
            worker.close()


def test_what_is_not_seen_off_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that closes before its executors' messages are taken logs the number of dropped messages."""
    with hosted(word_count(Counter()), [2], [1]) as (here, _):
        here.link.send([TaskGroup.of(1, [b"a", b"b"]), TaskGroup.of(2, [b"c"])])
        eventually(lambda: here.handle.ledger().accepted == 3, SECONDS)
    told = [each["messages_by_reason"] for each in logged(caplog, "worker.messages_dropped")]
    assert told == [{"shutdown": 2}, {"shutdown": 1}]


def test_mail_waits_for_an_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitting program receives its control messages, even if Spark starts its tasks late."""
    task, recv = 5, Client.recv
    failures: list[TuplewireError] = []
    came: list[ControlMessage] = []
    attempts: list[int] = []

    def counted(client: Client, *arguments: Any, **more: Any) -> Any:
        attempts.append(1)
        return recv(client, *arguments, **more)

    monkeypatch.setattr(Client, "recv", counted)
    with WorkerProcesses(1, "mail", drain_seconds=0.1) as local:
        (worker,) = local.endpoints
        client = Client(worker.address, topology="mail", connect_timeout_seconds=0.2)
        with ControlChannel(client, "run", task, came.append, failures.append, waits_for_task=True) as post:
            eventually(lambda: len(attempts) > 2 or failures, SECONDS)  # two attempts have failed
            local.assign({0: [task]})
            post.send(task, ControlMessage("run", 1, 0, ControlKind.STARTED, (task, 1)))
            eventually(lambda: came or failures, SECONDS)
    assert [mail.kind for mail in came] == [ControlKind.STARTED]
    assert failures == []


SHARES = (1, 2, 4, 7), (3, 5, 6, 8)
"""The tasks of the two workers; 7 and 8 are the ackers."""


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
def client_links() -> Iterator[list[Link]]:
    """Yield links that are clients of two worker processes; all messages are acknowledged."""
    with WorkerProcesses(2, "t") as processes:
        processes.assign(dict(enumerate(SHARES)))
        addresses = [each.unix_address for each in processes.endpoints]
        clients = [Client(each, topology="t", ack_mode="processed") for each in addresses]
        yield [Link(each) for each in clients]
        for each in clients:
            assert (each.ledger().pending, sum(each.ledger().dropped.values())) == (0, 0)


@contextmanager
def several(
    topology: Topology, link: str, conf: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[list[ExecutorGroup]]:
    """Run a topology in two workers that reach each other only through their links."""
    with ExitStack() as stack:
        if link == "clients":
            links = stack.enter_context(client_links())
        else:
            links = [each.link for each in stack.enter_context(hosted(topology, *SHARES, transport=link))]
        workers = [
            ExecutorGroup(topology, share, topology_id="t", conf=conf, link=each, **more)
            for share, each in zip(SHARES, links, strict=True)
        ]
        for worker in workers:
            stack.callback(worker.close)
            worker.start()
        for worker in workers:
            worker.set_active(active=True)
        yield workers


def ask_until_over(workers: Sequence[ExecutorGroup]) -> None:
    """Poll the workers until the topology has finished; raise TimeoutError if that takes too long."""
    termination = TerminationDetector(len(workers))
    deadline = time.monotonic() + SECONDS
    while not termination.is_finished:
        for rank, worker in enumerate(workers):
            report = worker.report()
            assert report.failure is None, report.failure
            termination.add_report(rank, termination.wave, report)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not over: {[worker.report() for worker in workers]}")
        threading.Event().wait(0.005)


@pytest.mark.parametrize("link", ["grpc", "clients"])
def test_a_spout_hears_what_becomes_of_its_tuples(link: str, notes: Notes) -> None:
    """Both workers process every number, its spout is notified once, and then the topology finishes."""
    with several(topology_of(notes, Pass(notes)), link) as workers:
        ask_until_over(workers)
        check_order(notes)
        assert acked(notes) == list(range(COUNT))
        assert not notes.read("failed")
        assert workers[0].spouts[0].pending_tuples == 0
        assert [each.counts.errors for worker in workers for each in worker.statistics()] == [0] * 8


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
        eventually(lambda: spout.pending_tuples == 10, SECONDS)
        for seconds in (29, 1, 15):
            assert not any(worker.report().is_idle for worker in workers[:1])
            timer.advance(seconds)
            eventually(lambda: not spout._rotation_due, SECONDS)  # two due rotations count as one
        eventually(lambda: notes.count("failed") == 10, SECONDS)
        ask_until_over(workers)
    assert acked(notes) == list(range(10))


def test_messages_without_destination_do_not_hold_up_the_end(notes: Notes) -> None:
    """Messages to tasks without a worker count as lost and as taken, so that the topology finishes."""
    topology = topology_of(notes, Pass(notes), ackers=0)
    with hosted(topology, [1], []) as (here, other):
        worker = ExecutorGroup(topology, [1], topology_id="t", link=here.link)
        worker.start()
        worker.set_active(active=True)
        ask_until_over([worker])
        assert (worker.report().received, here.link.lost_messages()) == (COUNT, COUNT)
        worker.close()
        other.link.close(0.0)


def test_foreign_message_ids_are_refused(caplog: pytest.LogCaptureFixture, notes: Notes) -> None:
    """A tuple with a message id that no executor assigned is logged as malformed, and stops nothing."""
    topology = topology_of(notes, Pass(notes))
    foreign = Tuple([1], topology.source(2, "default"), ((1, "mine"),))
    with several(topology, "grpc") as workers:
        payload = TupleSerializer(topology).serialize(foreign)
        workers[1].transfer.receive(TaskGroup.of(5, [payload], 2), lambda: None)
        assert len(logged(caplog, "tuple.malformed")) == 1
        eventually(lambda: notes.count("acked") == COUNT, SECONDS)
