"""Workers, programs and consumers while tasks move and workers drain, restart and die, in any order.

Everything is real except the network (helpers/memory_network.py) and the clock. `make property` runs many
steps, in pieces with one seed each. A failure prints its steps, and `make property SEED=n` starts with the
piece that failed.
"""

# ruff: noqa: D401 - a rule's docstring describes an event

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest
from helpers.hand_loop import HandLoop
from helpers.memory_network import Network
from helpers.moving_parts import (
    FIRST_SOURCE,
    PROGRAMS,
    TASKS,
    TOPOLOGY,
    WORKERS,
    Consumer,
    Host,
    Lives,
    Program,
    Stream,
    address_of,
    numbered,
    numbers_in,
    start_worker,
)
from helpers.pieces import LONG, CountedSteps, run_pieces
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tuplewire.errors import RefusedError, UnreachableError
from tuplewire.settings.config import AckMode
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.messaging_pb2 import SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.worker import WorkerState

pytestmark = pytest.mark.timeout(0 if LONG else 300)

FOREVER = 1e9
QUEUE_BYTES = (100, 500, 4_000)
HEAL_SECONDS = 120.0
HOPS = 6
MOST_CONSUMERS = 8
FAULTS = ("cut", "supersede", "kill_consumer", "drain", "restart", "restart")
ACTIONS = (
    *("send",) * 4,
    *("deliver",) * 6,
    *("flow",) * 4,
    *("take",) * 3,
    *("move", "move", "tell", "tell", "tell", "wait"),
    *FAULTS,
)


class Cluster(CountedSteps):
    """Drives all processes, and checks Tuplewire's guarantees."""

    @initialize(
        weather=st.sampled_from(("calm", "faults", "faults", "kills")),
        modes=st.tuples(*[st.sampled_from(AckMode)] * len(PROGRAMS)),
        queue_bytes=st.sampled_from(QUEUE_BYTES),
    )
    def start(self, weather: str, modes: Sequence[AckMode], queue_bytes: int) -> None:
        """Start everything, in a weather: `calm` allows no duplicates, `kills` needs the mode `processed`."""
        self.calm = weather == "calm"
        self.kills = weather == "kills"
        self.queue_bytes = queue_bytes
        self.loop = HandLoop()
        self.network = Network(self.loop)
        self.assignments: list[Assignment] = []
        self.consumers: list[Consumer] = []
        self.consumers_made = 0
        self.lives: defaultdict[Stream, Lives] = defaultdict(Lives)
        self._assign([0, 1])
        self.hosts = [Host(number) for number in WORKERS]
        for host in self.hosts:
            self._start(host, 1)
        self.programs = [
            self.loop.inside(
                lambda number=number, mode=mode: Program(  # type: ignore[misc]
                    number, self.network, AckMode.PROCESSED if self.kills else mode
                ),
                f"p{number}",
            )
            for number, mode in zip(PROGRAMS, modes, strict=True)
        ]
        self._flow(4)

    def _assign(self, owners: Sequence[int]) -> None:
        workers = tuple(
            AssignedWorker(
                f"w{worker}",
                address_of(worker),
                tuple(task for task, owner in zip(TASKS, owners, strict=True) if owner == worker),
            )
            for worker in WORKERS
        )
        self.assignments.append(Assignment(len(self.assignments) + 1, TOPOLOGY, workers))

    def _start(self, host: Host, version: int) -> None:
        host.life += 1
        start = partial(start_worker, self.network, host.number, host.incarnation, self.queue_bytes)
        host.worker = self.loop.inside(start, host.process)
        host.draining = None
        host.version = 0
        if version:
            self._tell(host, version)

    def _tell(self, host: Host, version: int) -> None:
        worker = host.worker
        if worker is not None and worker.state is not WorkerState.STOPPED and version > host.version:
            host.version = version
            self.loop.inside(lambda: worker.update_assignment(self.assignments[version - 1]), host.process)

    def tell(self, which: int, skip: int) -> None:
        """A worker receives a newer assignment, perhaps not the newest."""
        host = self.hosts[which % 3]
        self._tell(host, max(host.version, len(self.assignments) - (skip - 1)))

    def move(self, which: int, much: int) -> None:
        """Each task is assigned to a worker, and some workers are notified."""
        self._assign([which % 3, which // 3 % 3])
        for number in range(which, which + much):
            if number % 4 < 3:
                self._tell(self.hosts[number % 4], len(self.assignments))

    def drain(self, which: int, _: int) -> None:
        """A worker starts to drain."""
        host = self.hosts[which % 3]
        worker = host.worker
        if worker is not None and host.draining is None:
            host.draining = self.loop.inside(
                lambda: self.loop.create_task(worker.drain(FOREVER)), host.process
            )

    def _look_at_drains(self) -> None:
        """A drain finishes without lost messages."""
        for host in self.hosts:
            if host.draining is not None and host.draining.done():
                ledger = host.draining.result()
                assert ledger.balanced, str(ledger)
                assert not ledger.pending, str(ledger)
                assert not sum(ledger.dropped.values()), str(ledger)
                host.draining = None
                host.worker = None
                self.network.kill(host.process)
                for program in self.programs:
                    if program.worker == host.number:
                        for task in TASKS:
                            self.lives[program.source, task].new_life(program.settled[task])

    def restart(self, which: int, skip: int) -> None:
        """A stopped worker starts again, with an assignment or without."""
        host = self.hosts[which % 3]
        if host.worker is None:
            self._restart(host, (host.version, len(self.assignments), 0)[skip % 3])

    def _restart(self, host: Host, version: int) -> None:
        # Messages that it sent before may still be queued elsewhere; see docs/guarantees.md, note 5.
        for stream, end in self._sent_by(host.process).items():
            self.lives[stream].new_life(end)
        self._start(host, version)

    def _sent_by(self, process: str) -> dict[Stream, int]:
        """Return the number after the last message of each stream that a worker sent to other workers."""
        ends: dict[Stream, int] = {}
        for data in self.network.written[process]:
            if isinstance(frame := decode(SendRequest, data), OpaqueFrame):
                for group in groups_of(frame):
                    assert group.source is not None
                    stream = group.source, group.task
                    ends[stream] = max(ends.get(stream, 0), numbers_in(group)[-1] + 1)
        return ends

    @rule(which=st.sampled_from(WORKERS))
    def kill_worker(self, which: int) -> None:
        """A worker is killed with all its messages, in the runs with kills."""
        host = self.hosts[which]
        if host.worker is not None and self.kills:
            self.network.kill(host.process)
            host.worker = host.draining = None
            for program in self.programs:
                for task in TASKS:
                    self.lives[program.source, task].die(program.offered[task])

    def send(self, which: int, much: int) -> None:
        """A program sends, if there is buffer space."""
        program = self.programs[which % 3]
        tasks = TASKS[: 1 + which % len(TASKS)]
        groups = [
            numbered(task, program.source, program.offered[task], 3 * much, padding=which) for task in tasks
        ]
        if self.loop.inside(lambda: program.sender.buffer.offer(groups), f"p{program.worker}"):
            for task in tasks:
                program.offered[task] += 3 * much

    def _consume(self, worker: int, task: int) -> None:
        self.consumers_made += 1
        name = f"c{self.consumers_made}"
        self.consumers.append(self.loop.inside(lambda: Consumer(name, worker, task, self.network), name))

    def take(self, which: int, limit: int) -> None:
        """A consumer receives some batches, and acknowledges all except the last few."""
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            self._take(consumer, limit)
            self._done(consumer, keep=which % 3)

    def _take(self, consumer: Consumer, limit: int) -> None:
        for _ in range(limit):
            try:
                arrived = consumer.receiver.take(0)
            except UnreachableError:
                return
            except RefusedError:  # the task has moved, or another consumer has taken over
                self._end(consumer)
                return
            if arrived is None:
                return
            consumer.held.append(arrived)
            for group in arrived.groups:
                self._see(group)

    def _see(self, group: TaskGroup) -> None:
        assert group.source is not None
        for number in numbers_in(group):
            lives = self.lives[group.source, group.task]
            assert not (self.calm and number in lives.seen), f"{number} came twice, and nothing went wrong"
            lives.see(number, marked=group.redelivered)

    def _done(self, consumer: Consumer, keep: int) -> None:
        while len(consumer.held) > keep:
            arrived = consumer.held.popleft()
            for group in arrived.groups:
                assert group.source is not None
                self.programs[group.source - FIRST_SOURCE].done[group.task].update(numbers_in(group))
            consumer.receiver.acknowledge(arrived)
        self.loop.settle()

    def _end(self, consumer: Consumer) -> None:
        self.network.kill(consumer.name)
        self.consumers.remove(consumer)

    def kill_consumer(self, which: int, _: int) -> None:
        """A consumer dies; another one replaces it."""
        if self.consumers:
            consumer = self.consumers[which % len(self.consumers)]
            self._end(consumer)
            self._consume(consumer.worker, consumer.task)

    def supersede(self, which: int, _: int) -> None:
        """Another consumer takes over a task; the older one continues until it notices."""
        consumer = self.consumers[which % len(self.consumers)] if self.consumers else None
        if consumer is not None and len(self.consumers) < MOST_CONSUMERS:
            self._consume(consumer.worker, consumer.task)

    def deliver(self, which: int, count: int) -> None:
        """Data of one stream arrives."""
        self.network.deliver(which, count)

    def cut(self, which: int, keep: int) -> None:
        """A stream breaks."""
        self.network.sweep()
        if self.network.links:
            self.network.links[which % len(self.network.links)].cut(keep - 1, which % 3)

    def wait(self, _: int, much: int) -> None:
        """Time passes."""
        self.loop.pass_time((0.01, 0.3, 1.2)[much % 3])

    def flow(self, which: int, much: int) -> None:
        """Everything works, except perhaps the consumers of one worker."""
        self._flow(much - 1, which % 4)

    def _flow(self, rounds: int, idle: int = 0) -> None:
        """Run everything except the consumers of one worker."""
        for _ in range(rounds):
            moved = 0
            while moved < HOPS and self.network.deliver_all():
                moved += 1
            self._subscribe()
            for consumer in list(self.consumers):
                if consumer.worker != idle - 1:
                    self._take(consumer, 4)
                    self._done(consumer, keep=0)
            self.loop.pass_time(0.01 if moved else 0.3)
            self._look_at_drains()

    def _subscribe(self) -> None:
        """Make sure that every task has a consumer at the worker that is assigned to it."""
        served = {(consumer.worker, consumer.task) for consumer in self.consumers}
        for host in self.hosts:
            if host.worker is not None and host.version:
                for task in self.assignments[host.version - 1].tasks_of(f"w{host.number}"):
                    if (host.number, task) not in served:
                        self._consume(host.number, task)

    @rule(
        actions=st.lists(
            st.tuples(st.sampled_from(ACTIONS), st.integers(0, 29), st.integers(1, 3)),
            min_size=1,
            max_size=10,
        )
    )
    def work(self, actions: list[tuple[str, int, int]]) -> None:
        """All processes act, in any order, with faults."""
        for action, which, much in actions:
            if not (self.calm and action in FAULTS):
                getattr(self, action)(which, much)

    @invariant()
    def adds_up(self) -> None:
        """Every ledger balances, in every state, and nothing is dropped."""
        self._look_at_drains()
        for program in self.programs:
            ledger = program.sender.buffer.ledger()
            assert ledger.balanced, str(ledger)
            assert ledger.accepted == sum(program.offered.values())
            assert ledger.acknowledged == sum(program.settled.values())
            assert program.sender.buffer.failure is None, program.sender.buffer.failure
        for host in self.hosts:
            if host.worker is not None:
                ledger = host.worker.router.ledger()
                assert ledger.balanced, f"{host.process}: {ledger}"
                assert not sum(ledger.dropped.values()), f"{host.process}: {ledger}"

    def teardown(self) -> None:
        """After healing, everything settles, and every message has arrived."""
        if not hasattr(self, "programs"):
            return  # the machine never started
        try:
            self._heal()
        finally:
            self.network.kill_all()

    def _heal(self) -> None:
        until = self.loop.time() + HEAL_SECONDS
        newest = len(self.assignments)
        while not self._settled():
            assert self.loop.time() < until, self._stuck()
            for host in self.hosts:
                if host.worker is None:
                    self._restart(host, newest)
                self._tell(host, newest)
            self._flow(1)
            self.adds_up()
        for program in self.programs:
            for task in TASKS:
                missing = set(range(program.offered[task])) - self.lives[program.source, task].seen
                assert not missing, f"{program.source} to {task}: {sorted(missing)} are lost"

    def _settled(self) -> bool:
        if any(host.worker is None or host.draining is not None for host in self.hosts):
            return False
        if any(host.version < len(self.assignments) for host in self.hosts):
            return False
        workers = [host.worker for host in self.hosts if host.worker is not None]
        return not any(program.sender.buffer.pending_messages for program in self.programs) and not any(
            worker.router.pending_messages or worker.router.move_count for worker in workers
        )

    def _stuck(self) -> str:
        lines = [f"{program.source}: {program.sender.buffer.ledger()}" for program in self.programs]
        lines += [f"{host.process}: {host.worker and host.worker.status()}" for host in self.hosts]
        return "\n".join(["it does not settle:", *lines, *map(repr, self.network.links)])


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=settings().max_examples * 3 // 5,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_what_a_worker_did_not_take_stays_behind_what_it_passed_on() -> None:
    """Messages for a worker that shuts down follow the ones it forwarded, and do not wait for its restart."""
    for number in range(5):
        random.seed(number)  # for the delays between connection attempts
        cluster = Cluster()
        cluster.start("faults", [AckMode.QUEUED] * len(PROGRAMS), QUEUE_BYTES[0])
        for action, which, much in (
            *(("send", 0, 1), ("move", 8, 1), ("send", 8, 3), ("drain", 2, 1), ("flow", 0, 3)),
            *(("send", 19, 2), ("move", 0, 2), ("send", 0, 1), ("move", 0, 3), ("move", 5, 3)),
            *(("send", 0, 1), ("flow", 1, 2), ("move", 9, 2), ("flow", 1, 2), ("flow", 0, 2), ("move", 5, 1)),
        ):
            getattr(cluster, action)(which, much)
            cluster.adds_up()
        cluster.teardown()


def test_who_releases_for_one_that_has_ended_says_so_first() -> None:
    """A message waits for earlier messages, even after a worker that forwarded them has shut down."""
    cluster = Cluster()
    cluster.start("faults", [AckMode.QUEUED] * len(PROGRAMS), QUEUE_BYTES[-1])
    w0, w1, w2 = cluster.hosts
    for owner in (1, 2, 0):
        cluster._assign([owner, 1])
    cluster._tell(w0, 3)
    cluster._tell(w2, 4)
    cluster.send(4, 1)
    cluster._flow(4, idle=1)  # from w1 to w0, to w2, and back to w0
    cluster._tell(w1, 2)
    cluster.send(4, 1)
    cluster.drain(2, 1)
    cluster._flow(8, idle=1)
    assert w2.worker is None
    cluster.teardown()


@pytest.mark.skipif(not LONG, reason="takes many minutes; make property runs it")
def test_many_steps() -> None:
    """A long run in pieces; each piece is reproducible from its seed."""
    piece = settings(TestCluster.settings, max_examples=50, stateful_step_count=80, database=None)
    run_pieces(Cluster, piece, 200_000)
