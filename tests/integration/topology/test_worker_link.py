"""The link between executors and their worker: buffering, backpressure, connections, start and end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import helpers.words
import pytest
from helpers.executors import Do, Sink, bolts_of, pipeline, wait_idle
from helpers.hosted import Hosted, assign, host, hosted
from helpers.logged import logged
from helpers.program import in_threads

from tuplewire import Client, TaskGroup
from tuplewire.errors import ClosedError, MalformedError, MessageTooLargeError, RefusedError
from tuplewire.packing.packing import pack_values, read_value
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.clusters.topology_program import TopologyProgram
from tuplewire_topology.running import link
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.task_router import outbound_tasks

SECONDS = 30.0
SMALL = {"tuplewire.worker.receive_queue_messages": 64}


def chain(feeder: FeederSpout, more: str = "a") -> Topology:
    """Return bolt "a" (task 1), bolt "b" (tasks 2 and 3) after `more`, and spout "s" (task 4) before them."""
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("a", Do(lambda message: message[0])).shuffle_grouping("s")
    builder.set_bolt("b", Sink(), 2).shuffle_grouping(more)
    return builder.create_topology()


@pytest.fixture
def topology() -> Topology:
    """Return the chain with a spout that emits nothing."""
    return chain(FeederSpout(["number"]))


class Idle:
    """Stands for a program that has nothing to do."""

    not_ready_reason = ""
    is_busy = False

    def disconnect(self) -> None:
        """Do nothing."""


class Taker:
    """Stands for the executors of some tasks: stores messages, and acknowledges them in finish()."""

    def __init__(self, at: Hosted, *tasks: int) -> None:
        self.came: list[tuple[int, bytes]] = []
        self._undone: list[Callable[[], None]] = []
        at.handle.attach(Idle(), tasks)
        at.link.subscribe([range(task, task + 1) for task in tasks], self.receive, lambda _: None)

    def receive(self, group: TaskGroup, done: Callable[[], None]) -> None:
        self.came += [(group.task, payload) for payload in group.payloads()]
        self._undone.append(done)

    def finish(self) -> None:
        """Acknowledge all messages received so far."""
        undone, self._undone = self._undone, []
        for done in undone:
            done()


@pytest.fixture
def waiting(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Hosted, Taker, threading.Thread]]:
    """Yield a worker, the taker at another worker, and a thread that waits to send to it."""
    monkeypatch.setattr(link, "BLOCKED_LOG_SECONDS", 0.05)
    with hosted(topology, [4], [1], conf=SMALL) as (here, there):
        taker = Taker(there, 1)

        def send() -> None:
            with suppress(ClosedError):  # another error fails the test
                for number in range(200):
                    here.link.send([TaskGroup.of(1, [b"%d" % number])])

        sending = threading.Thread(target=send)
        sending.start()
        eventually(here.worker.servers.tasks_without_credit, SECONDS)
        yield here, taker, sending
        while sending.is_alive():
            taker.finish()
            sending.join(0.001)
        taker.finish()


def test_outbound_tasks(topology: Topology) -> None:
    """A worker sends to the tasks that its components emit to, except its own tasks."""
    assert outbound_tasks(topology, [4]) == {1}
    assert outbound_tasks(topology, [4, 1]) == {2, 3}
    assert outbound_tasks(topology, [1, 2]) == {3}
    assert outbound_tasks(topology, [2, 3]) == set()
    assert outbound_tasks(topology, [4, 99]) == {1}


def test_a_sender_waits_for_a_task_that_stands_still(
    waiting: tuple[Hosted, Taker, threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    """A sender waits while the queue of a stalled task is full; then all messages arrive in order."""
    here, taker, sending = waiting
    eventually(lambda: logged(caplog, "executors.blocked"), SECONDS)
    assert (here.link.pending_messages, here.worker.servers.tasks_without_credit()) == (64, {1})
    assert logged(caplog, "executors.blocked")[0]["tasks"] == [1]
    while len(taker.came) < 200:
        taker.finish()
        sending.join(0.001)
    assert taker.came == [(1, b"%d" % number) for number in range(200)]
    taker.finish()
    eventually(lambda: not here.link.pending_messages, SECONDS)


def test_others_do_not_wait(waiting: tuple[Hosted, Taker, threading.Thread]) -> None:
    """A stalled task does not block messages to other tasks or to spouts."""
    here, _, _ = waiting
    fates = Taker(here, 4)
    for _ in range(100):
        here.link.send([TaskGroup.of(4, [b"fate"])])
    eventually(lambda: len(fates.came) == 100, SECONDS, "acknowledged although the spout has not read them")
    eventually(lambda: here.worker.servers.tasks_without_credit() == {1}, SECONDS)
    fates.finish()


def test_a_link_that_closes_ends_the_wait(waiting: tuple[Hosted, Taker, threading.Thread]) -> None:
    """A sender that waits for queue space gets ClosedError when the link closes."""
    here, _, sending = waiting
    here.link.abort()
    sending.join(SECONDS)
    assert not sending.is_alive()


def test_what_is_not_executed_is_bounded(topology: Topology) -> None:
    """Executors get a limited number of messages; the rest stays in the receive queue."""
    with hosted(topology, [4], [1], conf={"topology.executor.receive.buffer.size": 10}) as (here, there):
        taker = Taker(there, 1)
        for number in range(50):
            here.link.send([TaskGroup.of(1, [b"%d" % number])])
        eventually(lambda: there.handle.ledger().accepted == 50, SECONDS)
        eventually(lambda: len(taker.came) == 10, SECONDS)
        taker.finish()
        eventually(lambda: len(taker.came) == 20, SECONDS)
        assert there.handle.ledger().pending == 40
        while len(taker.came) < 50:
            taker.finish()
        taker.finish()
        eventually(lambda: there.handle.ledger().acknowledged == 50, SECONDS)


def test_an_executor_that_stops_keeps_what_it_has_accepted(topology: Topology) -> None:
    """If an executor stops within a batch, only the rest of the batch goes to the next consumer."""
    with hosted(topology, [4], [2, 3]) as (here, there):
        accepted: list[int] = []

        def receive(group: TaskGroup, done: Callable[[], None]) -> None:
            if group.task == 3:
                raise ClosedError("the receive queue is closed")
            accepted.append(group.task)
            done()

        there.link.subscribe([range(2, 4)], receive, lambda _: None)
        here.link.send([TaskGroup.of(2, [b"accepted"]), TaskGroup.of(3, [b"left"])])
        eventually(lambda: there.handle.ledger().acknowledged == 1, SECONDS)
        there.link.unsubscribe(range(2, 4))
        taker = Taker(there, 2, 3)
        eventually(lambda: taker.came == [(3, b"left")], SECONDS)
        taker.finish()
        assert accepted == [2]


def test_too_large(topology: Topology) -> None:
    """A message over the limit raises an error for its sender."""
    with hosted(topology, [4], [1]) as (here, _), pytest.raises(MessageTooLargeError):
        here.link.send([TaskGroup.of(1, [bytes(3 * 2**20)])])


def test_no_other_consumer(topology: Topology) -> None:
    """Clients cannot consume the tasks that a worker runs itself."""
    with hosted(topology, [1, 2], transport="grpc") as (here,):
        Taker(here, 1)
        with Client(here.peer.address, topology="t") as client:
            with (
                pytest.raises(RefusedError, match="task 1 is run by worker w0 itself"),
                client.recv([1]) as subscription,
            ):
                next(subscription)
            with client.recv([2]) as subscription:
                client.send(2, b"x")
                assert next(subscription)[0].message == b"x"


def test_missing_tasks_are_warned_of(topology: Topology, caplog: pytest.LogCaptureFixture) -> None:
    """Destination tasks that no worker owns are logged once, and messages to them are counted."""
    words = helpers.words.topology()
    (spout,) = words.tasks_of("lines")
    with hosted(topology, [spout]) as (here,):
        program = TopologyProgram(here.handle, "helpers.words:topology", {"topology.acker.executors": 0})
        program.start("127.0.0.1:1")
        eventually(lambda: logged(caplog, "assignment.tasks_missing"), SECONDS)
        assert logged(caplog, "assignment.tasks_missing")[0]["tasks"] == sorted(words.tasks_of("split"))
        eventually(lambda: here.status().refused_messages["UNKNOWN_TASK"] > 0, SECONDS)
        for call in (b"\xc1", b"\x90", b"\x91\x01", b"\x91\xa1x", b"\x01"):
            with pytest.raises(MalformedError):
                program.call(call)
        program.stop_input()
        assert program.close(SECONDS)


def test_a_program_without_an_assignment_has_nothing_to_report() -> None:
    """A restarted process answers its cluster before it has its assignment again."""
    worker = host("here", helpers.words.topology(), "local")
    program = TopologyProgram(worker.handle, "helpers.words:topology", {"topology.acker.executors": 0})
    assert read_value(program.call(pack_values(["get_report", 1])), 0)[0] == [None, None]
    assert program.close(SECONDS)
    worker.abort()


def test_spouts_wait_for_connections() -> None:
    """A spout emits its first tuple after all required workers are connected."""
    feeder = FeederSpout(["number"])
    topology = chain(feeder, more="s")
    here, first, second = (host(name, topology, "grpc") for name in ("here", "first", "second"))
    assign(1, {here: [4], first: [1], second: [2, 3]})
    second.abort()
    taker = Taker(first, 1)
    worker = ExecutorGroup(topology, [4], topology_id="t", link=here.link)
    worker.start()
    eventually(lambda: worker.transfer.missing_connections == "no connection to second", SECONDS)
    worker.set_active(active=True)
    feeder.feed([1])
    assert not wait_idle(worker, 0.2)
    assert taker.came == []
    again = host("second", topology, "grpc")
    assign(2, {here: [4], first: [1], again: [2, 3]})
    assert wait_idle(worker, SECONDS)
    eventually(lambda: len(taker.came) == 1, SECONDS)
    taker.finish()
    worker.close(0.1)
    for each in (here, first, again):
        each.link.abort()  # a drain would wait for its subscription
        each.close(0.1)


def test_connections_follow_outbound_tasks() -> None:
    """A worker connects immediately to the workers that its tasks send to, and to others on demand."""
    topology = chain(FeederSpout(["number"]))
    first, second, last = workers = [host(name, topology, "grpc") for name in ("first", "second", "last")]
    for worker in workers:
        worker.handle.attach(Idle(), topology.tasks, partial(outbound_tasks, topology))
    assign(1, {first: [4], second: [1], last: [2, 3]})

    def peers(worker: Hosted) -> list[str]:
        return [each.worker_id for each in worker.status().peers if each.connected]

    eventually(lambda: [peers(each) for each in workers] == [["second"], ["last"], []], SECONDS)
    first.abort()
    eventually(lambda: [each.status().not_ready_reason for each in (second, last)] == ["", ""], SECONDS)
    taker = Taker(second, 1)
    last.link.send([TaskGroup.of(1, [b"on demand"])])
    eventually(lambda: taker.came == [(1, b"on demand")], SECONDS)
    assert peers(last) == ["second"]
    taker.finish()
    for worker in (second, last):
        worker.link.abort()
        worker.close(0.1)


class Tell(Sink):
    """Records its context."""

    where: TopologyContext

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        del conf
        type(self).where = context


def test_a_task_knows_its_worker() -> None:
    """A task's context has the port of its worker, and the tasks in the same worker."""
    topology = pipeline({"s": FeederSpout(["number"]), "tell": Tell()})
    with hosted(topology, [1, 2]) as (here,):
        worker = ExecutorGroup(topology, [1, 2], topology_id="t", link=here.link, port=here.port)
        worker.start()
        assert (Tell.where.worker_port, set(Tell.where.worker_tasks)) == (here.port, {1, 2})
        worker.close()


COUNT = 300


class Notes:
    """The events in order; shared by copies of spouts and bolts."""

    def __init__(self, file: Path) -> None:
        self.seen: list[str] = []
        self.file = file
        self.go = threading.Event()

    def __deepcopy__(self, memo: object) -> Notes:
        return self

    def __call__(self, what: str) -> None:
        if what not in self.seen:
            self.seen.append(what)

    def again(self, what: str) -> None:
        """Record an event at the position of its latest occurrence."""
        if what in self.seen:
            self.seen.remove(what)
        self.seen.append(what)


def noted(method: Callable[..., None], note: Callable[[], None]) -> Callable[..., None]:
    """Return a method of a link that records its calls."""

    def call(*arguments: Any) -> None:
        note()
        method(*arguments)

    return call


class Numbers(Spout):
    """Emits numbers up to COUNT."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.number = 0

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.notes("heartbeat" if self.notes.file.exists() else "no heartbeat")
        self.notes("executors")

    def next_tuple(self) -> None:
        if self.number < COUNT:
            self.collector.emit([self.number])
            self.number += 1

    def deactivate(self) -> None:
        self.notes("spouts stop")

    def close(self) -> None:
        self.notes.again("executors end")


class Late(BasicBolt):
    """Waits until the test lets it continue, and emits its input."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.notes("heartbeat" if self.notes.file.exists() else "no heartbeat")
        self.notes("executors")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        self.notes.go.wait(SECONDS)
        collector.emit(message.values)
        self.notes.again("last tuple executed")

    def cleanup(self) -> None:
        self.notes.again("executors end")


def arrivals(link: Link) -> list[bytes]:
    """Open the link of "end", and return the list to which it adds the payloads that arrive."""
    arrived: list[bytes] = []

    def receive(group: TaskGroup, done: Callable[[], None]) -> None:
        arrived.extend(group.payloads())
        done()

    link.subscribe([range(1, 2)], receive, lambda _: None)
    return arrived


def test_a_workers_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker writes heartbeats, and stops from the spouts to the link. All queued tuples are executed."""
    notes = Notes(tmp_path / "heartbeat.json")
    topology = pipeline({"numbers": Numbers(notes), "late": Late(notes), "end": Sink()})  # tasks 3, 2 and 1
    with hosted(topology, [2, 3], [1], transport="grpc") as (here, there):
        arrived = arrivals(there.link)
        link = here.link
        monkeypatch.setattr(link, "subscribe", noted(link.subscribe, partial(notes, "receive")))
        monkeypatch.setattr(link, "send", noted(link.send, partial(notes.again, "transfer")))
        monkeypatch.setattr(link, "close", noted(link.close, partial(notes, "link closes")))
        worker = ExecutorGroup(topology, [2, 3], topology_id="t", link=link, state_file=notes.file)
        worker.start()
        assert notes.seen == ["heartbeat", "executors", "receive"]
        worker.set_active(active=True)
        queue = bolts_of(worker)[0].queue
        eventually(lambda: queue.statistics().arrived == COUNT, SECONDS, "all are in the queue or executed")
        assert arrived == []
        with in_threads(partial(worker.close, SECONDS)):
            eventually(lambda: "spouts stop" in notes.seen, SECONDS)
            notes.go.set()
        ends = ["spouts stop", "last tuple executed", "transfer", "executors end", "link closes"]
        assert notes.seen[3:] == ends
        eventually(lambda: len(arrived) == COUNT, SECONDS)
        assert not notes.file.exists(), "a worker that has ended well leaves no state file"
