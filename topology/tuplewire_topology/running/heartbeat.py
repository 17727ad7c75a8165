"""The heartbeats of a worker and its executors: a file, a snapshot, and a log entry for what is stuck.

Source: Storm's `WorkerState` heartbeats, `LSWorkerHeartbeat` and `LocalState`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from tuplewire.identity.files import write_atomically
from tuplewire.text.events import event_logger
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.statistics import CallWatch

logger = event_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutorBeat:
    """What an executor is doing. Times are in seconds.

    task: the one whose turn it is. doing: see `Doing`. call_seconds: how long it has been within one call of
    the user's code; 0 when it is in none. turned_seconds: how long ago its loop last began anew. stuck:
    whether the call takes longer than nimbus.task.timeout.secs.
    """

    component: str
    tasks: range
    task: int
    doing: str
    call_seconds: float
    turned_seconds: float
    stuck: bool

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.component!r} has been in {self.doing}() for {self.call_seconds:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """What a worker is doing. time: of the beat, in seconds since 1970. not_ready: empty when it is ready."""

    time: float
    topology_id: str
    process_id: int
    uptime_seconds: float
    not_ready: str
    executors: Sequence[ExecutorBeat]

    def to_json(self) -> dict[str, Any]:
        """Return the form that the state file has."""
        return {
            "time_secs": round(self.time, 3),
            "topology_id": self.topology_id,
            "process_id": self.process_id,
            "uptime_secs": round(self.uptime_seconds, 3),
            "not_ready": self.not_ready,
            "executors": [
                {
                    "component": beat.component,
                    "tasks": [beat.tasks[0], beat.tasks[-1]],
                    "task": beat.task,
                    "doing": beat.doing,
                    "call_secs": round(beat.call_seconds, 3),
                    "turned_secs": round(beat.turned_seconds, 3),
                    "stuck": beat.stuck,
                }
                for beat in self.executors
            ],
        }


@dataclass(slots=True, eq=False)
class Heartbeats:
    """Beats for a worker; beat() is to be called every worker.heartbeat.frequency.secs.

    executors: those that run now. problem: why the worker is not ready, besides what is stuck; or empty.
    file: replaced as a whole at each beat; None: there is none.
    """

    topology_id: str
    executors: Callable[[], Sequence[Executor[Any]]]
    problem: Callable[[], str]
    file: Path | None
    last: WorkerHeartbeat = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _watches: dict[Executor[Any], CallWatch] = field(default_factory=dict)
    _stuck: frozenset[Executor[Any]] = frozenset()

    def __post_init__(self) -> None:
        self.last = self._take()

    def beat(self) -> None:
        """Look at every executor, log what has become stuck since, and write the file.

        A file that cannot be written is logged; the worker goes on.
        """
        self.last = self._take()
        if self.file is not None:
            try:
                write_atomically(self.file, json.dumps(self.last.to_json()))
            except OSError as error:
                logger.warning("heartbeat.not_written", extra={"path": str(self.file), "reason": str(error)})

    def end(self) -> None:
        """Remove the file: its worker has ended in good order."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    @property
    def not_ready(self) -> str:
        """Why the worker is not ready now; what is stuck is what was so at the last beat."""
        return _joined(self.problem(), self.last.executors)

    def _take(self) -> WorkerHeartbeat:
        watches = self._watches  # those of executors that are gone are forgotten
        self._watches = {each: watches.get(each) or CallWatch(each.pulse) for each in self.executors()}
        beats = {each: _beat(each, watch.look()) for each, watch in self._watches.items()}
        stuck = frozenset(each for each, beat in beats.items() if beat.stuck)
        for each in stuck - self._stuck:
            _log_stuck(each, beats[each])
        for each in self._stuck & beats.keys() - stuck:
            logger.info("executor.moves_again", extra={"component": each.component.id})
        self._stuck = stuck
        return WorkerHeartbeat(
            time.time(),
            self.topology_id,
            os.getpid(),
            time.monotonic() - self._began,
            _joined(self.problem(), beats.values()),
            tuple(beats.values()),
        )


def _joined(reason: str, beats: Iterable[ExecutorBeat]) -> str:
    return "; ".join(filter(None, [reason, *(str(beat) for beat in beats if beat.stuck)]))


def _beat(executor: Executor[Any], call_seconds: float) -> ExecutorBeat:
    pulse = executor.pulse
    return ExecutorBeat(
        executor.component.id,
        executor.tasks,
        pulse.task,
        pulse.doing.value,
        call_seconds,
        pulse.clock() - pulse.turned,
        call_seconds >= executor.settings.task_timeout_seconds,
    )


def _log_stuck(executor: Executor[Any], beat: ExecutorBeat) -> None:
    frame = sys._current_frames().get(executor.thread.ident or -1)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))
    logger.warning(
        "executor.stuck",
        extra={
            "component": beat.component,
            "task": beat.task,
            "doing": beat.doing,
            "seconds": round(beat.call_seconds, 1),
            "stack": stack,
        },
    )


def from_beat(beat: ExecutorBeat) -> list[Any]:
    """Return what an executor is doing as values."""
    component, tasks, *others = astuple(beat)
    return [component, [tasks.start, tasks.stop], *others]


def to_beat(values: Sequence[Any]) -> ExecutorBeat:
    """Return what from_beat was given."""
    component, tasks, *others = values
    return ExecutorBeat(component, range(*tasks), *others)
