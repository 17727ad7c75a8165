"""A task gets each epoch of a sink once, in any order of moves, shutdowns and failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuplewire.errors import StagedDataLostError
from tuplewire.values.group import TaskGroup
from tuplewire.wire.translate import TaskContent
from tuplewire_service.worker.publications import Publications
from tuplewire_service.worker.staging import AttemptName, Staging

TASKS = 4
SINK = ("me", "s")


@dataclass
class Worker:
    """One worker: its staged rows, and its memory of epochs. After its end, its peers no longer reach it."""

    staging: Staging = field(default_factory=lambda: Staging(1 << 20, 0, 1e9))
    publications: Publications = field(
        default_factory=lambda: Publications(1 << 20, 1 << 30, lambda _: True, lambda: None)
    )


@dataclass
class Run:
    """A driver: the epoch's rows that it has staged, by worker, and its knowledge of earlier runs."""

    name: str
    staged: dict[int, AttemptName] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)
    earlier: dict[int, TaskContent] | None = None
    """The tasks that earlier runs have published; None: unknown."""


class Sinks(RuleBasedStateMachine):
    """Drivers, one after the other, and workers that start and stop.

    A driver stages the rows of each task at its worker, requests a publish from one worker after the other,
    and then continues with the next epoch. It may die at any moment; a publish of it may still be in flight
    when the next driver works. Tasks move at any moment. A worker that shuts down notifies all others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[int, Worker] = {0: Worker(), 1: Worker()}
        self.owner = dict.fromkeys(range(TASKS), 0)
        self.names = 2
        self.epoch = 0
        self.run = Run("r0")
        self.late: list[tuple[int, Run]] = []
        self.seen: list[tuple[int, int]] = []

    def name(self) -> int:
        self.names += 1
        return self.names

    @rule(task=st.integers(0, TASKS - 1), data=st.data())
    def move(self, task: int, data: st.DataObject) -> None:
        self.owner[task] = data.draw(st.sampled_from(sorted(self.workers)))

    @rule()
    def come(self) -> None:
        if len(self.workers) < 4:
            self.workers[self.name()] = Worker()

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Shut down a worker cleanly: its tasks move, its rows are published, and peers learn its epochs."""
        number = data.draw(st.sampled_from(sorted(self.workers)))
        if number in self.run.staged and number not in self.run.published:
            return  # it waits for the driver
        gone = self.workers.pop(number)
        others = sorted(self.workers)
        for task, at in self.owner.items():
            if at == number:
                self.owner[task] = others[task % len(others)]
        for each in self.workers.values():
            each.publications.merge(gone.publications.reportable_epochs())
        self.late = [(at, run) for at, run in self.late if at != number]

    @precondition(lambda self: not self.run.staged)
    @rule()
    def stage(self) -> None:
        """Compute the epoch: each task's row is staged at the task's worker."""
        places: dict[int, list[int]] = {}
        for task, at in self.owner.items():
            places.setdefault(at, []).append(task)
        for at, tasks in places.items():
            attempt = AttemptName(0, f"a{self.name()}", len(tasks), 1)
            groups = [TaskGroup.of(task, [b"%d" % self.epoch]) for task in tasks]
            self.workers[at].staging.reserve(SINK, self.epoch, attempt, 0, groups, 0.0)
            self.run.staged[at] = attempt

    @precondition(lambda self: self.run.staged.keys() - self.run.published)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """Publish at one more worker; if none of the epoch's workers knows this run, take over first."""
        at = data.draw(st.sampled_from(sorted(self.run.staged.keys() - self.run.published)))
        if self.run.earlier is None:
            if any(
                self.workers[each].publications.is_current_run(SINK, self.run.name)
                for each in self.run.staged
            ):
                self.run.earlier = {}
            else:
                self.take_over(data.draw(st.permutations(sorted(self.workers.keys() - self.run.staged))))
        try:
            self.publish_at(at, self.run)
        except StagedDataLostError:  # a late publish of an earlier driver has removed this run's attempts
            self.run = Run(f"r{self.name()}")
            return
        self.run.published.add(at)

    def take_over(self, others: list[int]) -> None:
        """Register the run at the epoch's workers, then at others until one knows an earlier epoch of it."""
        self.run.earlier = {}
        continues = False
        for number in (*self.run.staged, *others):
            if continues and number not in self.run.staged:
                self.run.earlier = {}
                return
            each, kept = self.workers[number], set[str]()
            if number in self.run.staged:
                kept = {self.run.staged[number].attempt_id}
            each.publications.check_epoch(SINK, self.epoch)
            each.staging.keep_only(SINK, self.epoch, kept)
            continues |= each.publications.has_earlier_epoch(SINK, self.epoch, self.run.name)
            self.run.earlier |= each.publications.register_run(SINK, self.epoch, self.run.name)

    def publish_at(self, at: int, run: Run) -> None:
        worker = self.workers[at]
        name = run.staged[at]
        if worker.publications.has_chosen(SINK, self.epoch, name.attempt_id):
            return
        stages = worker.staging.choose(SINK, self.epoch, [name])
        earlier = run.earlier or {}
        _, omitted = worker.publications.choose(
            SINK, self.epoch, [name.attempt_id], stages, run.name, earlier
        )
        for staged in omitted:
            worker.staging.free_group(staged)
        for staged, _ in worker.publications.pop_ready(0):
            self.seen.append((self.epoch, staged.task))
            worker.staging.free_group(staged)

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Start another driver; a publish of the previous one may still be in flight."""
        open_ = sorted(self.run.staged.keys() - self.run.published)
        if open_ and self.run.earlier is not None and data.draw(st.booleans()):
            self.late.append((data.draw(st.sampled_from(open_)), self.run))
        self.run = Run(f"r{self.name()}")

    @precondition(lambda self: self.late)
    @rule()
    def come_late(self) -> None:
        """Deliver a publish of a dead driver."""
        at, run = self.late.pop()
        try:
            self.publish_at(at, run)
        except StagedDataLostError:
            return
        # It was in time: the current run had not taken over yet.
        assert self.run.earlier is None or not self.run.staged

    @precondition(lambda self: self.run.staged and not self.run.staged.keys() - self.run.published)
    @rule()
    def go_on(self) -> None:
        """Start the next epoch: each task has received this one."""
        assert sorted(task for epoch, task in self.seen if epoch == self.epoch) == list(range(TASKS))
        self.epoch += 1
        self.late.clear()
        self.run = Run(self.run.name)

    @invariant()
    def nothing_is_doubled(self) -> None:
        """No task has an epoch twice."""
        assert len(set(self.seen)) == len(self.seen)

    def teardown(self) -> None:
        """Check that all staging space is released."""
        for each in self.workers.values():
            each.staging.expire(1e12)
            assert each.staging.memory_bytes == 0


TestSinks = Sinks.TestCase
TestSinks.settings = settings(stateful_step_count=60)
