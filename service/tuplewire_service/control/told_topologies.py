"""What programs beside a worker tell of the topology whose executors they run, for the worker's status.

A program tells its counts each second. A status shows them as of a second before, between the last two that
were told: whoever looks in another rhythm sees them grow evenly, and can tell rates and shares by them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tuplewire.errors import MalformedError, ResourceLimitError
from tuplewire.wire import control_pb2 as pb

SILENT_SECONDS = 10.0
"""After so long without news, a program is taken for gone."""
MOST_BYTES = 1 << 20
"""Of all programs together: all of it is in each status."""
_MOST_COUNT = 1 << 53
"""Beyond, a float is not exact; nobody counts so far."""
_INPUT_COUNTS = ("executed",)
_EXECUTOR_COUNTS = ("emitted", "executed", "failed", "errors", "busy_seconds", "sending_seconds")


@dataclass(frozen=True, slots=True)
class _Told:
    """What a program has told. at: when, in seconds of the clock. size: in bytes."""

    at: float
    components: Sequence[pb.ComponentStatus]
    size: int


@dataclass(frozen=True, slots=True)
class _Program:
    """What a program has told last, and before."""

    now: _Told
    before: _Told

    def shown(self, at: float) -> Iterator[pb.ComponentStatus]:
        """Yield the components as of one of its seconds before."""
        took = self.now.at - self.before.at
        share = min(1.0, (at - self.now.at) / took) if took > 0 else 1.0
        then = {(each.component, each.first_task): each for each in self.before.components}
        for each in self.now.components:
            yield _between(then.get((each.component, each.first_task)), each, share)


class ToldTopologies:
    """Keeps it; for use on one thread. clock: in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._programs: dict[tuple[str, str], _Program] = {}

    def take(self, who: str, program: str, components: Sequence[pb.ComponentStatus]) -> None:
        """Take what a program has told; without components, it runs nothing any more.

        who: its identity. Raises ResourceLimitError where all that is told would be more than 1 MiB, and
        MalformedError for counts that cannot be.
        """
        self._forget()
        _check(components)
        known = self._programs.pop((who, program), None)
        if not components:
            return
        told = _Told(self._clock(), components, sum(each.ByteSize() for each in components))
        if told.size + sum(each.now.size for each in self._programs.values()) > MOST_BYTES:
            raise ResourceLimitError(
                f"the programs of this worker would tell more than {MOST_BYTES} bytes of their topologies: "
                "its status goes without this one"
            )
        self._programs[who, program] = _Program(told, told if known is None else known.now)

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add the components to a status; those of several programs count together."""
        self._forget()
        now = self._clock()
        added = {(each.component, each.first_task): each for each in status.components}
        for program in self._programs.values():
            for each in program.shown(now):
                at = each.component, each.first_task
                if at in added:
                    _add(added[at], each)
                else:
                    status.components.append(each)
                    added[at] = status.components[-1]

    def _forget(self) -> None:
        last = self._clock() - SILENT_SECONDS
        for key in [key for key, program in self._programs.items() if program.now.at < last]:
            del self._programs[key]


def _check(components: Sequence[pb.ComponentStatus]) -> None:
    for component in components:
        counts = [each.executed for each in component.inputs]
        counts += [getattr(each, name) for each in component.executors for name in _EXECUTOR_COUNTS]
        if not all(0 <= each <= _MOST_COUNT for each in counts):
            raise MalformedError(f"a count of component {component.component[:100]!r} is beyond all bounds")


def _between(then: pb.ComponentStatus | None, now: pb.ComponentStatus, share: float) -> pb.ComponentStatus:
    """Return a component as it was between two times. share: how much of the time between is over."""
    shown = pb.ComponentStatus()
    shown.CopyFrom(now)
    if then is not None:
        inputs = {(each.component, each.stream): each for each in then.inputs}
        for source in shown.inputs:
            _go_back(inputs.get((source.component, source.stream)), source, _INPUT_COUNTS, share)
        executors = {(each.first_task, each.tasks): each for each in then.executors}
        for executor in shown.executors:
            _go_back(executors.get((executor.first_task, executor.tasks)), executor, _EXECUTOR_COUNTS, share)
    return shown


def _go_back(
    then: pb.InputStatus | pb.ExecutorStatus | None,
    now: pb.InputStatus | pb.ExecutorStatus,
    names: Iterable[str],
    share: float,
) -> None:
    """Set counts back to what they were between two times; those that have fallen have begun anew."""
    for name in names if then is not None else ():
        last, grown = getattr(then, name), getattr(now, name) - getattr(then, name)
        if grown > 0:
            setattr(now, name, type(last)(last + grown * share))


def _add(component: pb.ComponentStatus, other: pb.ComponentStatus) -> None:
    """Add another program's executors of a component, and what they have executed."""
    component.executors.extend(other.executors)
    counts = {(each.component, each.stream): each for each in component.inputs}
    for each in other.inputs:
        if (found := counts.get((each.component, each.stream))) is not None:
            found.executed += each.executed
