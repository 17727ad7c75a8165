"""The connections of a worker with executors: to whom, for how long, and when its spouts may begin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tuplewire import TaskGroup
from tuplewire.errors import ConfigError, StaleAssignmentError
from tuplewire.topology import BasicBolt, BasicOutputCollector, Topology, TopologyBuilder, Tuple
from tuplewire.topology.link import Done
from tuplewire.topology.routing import outbound_tasks
from tuplewire.topology.timer import SimulatedTimer
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import eventually
from tuplewire_service.topology.capture import FeederSpout
from tuplewire_service.topology.context_link import ContextLink
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.assignment_source import AssignmentFile

SECONDS = 30.0


class Pass(BasicBolt):
    """Passes on what it gets."""

    outputs = ("number",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(message.values)


def chain(feeder: FeederSpout) -> Topology:
    """Return bolts "a" (task 1), "b" (2 and 3), and a spout "s" (4) before them."""
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("a", Pass()).shuffle_grouping("s")
    builder.set_bolt("b", Pass(), 2).shuffle_grouping("a")
    return builder.create_topology()


@pytest.fixture
def topology() -> Topology:
    """Return the chain, with nothing to do."""
    return chain(FeederSpout(["number"]))


@pytest.fixture(params=["local", "grpc", "zmq"])
def context(request: pytest.FixtureRequest) -> Iterator[IContext]:
    """Return a context of each transport."""
    made = TransportFactory.make_context({TRANSPORT_KEY: request.param})
    yield made
    made.term()


class Taker:
    """A link that keeps what arrives for its tasks."""

    def __init__(self, context: IContext, *tasks: int) -> None:
        self.link = ContextLink(context, "t")
        self.came: list[tuple[int, bytes]] = []
        self.link.open([range(task, task + 1) for task in tasks], self.receive, lambda _: None)
        self.worker = AssignedWorker(f"w{tasks}", f"127.0.0.1:{self.link.port}", tasks)

    def receive(self, groups: Sequence[TaskGroup], done: Done) -> None:
        for group in groups:
            self.came += [(group.task, payload) for payload in group.payloads()]
            done(group)


def assigned(version: int, *workers: AssignedWorker) -> Assignment:
    """Return an assignment."""
    return Assignment(version, "t", workers)


def test_outbound_tasks(topology: Topology) -> None:
    """A worker sends to the tasks of components that its own emit to, and not to its own."""
    assert outbound_tasks(topology, [4]) == {1}
    assert outbound_tasks(topology, [4, 1]) == {2, 3}
    assert outbound_tasks(topology, [1, 2]) == {3}
    assert outbound_tasks(topology, [2, 3]) == set()


def test_connections_follow_the_assignment(context: IContext, topology: Topology) -> None:
    """Workers that are needed have one connection each; it is kept while needed, and closed afterwards."""
    link, one, two, other = ContextLink(context, "t"), Taker(context, 2), Taker(context, 3), Taker(context, 4)
    outbound = outbound_tasks(topology, [1])
    assert link.assign(assigned(1, one.worker, two.worker, other.worker), outbound)
    assert link.connections.addresses == {one.worker.host_port, two.worker.host_port}
    link.send([TaskGroup.of(2, [b"a"]), TaskGroup.of(3, [b"b"])])
    eventually(lambda: (one.came, two.came) == ([(2, b"a")], [(3, b"b")]), SECONDS)
    both = Taker(context, 3)
    assert link.assign(assigned(2, one.worker, both.worker), outbound)
    assert link.connections.addresses == {one.worker.host_port, both.worker.host_port}
    link.send([TaskGroup.of(2, [b"c"]), TaskGroup.of(3, [b"d"])])
    eventually(lambda: (one.came[1:], both.came) == ([(2, b"c")], [(3, b"d")]), SECONDS)
    assert two.came == [(3, b"b")]
    assert one.link._server.statistics().sessions == 1, "the connection is kept"
    with ExitStack() as stack:
        for each in (link, one.link, two.link, other.link, both.link):
            stack.callback(each.close, SECONDS)


def test_what_was_accepted_goes_before_a_connection_is_closed(context: IContext) -> None:
    """A worker that is not needed any more still gets what was sent to it before."""
    link, old, new = ContextLink(context, "t"), Taker(context, 1), Taker(context, 1)
    link.assign(assigned(1, old.worker), [1])
    for number in range(100):
        link.send([TaskGroup.of(1, [b"%d" % number])])
        if number == 50:
            link.assign(assigned(2, new.worker), [1])
    eventually(lambda: len(old.came) + len(new.came) == 100, SECONDS)
    assert [payload for _, payload in old.came + new.came] == [b"%d" % number for number in range(100)]
    assert len(old.came) == 51
    for each in (link, old.link, new.link):
        each.close(SECONDS)


def test_a_file_is_followed(context: IContext, tmp_path: Path) -> None:
    """A changed assignment file changes where messages go; a stale one, and a bad one, change nothing."""
    link, old, new = ContextLink(context, "t"), Taker(context, 1), Taker(context, 1)
    file = tmp_path / "assignment.json"
    source = AssignmentFile(file, partial(link.assign, outbound=[1]))
    for version, taker in ((1, old), (3, new), (2, old)):
        file.write_text(json.dumps(assigned(version, taker.worker).to_json()))
        source.check()
        link.send([TaskGroup.of(1, [b"%d" % version])])
    eventually(lambda: (old.came, new.came) == ([(1, b"1")], [(1, b"3"), (1, b"2")]), SECONDS)
    assert source.errors == 1
    for each in (link, old.link, new.link):
        each.close(SECONDS)


def test_assignments_that_do_not_fit(topology: Topology) -> None:
    """An older assignment is refused, and so is another topology's; the same one again changes nothing."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    link = ContextLink(context, "t")
    assert link.assign(assigned(2), outbound_tasks(topology, [2]))
    assert not link.assign(assigned(2), outbound_tasks(topology, [2]))
    with pytest.raises(StaleAssignmentError, match="version 1 is not newer than 2"):
        link.assign(assigned(1), [])
    with pytest.raises(ConfigError, match="is for topology 'other', this worker serves 't'"):
        link.assign(Assignment(3, "other", ()), [])
    context.term()


def test_missing_tasks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Tasks that are sent to and that nobody has are logged once, and messages to them are counted."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    link, taker = ContextLink(context, "t"), Taker(context, 1)
    link.assign(assigned(1, taker.worker), [1, 2, 3])
    link.refresh()
    (record,) = (each for each in caplog.records if each.message == "assignment.tasks_missing")
    assert record.__dict__["tasks"] == [2, 3]
    link.send([TaskGroup.of(2, [b"a"])])
    assert (sorted(link.missing), link.refused) == ([2, 3], 1)
    link.assign(assigned(2, taker.worker, Taker(context, 2, 3).worker), [1, 2, 3])
    assert not link.missing
    context.term()


def test_connections_are_looked_at_every_so_often() -> None:
    """Every task.refresh.poll.secs a worker makes the connections again that should be there and are not."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    timer, link, taker = SimulatedTimer(), ContextLink(context, "t"), Taker(context, 1)
    link.assign(assigned(1, taker.worker), [1])
    conf = {"task.refresh.poll.secs": 20}
    worker = ExecutorWorker(
        chain(FeederSpout(["number"])), [4], topology_id="t", link=link, timer=timer, conf=conf
    )
    worker.start()
    link.connections.forget(taker.worker.host_port)
    timer.advance(19)
    assert not link.connections.addresses
    timer.advance(1)
    assert link.connections.addresses == {taker.worker.host_port}
    worker.close()
    context.term()


def test_spouts_wait_for_connections() -> None:
    """A spout is asked for its first tuple once every worker that is needed is there."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "local"})
    first, second = Taker(context, 1), Taker(context, 2, 3)
    feeder = FeederSpout(["number"])
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("a", Pass()).shuffle_grouping("s")
    builder.set_bolt("b", Pass(), 2).shuffle_grouping("s")
    link = ContextLink(context, "t")
    second.link.close(SECONDS)
    link.assign(assigned(1, first.worker, second.worker), [1, 2, 3])
    worker = ExecutorWorker(builder.create_topology(), [4], topology_id="t", link=link)
    worker.start()
    worker.activate()
    feeder.feed([1])
    eventually(lambda: link.connections.not_ready == [second.worker.host_port], SECONDS)
    assert not worker.wait_idle(0.2)
    assert first.came == []
    context.bind("t", second.link.port)
    assert worker.wait_idle(SECONDS)
    assert len(first.came) == 1
    worker.close(0.5)  # nobody takes what is bound for "b"
    context.term()
