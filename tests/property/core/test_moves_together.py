"""Messages that were in a queue together all reach the new owner of the task, without any consumer.

Such messages are, for example, a micro-batch of Spark: it is acknowledged only after all of it has been read.
No message may therefore wait for the consumption of another, in any overlap of moves. Workers are real; the
network is in memory (helpers/memory_network.py), and the test controls its deliveries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from helpers.hand_loop import HandLoop
from helpers.memory_network import Network
from helpers.moving_parts import (
    FIRST_SOURCE,
    TOPOLOGY,
    Program,
    address_of,
    numbered,
    numbers_in,
    start_worker,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tuplewire.settings.config import AckMode
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

WORKERS = range(4)
TASK = 1
QUEUE_BYTES = 400
MOST_PROGRAMS = 8

Message = tuple[int, int]
"""A source and a number."""


class Cluster:
    """Workers that own a task in turn, each with a program that sends to it, and no consumer."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.network = Network(self.loop)
        self.assignments: list[Assignment] = []
        self.told = [0 for _ in WORKERS]
        self.together: list[set[Message]] = []
        """The contents of the task's queue at some moments: one planned micro-batch each."""
        self.workers = [
            self.loop.inside(partial(start_worker, self.network, at, 1, QUEUE_BYTES), f"w{at}")
            for at in WORKERS
        ]
        self.move(0)
        for at in WORKERS:
            self.tell(at)
        self.settle()
        self.programs: list[Program] = []
        for at in WORKERS:
            self.new_program(at)

    def new_program(self, at: int) -> None:
        """Start a program at a worker; its source is the next number."""

        def start() -> Program:
            program = Program(len(self.programs), self.network, AckMode.QUEUED, at)
            self.programs.append(program)
            return program

        self.loop.inside(start, f"p{len(self.programs)}")

    def move(self, owner: int) -> None:
        """Make an assignment of the task to a worker, without notifying any worker."""
        workers = tuple(
            AssignedWorker(f"w{at}", address_of(at), (TASK,) if at == owner else ()) for at in WORKERS
        )
        self.assignments.append(Assignment(len(self.assignments) + 1, TOPOLOGY, workers))

    def tell(self, at: int) -> None:
        """Send a worker the newest assignment."""
        if self.told[at] < len(self.assignments):
            self.told[at] = len(self.assignments)
            self.loop.inside(lambda: self.workers[at].update_assignment(self.assignments[-1]), f"w{at}")

    def send(self, number: int, count: int) -> None:
        """Send some messages from a program, if it has buffer space."""
        program = self.programs[number % len(self.programs)]
        group = numbered(TASK, program.source, program.offered[TASK], count, padding=count)
        if self.loop.inside(
            lambda: program.sender.buffer.offer([group]), f"p{program.source - FIRST_SOURCE}"
        ):
            program.offered[TASK] += count

    def queue(self, at: int) -> list[Message]:
        """Return a worker's messages in the task's queue, in order; empty if it does not have the task."""
        queue = self.workers[at].router.queues.by_task.get(TASK)
        found: list[Message] = []
        for each in queue.log.iter_entries() if queue is not None else ():
            assert each.group.source is not None
            found += [(each.group.source, number) for number in numbers_in(each.group)]
        return found

    def plan(self, at: int) -> None:
        """Record the current contents of the task's queue."""
        if self.told[at] == len(self.assignments) and (planned := self.queue(at)):
            self.together.append(set(planned))

    def settle(self) -> None:
        """Deliver everything and advance the clock, until nothing happens."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.network.deliver_all() else quiet + 1
            self.loop.pass_time(0.02)

    def check(self) -> None:
        """Check that all messages of a planned micro-batch are at the task's owner, in order."""
        for at in WORKERS:
            self.tell(at)
        self.settle()
        there = self.queue(next(at for at in WORKERS if self.assignments[-1].tasks_of(f"w{at}")))
        assert len(set(there)) == len(there)
        of_source: defaultdict[int, list[int]] = defaultdict(list)
        for source, number in there:
            of_source[source].append(number)
        for source, numbers in of_source.items():
            assert numbers == list(range(len(numbers))), f"source {source}: {numbers}"
        for planned in self.together:
            lacking = planned.difference(there)
            assert not lacking, f"{sorted(lacking)} wait for others; {there}"

    def step(self, kind: str, which: int, much: int) -> None:
        at = which % len(WORKERS)
        if kind == "deliver":
            self.network.deliver(which, much)
        elif kind == "tell":
            self.tell(at)
        elif kind == "send":
            self.send(which, much * 2)
        elif kind == "move":
            self.move(at)
        elif kind == "all":
            self.settle()
        elif kind == "plan":
            self.plan(at)
        elif len(self.programs) < MOST_PROGRAMS:
            self.new_program(at)


KINDS = [*["deliver"] * 5, *["tell"] * 3, *["send"] * 2, "move", "all", "plan", "program"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 29), st.integers(1, 3)), min_size=1, max_size=120
)

PARTED = [
    *[("send", 5, 3), ("program", 12, 1), ("send", 15, 2), ("move", 18, 2), ("tell", 16, 3), ("send", 4, 2)],
    *[("tell", 18, 3), ("tell", 27, 3), ("tell", 17, 1), ("all", 16, 3), ("plan", 6, 2), ("move", 28, 2)],
    *[("program", 18, 1), ("tell", 22, 1), ("deliver", 13, 2), ("move", 14, 1)],
    *[("tell", 20, 3), ("move", 3, 3)],
]
"""A worker receives half of a queue, is notified of the next move, and then receives the other half."""
LITTLE_CREDIT = [
    *[("program", 24, 3), ("program", 17, 1), ("send", 16, 2), ("send", 4, 3), ("program", 13, 2)],
    *[("send", 14, 3), ("all", 24, 3), ("plan", 28, 1), ("move", 25, 1)],
]
"""The new owner has more senders, and gives each less credit than the previous owner."""


def run(steps: Sequence[tuple[str, int, int]]) -> None:
    """Run these steps, and check that messages that were together are still together."""
    cluster = Cluster()
    try:
        for each in steps:
            cluster.step(*each)
        cluster.check()
    finally:
        cluster.network.kill_all()


@example(steps=PARTED)
@example(steps=LITTLE_CREDIT)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(steps=STEPS)
def test_what_was_together_comes_together(steps: list[tuple[str, int, int]]) -> None:
    """Moves may overlap in any way, also there and back, while messages are in flight between workers."""
    run(steps)
