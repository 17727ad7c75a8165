"""The current state of a topology as rows: components, edges between them, and executors. Pure.

A busy component that others wait for is slow. An executor without space for its output is blocked by one
downstream. Used by cluster_rows.py. Owns no state. Thread-safe. Source: the capacity in Storm's UI, and the
backpressure in Flink's. Design: docs/design/status.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.columns import Column, Row, format_number, format_share
from tuplewire_service.command.viewer.rates import Interval

BUSY_SHARE = 0.8  # the share of its time from which an executor counts as at its limit
BLOCKED_SHARE = 0.2  # the share of its time from which an executor counts as blocked
_WAITING_QUEUE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ExecutorRow(Row):
    """An executor. `busy` and `blocked` are shares of its time, `full` of its queue, 0 to 1."""

    ORDER = ("busy", "blocked")
    component: Annotated[str, Column("component")]
    worker: Annotated[str, Column("worker")]
    first_task: Annotated[int, Column("first task")]
    task_count: Annotated[int, Column("tasks", format_number)]
    executed_rate: Annotated[float | None, Column("in/s", format_number)]
    emitted_rate: Annotated[float | None, Column("out/s", format_number)]
    busy: Annotated[float, Column("busy", format_share)]
    blocked: Annotated[float, Column("blocked", format_share)]
    queued_tuples: Annotated[int, Column("waiting", format_number)]
    full: Annotated[float, Column("full", format_share)]
    pending_tuples: Annotated[int, Column("in flight", format_number)]
    failed: Annotated[int, Column("failed", format_number)]
    errors: Annotated[int, Column("errors", format_number)]


@dataclass(frozen=True, slots=True)
class ComponentRow(Row):
    """A spout or bolt on all workers. `busy`, `blocked` and `full` are the maxima of its executors.

    `blocking` is the share of the last seconds with a task that blocked senders. `is_slow`: others wait.
    """

    component: str
    kind: str
    first_task: int
    task_count: int
    executors: int
    workers: Sequence[str]
    executed_rate: float | None
    emitted_rate: float | None
    busy: float
    blocked: float
    full: float
    queued_tuples: int
    failed: int
    errors: int
    blocking: float
    is_slow: bool


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """A subscription of a component, with the total rate of all workers."""

    source: str
    target: str
    stream: str
    grouping: str
    rate: float | None


StatusInterval = tuple[pb.GetStatusResponse, Interval]  # a worker's status, and the interval before it


def executor_rows(now: pb.GetStatusResponse, interval: Interval) -> Iterator[ExecutorRow]:
    """Yield the executors of a worker."""
    before = {
        (each.component, executor.first_task, executor.task_count): executor
        for each in interval.previous.components
        for executor in each.executors
    }
    for component in now.components:
        for each in component.executors:
            at = component.component, each.first_task, each.task_count
            then = before.get(at, pb.ExecutorStatus())
            yield ExecutorRow.from_message(
                each,
                component=component.component,
                worker=now.worker_id,
                executed_rate=interval.rate(each.executed, then.executed),
                emitted_rate=interval.rate(each.emitted, then.emitted),
                busy=interval.share(each.busy_seconds, then.busy_seconds),
                blocked=interval.share(each.sending_seconds, then.sending_seconds),
                full=min(1.0, each.queued_tuples / each.queue_capacity) if each.queue_capacity else 0.0,
            )


def edge_rows(workers: Sequence[StatusInterval]) -> list[EdgeRow]:
    """Return the edges of the topology, with the total rate of each on all workers."""
    edges: dict[tuple[str, str, str, str], float | None] = {}
    for now, interval in workers:
        before = {
            (each.component, source.component, source.stream): source.executed
            for each in interval.previous.components
            for source in each.inputs
        }
        for each in now.components:
            for source in each.inputs:
                edge = source.component, each.component, source.stream, source.grouping
                then = before.get((each.component, source.component, source.stream), 0)
                edges[edge] = _sum([edges.get(edge), interval.rate(source.executed, then)])
    return [EdgeRow(*edge, rate) for edge, rate in edges.items()]


def component_rows(
    workers: Sequence[StatusInterval], executors: Iterable[ExecutorRow], blocking: Mapping[int, float]
) -> list[ComponentRow]:
    """Return the components of the topology, in its order. `blocking` is by task; see TaskRow."""
    known = {each.component: each for now, _ in workers for each in now.components}
    by_component: dict[str, list[ExecutorRow]] = {name: [] for name in known}
    for row in executors:
        by_component[row.component].append(row)
    held = {name for name, rows in by_component.items() if _max_of(rows, "blocked") >= BLOCKED_SHARE}
    return [_component(each, by_component[name], held, blocking) for name, each in known.items()]


def _component(
    component: pb.ComponentStatus, rows: Sequence[ExecutorRow], held: set[str], blocking: Mapping[int, float]
) -> ComponentRow:
    tasks = range(component.first_task, component.first_task + component.task_count)
    blocks = max((share for task, share in blocking.items() if task in tasks), default=0.0)
    busy, blocked, full = (_max_of(rows, each) for each in ("busy", "blocked", "full"))
    # A busy component is slow only if tuples or other components wait for it. A component that blocks others
    # and is not blocked itself is slow even if it is not busy.
    waited_for = full >= _WAITING_QUEUE_SHARE or any(each.component in held for each in component.inputs)
    return ComponentRow.from_message(
        component,
        executors=len(rows),
        workers=sorted({each.worker for each in rows}),
        executed_rate=_sum(each.executed_rate for each in rows),
        emitted_rate=_sum(each.emitted_rate for each in rows),
        busy=busy,
        blocked=blocked,
        full=full,
        queued_tuples=sum(each.queued_tuples for each in rows),
        failed=sum(each.failed for each in rows),
        errors=sum(each.errors for each in rows),
        blocking=blocks,
        is_slow=(busy >= BUSY_SHARE and (waited_for or blocks > 0))
        or (blocks > 0 and blocked < BLOCKED_SHARE),
    )


def slow_component_problems(
    components: Sequence[ComponentRow], edges: Sequence[EdgeRow], executors: Sequence[ExecutorRow]
) -> Iterator[str]:
    """Yield a sentence for each slow component at its limit, the busiest first."""
    by_name = {each.component: each for each in components}
    at_limit = [each for each in components if each.is_slow and each.busy >= BUSY_SHARE]
    for slow in sorted(at_limit, key=lambda each: -each.busy):
        its_executors = [each for each in executors if each.component == slow.component]
        worst = max(its_executors, key=lambda each: each.busy)
        last_task = worst.first_task + worst.task_count - 1
        tasks = f"task {last_task}" if worst.task_count == 1 else f"tasks {worst.first_task} to {last_task}"
        sources = {edge.source for edge in edges if edge.target == slow.component}
        waiting = sorted(
            (by_name[each] for each in sources if each in by_name and by_name[each].blocked >= BLOCKED_SHARE),
            key=lambda each: -each.blocked,
        )
        whom = ", ".join(f"{each.component}, which waits for {each.blocked:.0%} of it" for each in waiting)
        yield (
            f"{slow.kind} {slow.component} is slow: its executor of {tasks} at {worst.worker} is "
            f"busy for {worst.busy:.0%} of its time, {slow.queued_tuples:,} tuples wait"
            f"{f', and it blocks {whom}' if whom else ''}"
        )


def component_of(task: int, components: Iterable[ComponentRow]) -> str:
    """Return the component of a task; an empty string if it is unknown."""
    return next((each.component for each in components if 0 <= task - each.first_task < each.task_count), "")


def _max_of(rows: Iterable[ExecutorRow], name: str) -> float:
    return max((getattr(each, name) for each in rows), default=0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if all are unknown."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None
