"""Executors in several workers: what travels between them, over every link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import RefusedMessagesError
from tuplewire.topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    Topology,
    TopologyBuilder,
    Tuple,
)
from tuplewire.topology.client_link import ClientLink
from tuplewire.topology.serializer import MessagePackTupleSerializer
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.server.launch import LocalWorkers
from tuplewire_service.testing import eventually
from tuplewire_service.topology.context_link import ContextLink

LINES = ["to be or not to be", "that is the question", "whether tis nobler in the mind to suffer"] * 200
EXPECTED = Counter(word for line in LINES for word in line.split())
SECONDS = 30.0


class Lines(Spout):
    """Emits the lines."""

    outputs = ("line",)

    def __init__(self) -> None:
        self.left = list(LINES)
        self.acked = 0

    def next_tuple(self) -> None:
        self.collector.emit([self.left.pop()], message_id=len(self.left))

    @property
    def exhausted(self) -> bool:
        return not self.left


class Split(BasicBolt):
    """Emits the words of a line."""

    outputs = ("word",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        for word in message["line"].split():
            collector.emit([word])


class Count(BasicBolt):
    """Counts words, where a test sees it: a copy shares the counter."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def __deepcopy__(self, memo: object) -> Count:
        return self

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        self.counts[message["word"]] += 1


def word_count(counts: Counter[str]) -> Topology:
    """Return the topology: count has task 1, lines task 2, split tasks 3 and 4."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(counts)).fields_grouping("split", "word")
    return builder.create_topology()


HERE, THERE = (2, 3), (1, 4)


@contextmanager
def two_workers(topology: Topology, transport: str, **more: Any) -> Iterator[list[ExecutorWorker]]:
    """Run a topology in two workers, each with a link of its own, over a transport of this process."""
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    links = [ContextLink(context, "t") for _ in range(2)]
    for link, other, tasks in ((links[0], links[1], THERE), (links[1], links[0], HERE)):
        link.connect(dict.fromkeys(tasks, ("127.0.0.1", other.port)))
    with ExitStack() as stack:
        stack.callback(context.term)
        workers = [
            ExecutorWorker(topology, tasks, topology_id="t", link=link, **more)
            for tasks, link in zip((HERE, THERE), links, strict=True)
        ]
        for worker in reversed(workers):
            stack.callback(worker.close)
            worker.start()
        for worker in workers:
            worker.activate()
        yield workers


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_words_are_counted_over_a_transport(transport: str) -> None:
    """What two workers count together is what a Counter counts."""
    counts: Counter[str] = Counter()
    with two_workers(word_count(counts), transport) as workers:
        assert workers[0].wait_idle(SECONDS)
        eventually(lambda: counts == EXPECTED, SECONDS)
        assert [each.counts.acked for each in workers[0].statistics() if each.component == "lines"] == [
            len(LINES)
        ]


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_bytes_are_counted_for_each_pair(transport: str) -> None:
    """With the setting, each source and destination task has its bytes; reading starts anew."""
    counts: Counter[str] = Counter()
    topology = word_count(counts)
    conf = {"topology.serialized.message.size.metrics": True}
    with two_workers(topology, transport, conf=conf) as (_, there):
        eventually(lambda: counts == EXPECTED, SECONDS)
        sizes = there.deserializing.take_sizes()
        assert there.deserializing.take_sizes() == {}
    assert sizes.keys() == {(2, 4), (3, 1)}
    serialize = MessagePackTupleSerializer(topology).serialize
    origin = topology.origin(2, "default")
    # Tasks 3 and 4 get the lines in turn, from the spout's own place in the ring.
    sent = [Tuple([line], origin, ((2, number),)) for number, line in enumerate(LINES)]
    half = [sum(len(serialize(message)) for message in sent[start::2]) for start in (0, 1)]
    assert sizes[2, 4] in half


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_foreign_and_malformed_messages(transport: str) -> None:
    """Bytes that are no tuple are counted and dropped, a task that is not here is refused; others go on."""
    counts: Counter[str] = Counter()
    topology = word_count(counts)
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    link = ContextLink(context, "t")
    worker = ExecutorWorker(topology, [1], topology_id="t", link=link)
    connection = context.connect("t", "127.0.0.1", link.port)
    serializer = MessagePackTupleSerializer(topology)
    good = serializer.serialize(Tuple(["word"], topology.origin(3, "default")))
    # Before the executors are there: it waits for them.
    connection.send(TaskMessageBatch.from_groups([TaskGroup.of(1, [good, b"\x00"], 3)]))
    worker.start()
    groups = [TaskGroup.of(77, [good], 3), TaskGroup.of(1, [good], 3)]
    connection.send(TaskMessageBatch.from_groups(groups))
    eventually(lambda: counts["word"] == 2, SECONDS)
    eventually(lambda: not connection.statistics().ledger.pending, SECONDS)
    assert worker.deserializing.malformed == 1
    assert sum(connection.statistics().ledger.dropped.values()) == 1
    worker.close()
    context.term()


def test_no_destination_is_counted() -> None:
    """A message to a task that no worker has is refused and counted, and holds nothing up."""
    counts: Counter[str] = Counter()
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    link = ContextLink(context, "t")
    worker = ExecutorWorker(word_count(counts), [2], topology_id="t", link=link)
    worker.start()
    worker.activate()
    assert worker.wait_idle(SECONDS)
    assert link.refused == len(LINES)
    worker.close()
    context.term()


def test_words_are_counted_over_clients() -> None:
    """The same executors run as clients of worker processes; nothing is lost, and all is acknowledged."""
    counts: Counter[str] = Counter()
    topology = word_count(counts)
    with LocalWorkers(2, "t") as processes:
        processes.assign({0: HERE, 1: THERE})
        clients = [
            Client(endpoint.unix_address, topology="t", ack_mode="processed")
            for endpoint in processes.endpoints
        ]
        workers = [
            ExecutorWorker(topology, tasks, topology_id="t", link=ClientLink(client))
            for tasks, client in zip((HERE, THERE), clients, strict=True)
        ]
        for worker in workers:
            worker.start()
        workers[0].activate()
        eventually(lambda: counts == EXPECTED, SECONDS)
        for worker in workers:
            worker.close()
        for client in clients:
            assert (client.ledger().pending, sum(client.ledger().dropped.values())) == (0, 0)


def test_a_client_link_tells_what_was_refused() -> None:
    """Messages that the worker refuses are an error of close(), not a silence."""
    counts: Counter[str] = Counter()
    with LocalWorkers(1, "t") as processes:
        processes.assign({0: [2]})
        client = Client(processes.endpoints[0].unix_address, topology="t")
        worker = ExecutorWorker(word_count(counts), [2], topology_id="t", link=ClientLink(client))
        worker.start()
        worker.activate()
        assert worker.wait_idle(SECONDS)
        with pytest.raises(RefusedMessagesError, match="task 3"):
            worker.close()


def test_a_lost_subscription_fails_the_worker() -> None:
    """Executors whose task somebody else has taken over do not wait for ever: their worker fails."""
    counts: Counter[str] = Counter()
    with LocalWorkers(1, "t") as processes:
        processes.assign({0: [1]})
        address = processes.endpoints[0].unix_address
        topology = word_count(counts)
        link = ClientLink(Client(address, topology="t"))
        worker = ExecutorWorker(topology, [1], topology_id="t", link=link)
        worker.start()
        with Client(address, topology="t") as other:
            word = Tuple(["word"], topology.origin(3, "default"))
            other.send(1, MessagePackTupleSerializer(topology).serialize(word))
            eventually(lambda: counts["word"], SECONDS, "the subscription is in force")
            with other.recv([1]):
                eventually(lambda: worker.failure, SECONDS)
        assert "taken task 1 over" in str(worker.failure)
        worker.close()


def test_a_tuple_for_several_tasks_is_serialized_once() -> None:
    """A tuple for several tasks of another worker is serialized once."""

    class Counting(MessagePackTupleSerializer):
        calls = 0

        def serialize(self, message: Tuple) -> bytes:
            Counting.calls += 1
            return super().serialize(message)

    counts: Counter[str] = Counter()
    builder = TopologyBuilder()

    class Words(Lines):
        outputs = ("word",)

    builder.set_spout("words", Words())
    builder.set_bolt("count", Count(counts), 3).all_grouping("words")
    topology = builder.create_topology()
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    links = [ContextLink(context, "t") for _ in range(2)]
    links[0].connect(dict.fromkeys([1, 2, 3], ("", links[1].port)))
    spout = ExecutorWorker(topology, [4], link=links[0], topology_id="t", serializer=Counting(topology))
    bolts = ExecutorWorker(topology, [1, 2, 3], link=links[1], topology_id="t")
    for worker in (bolts, spout):
        worker.start()
    spout.activate()
    eventually(lambda: sum(counts.values()) == 3 * len(LINES), SECONDS)
    assert Counting.calls == len(LINES)
    for worker in (spout, bolts):
        worker.close()
    context.term()


def test_what_is_not_seen_off_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A link that is closed before anybody has taken what it sent says how many messages that were."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    link = ContextLink(context, "t")
    link.connect({1: ("127.0.0.1", 1)})  # where nobody is
    link.send([TaskGroup.of(1, [b"a", b"b"])])
    link.close(0.0)
    (record,) = (each for each in caplog.records if each.message == "messages.dropped")
    assert record.__dict__["reasons"] == {"closed": 2}
    context.term()
