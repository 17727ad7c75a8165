"""A topology from two samples of its workers: slow components, blocked components, and edge rates."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.cluster_rows import ClusterRows, cluster_rows
from tuplewire_service.command.viewer.rates import Interval, WorkerSample


class Did(NamedTuple):
    """The activity of an executor within ten seconds."""

    tuples: int = 0
    busy: float = 0.0
    sending: float = 0.0
    queued: int = 0


def status(
    worker: str, *, after: bool, words: Did | None = None, count: Did | None = None
) -> pb.GetStatusResponse:
    """Return a worker with an executor of each given component, before or after ten seconds."""
    now = pb.GetStatusResponse(
        worker_id=worker,
        incarnation=1,
        state=pb.WORKER_STATE_READY,
        state_seconds={"idle": 20.0 if after else 10.0},
    )
    now.components.add(component="words", kind="spout", first_task=3, task_count=1)
    now.components.add(component="count", kind="bolt", first_task=1, task_count=2)
    now.components[1].inputs.add(component="words", stream="default", grouping="fields")
    for component, did in zip(now.components, (words, count), strict=True):
        if did is not None:
            component.executors.add(
                first_task=component.first_task,
                task_count=1,
                emitted=1000 + did.tuples * after if component.kind == "spout" else 0,
                executed=1000 + did.tuples * after if component.kind == "bolt" else 0,
                busy_seconds=50 + did.busy * after,
                sending_seconds=50 + did.sending * after,
                queued_tuples=did.queued,
                queue_capacity=100,
            )
            if component.inputs:
                component.inputs[0].executed = component.executors[0].executed
    return now


def look(worker: str, words: Did | None = None, count: Did | None = None) -> WorkerSample:
    """Return a sample of a worker, with the sample before."""
    now, before = (status(worker, after=after, words=words, count=count) for after in (True, False))
    return WorkerSample(worker, "", now, before)


def test_an_input_that_nobody_knows() -> None:
    """A component may report an input from an unreported component; the others are shown."""
    sample = look("a", Did(5, 0.1), Did(100, 9.9, queued=90))
    for told in (sample.status, sample.previous):
        assert told is not None
        told.components[1].inputs.add(component="gone", stream="default", grouping="shuffle")
    assert {each.component for each in cluster_rows([sample]).components} == {"words", "count"}


def looked(words: Did, count: Did) -> ClusterRows:
    """Return the rows of two workers: both run the bolt, and the first one runs a fast executor of it."""
    return cluster_rows([look("a", words, Did(5, 0.1)), look("b", count=count)])


def test_a_slow_bolt_is_named_with_whom_it_holds_up() -> None:
    """A slow bolt is always busy, and its senders wait for it."""
    rows = looked(Did(100, sending=9.3), Did(95, busy=9.8, queued=40))
    (said,) = rows.problems
    assert said == (
        "bolt count is slow: its executor of task 1 at b is busy for 98% of its time, 40 tuples wait, and it "
        "blocks words, which waits for 93% of it"
    )
    words, count = rows.components
    assert (words.is_slow, words.emitted_rate, words.workers) == (False, 10, ["a"])
    assert (count.is_slow, count.executed_rate, count.workers) == (True, 10, ["a", "b"])
    assert [words.blocked, count.busy] == pytest.approx([0.93, 0.98])
    assert [(each.source, each.target, each.grouping, each.rate) for each in rows.edges] == [
        ("words", "count", "fields", 10)
    ]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (Did(100), Did(95, busy=9.8)),  # it is busy, and no sender waits
        (Did(100, sending=9.3), Did(95, busy=1.0)),  # a sender waits, for something else
    ],
)
def test_nobody_else_is_called_slow(words: Did, count: Did) -> None:
    """A busy bolt that keeps up is not slow, and neither is an idle one if senders wait for another."""
    assert not looked(words, count).problems


def test_a_full_queue_is_enough() -> None:
    """A full queue suffices, because a spout with a pending limit never waits for space."""
    assert looked(Did(100), Did(95, busy=9.0, queued=80)).problems == [
        "bolt count is slow: its executor of task 1 at b is busy for 90% of its time, 80 tuples wait"
    ]


def test_who_is_held_up_itself_is_not_the_culprit() -> None:
    """A bolt that blocks others because it is blocked downstream is not slow."""
    sample = look("a", count=Did(20, sending=9.0))
    assert sample.status is not None
    sample.status.tasks.add(task=2, subscribed=True)
    sample.status.blocking.add(task="2", place="local", seconds=9, recent_seconds=5)
    sample.status.recent.interval_seconds = 5
    rows = cluster_rows([sample])
    assert (rows.components[1].blocking, rows.components[1].is_slow, rows.problems) == (1.0, False, [])


def test_an_executor_that_came_meanwhile_counts_from_nothing() -> None:
    """A new executor counts from zero, and a single sample has no rates."""
    now = status("a", after=True, count=Did(20, busy=9.0))
    rows = cluster_rows([WorkerSample("a", "", now, status("a", after=False))])
    assert rows.executors[0].executed_rate == 102
    alone = cluster_rows([WorkerSample("a", "", now)])
    assert (alone.executors[0].executed_rate, alone.edges[0].rate) == (None, None)
    assert alone.components[0].busy == 0.0


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.5), (0.25, 0.25), (0.99, 2.98), (1.0, 3.0)])
def test_times_are_interpolated_within_buckets(share: float, seconds: float) -> None:
    """Only times since the previous sample count; times beyond the last bound count as that bound."""
    before = pb.GetStatusResponse(incarnation=1, state_seconds={"idle": 1.0})
    now = pb.GetStatusResponse(incarnation=1, state_seconds={"idle": 2.0})
    then = pb.Latency(bound_seconds=[1, 3], counts=[1000, 0, 0])
    latest = pb.Latency(bound_seconds=[1, 3], counts=[1100, 0, 0] if share <= 0.5 else [1000, 100, 0])
    assert Interval(before, now).quantile(share, latest, then) == pytest.approx(seconds)
    beyond = Interval(before, now).quantile(0.9, pb.Latency(bound_seconds=[1, 3], counts=[1000, 0, 7]), then)
    assert beyond == 3
    assert Interval(before, now).quantile(0.9, then, then) is None
    assert Interval(None, now).quantile(0.9, latest, then) is None
