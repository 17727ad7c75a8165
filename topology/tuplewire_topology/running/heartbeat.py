"""The heartbeats of a worker and its executors: a state file, a snapshot, and log entries for stuck calls.

Used by executor_group.py, with a timer that calls beat(). Owns the state file. Not thread-safe. Exceptions:
`last` and `not_ready_reason`. Design: docs/design/topologies.md (executors report their activity). Source:
Storm's `WorkerState` heartbeats, `LSWorkerHeartbeat` and `LocalState`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuplewire.identity.files import write_atomically
from tuplewire.text.events import event_logger
from tuplewire_topology.running.executor import Executor

logger = event_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutorHeartbeat:
    """The activity of an executor: the running task, and an `ExecutorActivity`.

    `call_seconds` is the time in the current call of user code, or 0; `iteration_seconds` the time since the
    current turn of its loop started. `stuck` is True if the call exceeds nimbus.task.timeout.secs.
    """

    component: str
    tasks: range
    task: int
    activity: str
    call_seconds: float
    iteration_seconds: float
    stuck: bool

    def __str__(self) -> str:
        call = f"{self.activity}() for {self.call_seconds:.0f} s"
        return f"task {self.task} of {self.component!r} has been in {call}"


@dataclass(slots=True, eq=False)
class Heartbeats:
    """The heartbeats of a worker. Call beat() every worker.heartbeat.frequency.secs.

    `get_problem` returns a reason why the worker is not ready, other than a stuck call, or an empty string.
    `last` has the activity of each executor.
    """

    topology_id: str
    list_executors: Callable[[], Sequence[Executor[Any]]]
    get_problem: Callable[[], str]
    file: Path | None
    last: Sequence[ExecutorHeartbeat] = field(init=False)
    _started_at: float = field(default_factory=time.monotonic)
    _stuck: frozenset[Executor[Any]] = frozenset()

    def __post_init__(self) -> None:
        self.last = self._check_executors()

    def beat(self) -> None:
        """Check every executor, log newly stuck ones, and replace the file. A failed write is only logged."""
        self.last = self._check_executors()
        if self.file is not None:
            state = {
                "time": time.time(),
                "topology_id": self.topology_id,
                "process_id": os.getpid(),
                "uptime_seconds": time.monotonic() - self._started_at,
                "not_ready": self.not_ready_reason,
                "executors": list(map(asdict, self.last)),  # tasks are a range: see default=list
            }
            try:
                write_atomically(self.file, json.dumps(state, default=list))  # readers see a whole file
            except OSError as error:
                logger.warning("heartbeat.not_written", extra={"path": str(self.file), "reason": str(error)})

    def remove_file(self) -> None:
        """Remove the file after a clean end of the worker."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    @property
    def not_ready_reason(self) -> str:
        """The current reason why the worker is not ready, with the calls that were stuck at the last beat."""
        return "; ".join(filter(None, [self.get_problem(), *(str(beat) for beat in self.last if beat.stuck)]))

    def _check_executors(self) -> Sequence[ExecutorHeartbeat]:
        beats = {each: _executor_heartbeat(each) for each in self.list_executors()}
        stuck = frozenset(each for each, beat in beats.items() if beat.stuck)
        for each in stuck - self._stuck:  # not again at each beat
            beat = beats[each]
            frame = sys._current_frames().get(each.thread.ident or -1)  # the place in the user's code
            stack = "" if frame is None else "".join(traceback.format_stack(frame))
            extra = {"component": beat.component, "task": beat.task, "activity": beat.activity}
            seconds = round(beat.call_seconds, 1)
            logger.warning("executor.stuck", extra={**extra, "seconds": seconds, "stack": stack})
        for each in self._stuck & beats.keys() - stuck:  # removed executors have not recovered
            logger.info("executor.recovered", extra={"component": each.component.id})
        self._stuck = stuck
        return tuple(beats.values())


def _executor_heartbeat(executor: Executor[Any]) -> ExecutorHeartbeat:
    pulse, component = executor.pulse, executor.component.id
    call_seconds = pulse.call_seconds()
    activity, loop_time = pulse.activity.value, pulse.clock() - pulse.iteration_start
    stuck = call_seconds >= executor.settings.task_timeout_seconds
    return ExecutorHeartbeat(component, executor.tasks, pulse.task, activity, call_seconds, loop_time, stuck)
