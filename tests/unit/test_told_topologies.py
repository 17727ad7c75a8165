"""What programs tell of their executors: looks in any rhythm see counts that grow evenly."""

from __future__ import annotations

import math

import pytest

from tuplewire.errors import MalformedError, ResourceLimitError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.control.told_topologies import MOST_BYTES, SILENT_SECONDS, ToldTopologies


class Clock:
    """One that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def count(first_task: int, executed: int, busy: float = 0.0) -> list[pb.ComponentStatus]:
    """Return a bolt with one executor, which has executed so many tuples."""
    return [
        pb.ComponentStatus(
            component="count",
            kind="bolt",
            first_task=1,
            tasks=2,
            inputs=[pb.InputStatus(component="words", stream="default", executed=executed)],
            executors=[
                pb.ExecutorStatus(
                    first_task=first_task, tasks=1, executed=executed, busy_seconds=busy, queued_tuples=7
                )
            ],
        )
    ]


def shown(told: ToldTopologies) -> list[pb.ComponentStatus]:
    """Return what a status has of it."""
    status = pb.GetStatusResponse()
    told.add_to(status)
    return list(status.components)


def test_counts_grow_evenly_between_news() -> None:
    """A status is as of a second before: half of a second's work after half a second."""
    clock = Clock()
    told = ToldTopologies(clock)
    told.take("", "one", count(1, 100, 10.0))
    assert shown(told)[0].executors[0].executed == 100
    clock.now += 1
    told.take("", "one", count(1, 300, 11.0))
    seen = []
    for _ in range(4):
        (component,) = shown(told)
        (executor,) = component.executors
        assert component.inputs[0].executed == executor.executed
        assert executor.queued_tuples == 7
        seen.append((executor.executed, executor.busy_seconds))
        clock.now += 0.5
    assert seen == [(100, 10.0), (200, 10.5), (300, 11.0), (300, 11.0)]


def test_a_count_that_has_fallen_has_begun_anew() -> None:
    """So it is after a restart: nothing of the one before is mixed in."""
    clock = Clock()
    told = ToldTopologies(clock)
    told.take("", "one", count(1, 100))
    clock.now += 1
    told.take("", "one", count(1, 4))
    assert shown(told)[0].executors[0].executed == 4


def test_programs_count_together() -> None:
    """Two beside one worker: a component once, with the executors of both."""
    told = ToldTopologies(Clock())
    told.take("", "one", count(1, 100))
    told.take("", "two", count(2, 50))
    told.take("token other", "one", count(2, 1))
    (component,) = shown(told)
    assert [each.executed for each in component.executors] == [100, 50, 1]
    assert component.inputs[0].executed == 151


def test_who_ends_or_falls_silent_is_forgotten() -> None:
    """By its own word at once, and else after ten seconds."""
    clock = Clock()
    told = ToldTopologies(clock)
    told.take("", "one", count(1, 1))
    told.take("", "two", count(2, 1))
    told.take("", "one", [])
    assert [each.first_task for each in shown(told)[0].executors] == [2]
    clock.now += SILENT_SECONDS
    assert shown(told)
    clock.now += 0.1
    assert not shown(told)


def test_there_is_a_bound() -> None:
    """A status is never more than so much larger; who tells less is taken again."""
    told = ToldTopologies(Clock())
    large = [pb.ComponentStatus(component="x" * (MOST_BYTES // 2))]
    told.take("", "one", large)
    told.take("", "one", large)
    with pytest.raises(ResourceLimitError, match="goes without this one"):
        told.take("", "two", large)
    told.take("", "two", count(1, 1))
    assert len(shown(told)) == 2


@pytest.mark.parametrize(("executed", "busy"), [(1 << 60, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_counts_that_cannot_be_are_refused(executed: int, busy: float) -> None:
    """They would spoil each status, and the page's JSON."""
    told = ToldTopologies(Clock())
    with pytest.raises(MalformedError, match="component 'count'"):
        told.take("", "one", count(1, executed, busy))
    assert not shown(told)
