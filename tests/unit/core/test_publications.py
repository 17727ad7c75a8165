"""Publications of sinks: messages are queued as space allows, and once per task."""

from __future__ import annotations

import pytest

from tuplewire.errors import StaleEpochError
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import SinkEpoch
from tuplewire.wire.translate import TaskContent, contents_to_wire
from tuplewire_service.worker import publications
from tuplewire_service.worker.assignment import MAX_STEP
from tuplewire_service.worker.publications import Publications
from tuplewire_service.worker.staging import Attempt, Sink, StagedGroup


class Tasks(set[int]):
    """The tasks that have a consumer, and a count of the notifications about free space."""

    told = 0

    def tell(self) -> None:
        self.told += 1


def made(messages: int = 1000, size_bytes: int = 100_000) -> Publications:
    """Return publications to queues with this capacity."""
    return Publications(messages, size_bytes, Tasks(range(10)).__contains__, lambda: None)


def sink(name: str, owner: str = "me") -> Sink:
    """Return a sink."""
    return owner, name


def stage(*groups: TaskGroup) -> Attempt:
    """Return an attempt in memory."""
    kept = Attempt(0, 0.0)
    kept.groups = [StagedGroup.of(kept, each) for each in groups]
    return kept


def group(task: int, *payloads: bytes) -> TaskGroup:
    """Return messages to a task."""
    return TaskGroup.of(task, list(payloads))


def taken(state: Publications) -> list[TaskGroup]:
    """Take the messages that fit."""
    return [each.group for each, _ in state.pop_ready(0) if each.group is not None]


def publish(state: Publications, of: Sink, epoch: int, *groups: TaskGroup) -> list[TaskGroup]:
    """Publish an epoch with one attempt; return the groups that are queued."""
    state.check_epoch(of, epoch)
    state.choose(of, epoch, [f"{epoch}"], [stage(*groups)])
    return taken(state)


@pytest.mark.parametrize("epoch", [2, 3 + MAX_STEP + 1, 2**64 - 1])
def test_an_epoch_that_does_not_follow_is_refused(epoch: int) -> None:
    """An epoch that is too old or too far ahead is refused, so no rows count as duplicates."""
    state = made()
    publish(state, sink("s"), 3, group(1, b"a"))
    with pytest.raises(StaleEpochError):
        state.check_epoch(sink("s"), epoch)
    assert len(publish(state, sink("s"), 4, group(1, b"c"))) == 1


def test_what_nobody_holds_waits() -> None:
    """Messages to an unassigned task wait until the task is assigned again."""
    tasks = Tasks([1])
    state = Publications(10, 1000, tasks.__contains__, tasks.tell)
    parts = [group(1, b"a"), group(2, b"b"), group(2, b"c")]
    assert publish(state, sink("s"), 1, *parts) == [parts[0]]
    assert state.progress_of(sink("s"), 1) == (2, [2])
    tasks.add(2)
    assert state.retry_waiting_tasks()
    state.put_back(state.pop_ready(0))
    assert state.progress_of(sink("s"), 1) == (2, [2])
    assert state.retry_waiting_tasks()
    assert taken(state) == parts[1:]


def test_few_are_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, the sinks with the oldest publications are forgotten."""
    monkeypatch.setattr(publications, "MAX_OWNER_ENTRIES", 4)
    state = made()
    for name in ("a", "b", "a", "c"):
        publish(state, sink(name), 1, group(1, b"x"))
    publish(state, sink("a"), 2, group(1, b"x"))
    publish(state, sink("d"), 1, group(1, b"x"))
    publish(state, sink("e", "somebody"), 1, group(1, b"x"))
    assert publish(state, sink("a"), 2, group(1, b"x")) == []
    assert len(publish(state, sink("c"), 1, group(1, b"x"))) == 1


def test_a_sink_with_waiting_messages_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, finished sinks are forgotten before a sink with waiting messages."""
    monkeypatch.setattr(publications, "MAX_OWNER_ENTRIES", 4)
    state = made(messages=1)
    state.choose(sink("waits"), 1, ["a"], [stage(group(1, b"x"), group(1, b"y"))])
    for name in ("second", "third"):
        state.choose(sink(name), 1, ["a"], [])
    assert state.progress_of(sink("waits"), 1) is not None


@pytest.mark.parametrize("most", [15, 20])
def test_few_bytes_are_read_from_files_at_a_time(most: int) -> None:
    """A call stops once it has read enough bytes, and the next call continues."""
    state = made()
    attempt = Attempt(0, 0.0)
    attempt.groups = [StagedGroup.of(attempt, group(1, b"x"), (10 * place, 10)) for place in range(5)]
    state.choose(sink("s"), 1, ["a"], [attempt])
    assert [len(state.pop_ready(most)) for _ in range(4)] == [2, 2, 1, 0]


def test_others_are_told_of_the_latest_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit on tasks, only the latest sinks are announced to other workers."""
    monkeypatch.setattr(publications, "MAX_OWNER_ENTRIES", 3)
    state = made()
    for name in ("old", "new"):
        publish(state, sink(name), 0, group(1, b"a"), group(2, b"b"))
        state.register_run(sink(name), 0, "run")
    assert [each.sink for each in state.reportable_epochs()] == ["new"]


def test_the_first_epoch_is_told_to_others() -> None:
    """Epoch 0 is announced; a sink that has published nothing is not."""
    state = made()
    state.register_run(sink("new"), 5, "run")
    publish(state, sink("s"), 0, group(1, b"a"))
    assert state.reportable_epochs() == []  # without a run, no other run requests the epoch
    state.register_run(sink("s"), 0, "run")
    assert [(each.sink, each.epoch, set(each.tasks)) for each in state.reportable_epochs()] == [("s", 0, {1})]


@pytest.mark.parametrize(("epoch", "tasks"), [(4, {1}), (5, {1, 2}), (6, {2})])
def test_what_a_worker_has_remembered_is_added(epoch: int, tasks: set[int]) -> None:
    """Reported tasks of the same epoch are added; an older epoch is ignored, a newer one replaces it."""
    state = made()
    publish(state, sink("s"), 5, group(1, b"a"))
    state.register_run(sink("s"), 5, "run")
    contents = contents_to_wire({2: TaskContent(1, 1, 7)})
    state.merge([SinkEpoch(identity="me", sink="s", epoch=epoch, tasks=[2], run="run", contents=contents)])
    (known,) = state.reportable_epochs()
    assert set(known.tasks) == tasks


def test_released_bytes_make_room_for_as_many() -> None:
    """Length fields count as bytes, both when messages are queued and when they are released."""
    state = made(size_bytes=100)
    fitting = 100 // (16 + 4)
    assert len(publish(state, sink("s"), 1, *[group(1, b"x" * 16)] * 20)) == fitting
    state.release(1, 3, 3 * 16)
    assert len(taken(state)) == 3
    for _ in range(20 - fitting - 3):
        state.release(1, 1, 16)
        assert len(taken(state)) == 1
    assert state.waiting_messages == 0
