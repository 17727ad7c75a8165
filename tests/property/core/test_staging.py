"""Each chosen row is seen once, for any order of staging attempts and publishing epochs."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuplewire.errors import EpochTooLargeError, ResourceLimitError, SequenceGapError, StagedDataLostError
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker.publications import Publications
from tuplewire_service.worker.stage_file import AttemptPart
from tuplewire_service.worker.staging import AttemptName, Placement, StagedGroup, Staging

PARTITIONS = 2
TASKS = 4
SINK = ("me", "s")


class File(AttemptPart):
    """A file of groups, without a disk."""

    def __init__(self) -> None:
        """Open nothing."""

    def close(self) -> None:
        """Do nothing."""


def rows(epoch: int, partition: int) -> list[TaskGroup]:
    """Return the rows that every attempt of a partition computes: several pieces, of one group each."""
    return [
        TaskGroup.of((epoch + partition + number) % TASKS, [f"{epoch}/{partition}/{number}".encode()])
        for number in range(partition + 3)
    ]


class Sink(RuleBasedStateMachine):
    """A driver, its attempts, and a worker that has little space.

    The driver publishes an epoch, perhaps repeatedly, once each partition has a complete attempt. It
    continues with the next epoch when no row is waiting. It may die, and start the epoch again. Attempts
    stage at any speed, some pieces twice, and some never to the end. Consumers receive any tasks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staging = Staging(1200, 400, 1e9)
        self.publications = Publications(2, 1000, lambda _: True, lambda: None)
        self.disk: list[TaskGroup] = []
        self.epoch = 0
        self.now = 0.0
        self.names = 0
        self.under_way: dict[str, tuple[int, int]] = {}
        self.whole: dict[int, AttemptName] = {}
        self.published = False
        self.seen: list[tuple[int, bytes]] = []
        self.queued: list[TaskGroup] = []

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def start(self, partition: int) -> None:
        self.names += 1
        self.under_way[f"a{self.names}"] = (partition, 0)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), again=st.booleans(), seconds=st.sampled_from([0.0, 100.0]))
    def stage(self, data: st.DataObject, again: bool, seconds: float) -> None:  # noqa: FBT001 - by name
        """Stage an attempt's next piece, or the last one again."""
        self.send(data.draw(st.sampled_from(sorted(self.under_way))), again=again, seconds=seconds)

    @rule()
    def compute(self) -> None:
        """Stage a complete attempt of each partition, if there is enough space."""
        for partition in range(PARTITIONS):
            self.start(partition)
            name = f"a{self.names}"
            for _ in rows(self.epoch, partition):
                if name in self.under_way:
                    self.send(name)

    def send(self, name: str, *, again: bool = False, seconds: float = 0.0) -> None:
        """Send an attempt's next piece, or the last one again."""
        partition, pieces = self.under_way[name]
        piece = pieces - 1 if again and pieces else pieces
        group = rows(self.epoch, partition)[piece]
        self.now += seconds
        what = SINK, self.epoch, AttemptName(partition, name, 0, 0), piece, [group], self.now
        try:
            placement, stage = self.staging.reserve(*what)
        except (SequenceGapError, EpochTooLargeError, ResourceLimitError):
            del self.under_way[name]  # its epoch was published, or it was removed for another one
            self.staging.discard(SINK, self.epoch, name)
            return
        if placement is Placement.DISK:
            stage.file = File()
            kept = StagedGroup.of(stage, group, (len(self.disk), 1))
            self.disk.append(group)
            assert self.staging.on_written(stage, [kept])
        if placement in {Placement.MEMORY, Placement.DISK}:
            pieces += 1
        self.under_way[name] = (partition, pieces)
        if pieces == len(rows(self.epoch, partition)):
            del self.under_way[name]
            self.whole[partition] = AttemptName(partition, name, pieces, pieces)

    @precondition(lambda self: len(self.whole) == PARTITIONS)
    @rule()
    def publish(self) -> None:
        """Publish the complete attempts; if one of them is lost, the epoch is computed again."""
        names = self.whole.values()
        new = [each for each in names if not self.publications.has_chosen(SINK, self.epoch, each.attempt_id)]
        self.publications.check_epoch(SINK, self.epoch)
        try:
            stages = self.staging.choose(SINK, self.epoch, new)
        except StagedDataLostError:
            self.die()
            return
        _, omitted = self.publications.choose(SINK, self.epoch, [each.attempt_id for each in new], stages)
        for staged in omitted:
            self.staging.free_group(staged)
        self.published = True
        self.pump()

    def pump(self) -> None:
        """Move rows that fit into the queues."""
        while taken := self.publications.pop_ready(60):
            for staged, _ in taken:
                group = self.disk[staged.offset] if staged.group is None else staged.group
                self.seen += [(group.task, payload) for payload in group.payloads()]
                self.queued.append(group)
                self.staging.free_group(staged)

    @rule()
    def die(self) -> None:
        """Start the epoch again, in another driver; attempts of the last one may continue for some time."""
        self.whole.clear()
        self.published = False

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        """Consume the first messages of some task."""
        task = data.draw(st.sampled_from(sorted({group.task for group in self.queued})))
        group = next(each for each in self.queued if each.task == task)
        self.queued.remove(group)
        self.publications.release(task, len(group), group.size_bytes)
        self.pump()

    @precondition(lambda self: self.published)
    @rule()
    def go_on(self) -> None:
        """Commit the epoch when no row is waiting, and all its rows were seen. Start the next one."""
        waiting = self.publications.progress_of(SINK, self.epoch)
        assert waiting is not None
        if waiting[0]:
            assert self.queued, "something waits, though the queues are empty"
            return
        assert sorted(self.seen) == sorted(
            (group.task, payload)
            for partition in range(PARTITIONS)
            for group in rows(self.epoch, partition)
            for payload in group.payloads()
        )
        self.seen.clear()
        self.epoch += 1
        self.under_way.clear()
        self.die()

    @invariant()
    def nothing_is_doubled(self) -> None:
        """No row is seen twice, and the used space is within its limits."""
        assert len(set(self.seen)) == len(self.seen)
        assert self.staging.memory_bytes <= 1200
        assert 0 <= self.staging.disk_bytes <= 400

    def teardown(self) -> None:
        """Check that all staging space is released."""
        while self.queued:
            group = self.queued.pop(0)
            self.publications.release(group.task, len(group), group.size_bytes)
            self.pump()
        self.staging.discard(SINK, self.epoch, "")
        self.staging.expire(1e12)
        assert (self.staging.memory_bytes, self.staging.disk_bytes) == (0, 0)


TestSink = Sink.TestCase
TestSink.settings = settings(stateful_step_count=80)
