"""What sinks publish: all of an epoch at once, and once for each task."""

from __future__ import annotations

import pytest

from tuplewire.errors import ResourceLimitError, SequenceGapError, StaleEpochError
from tuplewire.group import TaskGroup
from tuplewire_service.worker import publications
from tuplewire_service.worker.publications import IDLE_SECONDS, MOST_AHEAD, Publications, Sink


def group(task: int, *payloads: bytes) -> TaskGroup:
    """Return messages to a task."""
    return TaskGroup.of(task, list(payloads))


def sink(name: str, owner: str = "me") -> Sink:
    """Return a sink."""
    return owner, name


def publish(state: Publications, of: Sink, epoch: int, *groups: TaskGroup) -> list[TaskGroup]:
    """Publish an epoch in pieces of one group; return what is new."""
    for piece, each in enumerate(groups):
        state.add(of, epoch, piece, [each], 0.0)
    collected = state.collected(of)
    state.publish(of, collected)
    return collected


def test_an_epoch_is_published_once() -> None:
    """The same epoch again has nothing new; the next has, and another sink's."""
    state = Publications(1000)
    parts = [group(1, b"a"), group(2, b"b")]
    assert publish(state, sink("s"), 3, *parts) == parts
    assert publish(state, sink("s"), 3, *parts) == []
    assert publish(state, sink("s"), 4, *parts) == parts
    assert publish(state, sink("t"), 3, *parts) == parts


@pytest.mark.parametrize("epoch", [2, 3 + MOST_AHEAD + 1, 2**64 - 1])
def test_an_epoch_that_does_not_follow_is_refused(epoch: int) -> None:
    """Its rows or those of all later epochs would be taken for seen."""
    state = Publications(1000)
    publish(state, sink("s"), 3, group(1, b"a"))
    with pytest.raises(StaleEpochError):
        state.add(sink("s"), epoch, 0, [group(1, b"b")], 0.0)
    assert len(publish(state, sink("s"), 4, group(1, b"c"))) == 1


def test_sinks_have_owners() -> None:
    """Another's sink of the same name neither ends an open epoch nor goes on with its numbers."""
    state = Publications(1000)
    state.add(sink("s"), 1, 0, [group(1, b"a")], 0.0)
    assert len(publish(state, sink("s", "somebody"), MOST_AHEAD, group(1, b"x"))) == 1
    state.add(sink("s"), 1, 1, [group(1, b"b")], 0.0)
    assert [each.data for each in state.collected(sink("s"))] == [b"a", b"b"]


def test_a_task_that_comes_later_gets_its_part() -> None:
    """A task that an epoch did not have here before, as it has moved here meanwhile, is not left out."""
    state = Publications(1000)
    publish(state, sink("s"), 3, group(1, b"a"))
    late = group(2, b"b")
    assert publish(state, sink("s"), 3, group(1, b"a"), late) == [late]


def test_pieces_follow_each_other() -> None:
    """One that is missing is told; piece 0 begins anew, and the last one may come again."""
    state = Publications(1000)
    with pytest.raises(SequenceGapError, match="begin again with piece 0"):
        state.add(sink("s"), 1, 1, [], 0.0)
    state.add(sink("s"), 1, 0, [group(1, b"a")], 0.0)
    with pytest.raises(SequenceGapError):
        state.add(sink("s"), 1, 2, [], 0.0)
    with pytest.raises(SequenceGapError):
        state.add(sink("s"), 2, 1, [], 0.0)
    last = [group(1, b"b")]
    state.add(sink("s"), 1, 1, last, 0.0)
    state.add(sink("s"), 1, 1, last, 0.0)
    with pytest.raises(SequenceGapError):
        state.add(sink("s"), 1, 3, [], 0.0)
    assert [each.data for each in state.collected(sink("s"))] == [b"a", b"b"]
    state.add(sink("s"), 1, 0, [group(1, b"c")], 0.0)
    assert [each.data for each in state.collected(sink("s"))] == [b"c"]


def test_what_is_not_complete_is_bounded() -> None:
    """Over the limit an epoch is refused and forgotten, so that there is room for others."""
    state = Publications(150)
    state.add(sink("s"), 1, 0, [group(1, b"x" * 50)], 0.0)  # and 52 bytes for its length and the group
    with pytest.raises(ResourceLimitError, match="write less at once"):
        state.add(sink("t"), 1, 0, [group(1, b"x" * 50)], 0.0)
    with pytest.raises(ResourceLimitError):
        state.add(sink("s"), 1, 1, [group(1, b"")], 0.0)
    state.add(sink("t"), 1, 0, [group(1, b"x" * 50)], 0.0)
    assert len(publish(state, sink("t"), 1, group(1, b"x" * 50))) == 1


def test_what_nobody_goes_on_with_makes_room() -> None:
    """The epoch of a driver that has died does not keep others out for ever."""
    state = Publications(150)
    state.add(sink("dead"), 1, 0, [group(1, b"x" * 50)], 0.0)
    with pytest.raises(ResourceLimitError):
        state.add(sink("s"), 1, 0, [group(1, b"x" * 50)], IDLE_SECONDS)
    state.add(sink("s"), 1, 0, [group(1, b"x" * 50)], IDLE_SECONDS + 1)
    with pytest.raises(SequenceGapError):
        state.add(sink("dead"), 1, 1, [group(1, b"x")], IDLE_SECONDS + 2)


def test_what_nobody_consumes_is_bounded() -> None:
    """The last piece waits for consumers."""
    state = Publications(200)
    publish(state, sink("s"), 1, group(1, b"x" * 90, b""))  # and four bytes for each message
    state.add(sink("s"), 2, 0, [group(1, b"y" * 100)], 0.0)
    with pytest.raises(ResourceLimitError, match="try again later"):
        state.collected(sink("s"))
    state.release(1, 1, 0)
    assert len(state.collected(sink("s"))) == 1


def test_few_are_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many pairs of sink and task those are forgotten that published longest ago."""
    monkeypatch.setattr(publications, "MAX_REMEMBERED", 2)
    state = Publications(10_000)
    for name in ("a", "b", "a", "c"):
        publish(state, sink(name), 1, group(1, b"x"))
    publish(state, sink("a"), 2, group(1, b"x"))
    publish(state, sink("d"), 1, group(1, b"x"))
    publish(state, sink("e", "somebody"), 1, group(1, b"x"))
    assert publish(state, sink("a"), 2, group(1, b"x")) == []
    assert len(publish(state, sink("c"), 1, group(1, b"x"))) == 1
