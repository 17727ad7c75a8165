"""Reports of programs, and their parts."""

from __future__ import annotations

from tuplewire.wire import control_pb2 as pb


def counter(task: int, value: float, name: str = "orders", component: str = "bill") -> pb.MetricFamily:
    """Return a counter of a task."""
    family = pb.MetricFamily(
        name=f"tuplewire_user_{name}",
        help="Registered.",
        kind=pb.METRIC_KIND_COUNTER,
        label_names=["component", "task"],
    )
    family.samples.add(label_values=[component, str(task)], value=value)
    return family


def histogram(task: int) -> pb.MetricFamily:
    """Return a histogram of a task: one value of 2 in three buckets."""
    family = counter(task, 2, "sizes")
    family.kind = pb.METRIC_KIND_HISTOGRAM
    family.samples[0].bounds[:] = [1, 2]
    family.samples[0].counts[:] = [1, 0, 0]
    return family


def component(first_task: int, executed: int, busy: float = 0.0) -> pb.ComponentStatus:
    """Return a bolt with one executor, which has executed `executed` tuples."""
    executor = pb.ExecutorStatus(
        first_task=first_task, task_count=1, executed=executed, busy_seconds=busy, queued_tuples=7
    )
    read = pb.InputStatus(component="words", stream="default", executed=executed)
    return pb.ComponentStatus(
        component="count", kind="bolt", first_task=1, task_count=2, inputs=[read], executors=[executor]
    )


def report(
    *parts: pb.MetricFamily | pb.ComponentStatus,
    program: str = "p",
    version: int = 1,
    ended: bool = False,
    topology: str = "default",
    expected_worker_id: str = "a",
) -> pb.ReportProgramRequest:
    """Return a report with these metrics and components."""
    return pb.ReportProgramRequest(
        topology=topology,
        expected_worker_id=expected_worker_id,
        program=program,
        assignment_version=version,
        components=[each for each in parts if isinstance(each, pb.ComponentStatus)],
        metrics=[each for each in parts if isinstance(each, pb.MetricFamily)],
        ended=ended,
    )
