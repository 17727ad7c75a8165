"""A running topology on Spark, for the program that submitted it: control, progress and result.

Used by submit.py, which creates it, and by programs. Owns the Spark job, and the client for control
messages. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplewire.client import Client
from tuplewire.errors import ClosedError, ConfigError, TopologyError, TuplewireError, WaitTimeoutError
from tuplewire.spark.features import inheritable_thread, is_remote
from tuplewire_topology.coordination.control_channel import (
    SUBMITTER,
    ControlChannel,
    ControlKind,
    ControlMessage,
)
from tuplewire_topology.running.statistics import ExecutorStatistics
from tuplewire_topology.spark.member import Submission
from tuplewire_topology.spark.plan import SUBMITTER_TASK, credentials
from tuplewire_topology.spark.rows import DEAD_LETTERS, FailedRows, collect_reports, decode_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LAST_MESSAGE_SECONDS = 5.0
"""The time to wait for the last messages of PySpark tasks. Spark kills the tasks of a cancelled job earlier.
After a success, the messages are already in transit."""
_PLANNING_SECONDS = 30.0
"""The time that cancel() leaves a Spark Connect server that reports no progress to start the job."""


@dataclass(frozen=True)
class TopologyResult:
    """The result of a topology.

    Attributes:
        frames: The rows of each bolt in `outputs`.
        executors: The statistics of all executors.
        failed_rows: The dropped rows of a Rows spout.
        dead_letter_rows: See dead_letters.
    """

    frames: Mapping[str, DataFrame]
    executors: Sequence[ExecutorStatistics]
    failed_rows: FailedRows
    dead_letter_rows: DataFrame | None = None

    @property
    def dead_letters(self) -> DataFrame:
        """The tuples that could not be processed; see docs/how-to/spark.md for the columns.

        Raises TopologyError if no component has topology.error.policy `dead_letter`.
        """
        if self.dead_letter_rows is None:
            raise TopologyError("no dead letters are stored: set topology.error.policy to dead_letter")
        return self.dead_letter_rows

    @property
    def frame(self) -> DataFrame:
        """The rows of the only bolt in frames. Raises TopologyError if there are more bolts or none."""
        if len(self.frames) != 1:
            known = ", ".join(map(repr, self.frames)) or "no bolt"
            raise TopologyError(f"there are outputs of {known}: use frames[...], or request one output")
        return next(iter(self.frames.values()))


class SparkTopology:
    """A topology that runs as a Spark job, from submit_topology. Thread-safe.

    progress(), listen(), activate(), deactivate() and stop() raise ConfigError if no worker is reachable.

    Attributes:
        job_group: The group by which Spark can cancel the job; over Spark Connect its tag.
    """

    def __init__(
        self,
        spark: SparkSession,
        submission: Submission,
        run_job: Callable[[], DataFrame],
        stack: ExitStack,
        token_file: Path,
    ) -> None:
        # `run_job` runs the job, and returns its rows. `stack` is emptied, and closed at the end of the job.
        self.name = submission.name
        self.job_group = f"tuplewire-{uuid.uuid4().hex}"
        self._spark = spark
        self._run_job = run_job
        self._result: DataFrame | None = None
        self._error: BaseException | None = None
        self._job_started, self._job_done = threading.Event(), threading.Event()
        self._submission = submission
        self._condition = threading.Condition()
        self._progress = TopologyProgress()
        self._coordinator: tuple[int, int] | None = None
        """The coordinator's generation and control task."""
        self._closed_ranks: set[int] = set()
        self.watch_command = ""
        """The command that shows the topology live on this program's machine, or an empty string.

        Guarantee: it contains no token, but it may contain the name of a token file.
        """
        self._stop_keeps_output: bool | None = None
        """None: not stopped; False: the output is discarded."""
        self._active = True
        self._control: ControlChannel | None = None
        self._listener: Callable[[TopologyProgress], None] | None = None
        submitter = submission.submitter
        self._receives_control = submitter is not None
        if submitter is not None:
            access = credentials(token_file, is_own=submitter.is_own)
            self.watch_command = submitter.watch_command(access.token_file)
            client = Client(
                submitter.address,
                topology=submitter.topology_name,
                worker_id=submitter.worker_id,
                client_id=f"{submission.run_id}-submitter",
                credentials=access,
            )
            callbacks = self._receive, self._on_control_failure
            control = ControlChannel(
                client, submission.run_id, SUBMITTER_TASK, *callbacks, waits_for_task=True
            )
            self._control = stack.enter_context(control)
        self._stack = stack.pop_all()
        self._thread = inheritable_thread(spark, self._main)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<SparkTopology {self.name}: {'ended' if self.is_done else self._progress}>"

    @property
    def is_done(self) -> bool:
        """True if the job has finished, failed or been cancelled."""
        return self._job_done.is_set()

    @property
    def can_control(self) -> bool:
        """True if this program can control the topology; False over Spark Connect without workers=[...]."""
        return self._control is not None

    def progress(self) -> TopologyProgress:
        """Return the progress, which may be about a second old."""
        self._require_control("cannot get the progress of the topology")
        return self._progress

    def listen(self, listener: Callable[[TopologyProgress], None]) -> None:
        """Call a function now, and in another thread with each update. Replaces the previous one."""
        self._require_control("cannot receive progress")
        self._listener = listener
        listener(self._progress)

    def activate(self) -> None:
        """Resume the spouts. Returns immediately. Source: Storm's `activate`."""
        self._set_active(active=True)

    def deactivate(self) -> None:
        """Pause the spouts until activate() or stop(); the job continues. Returns immediately.

        Tuples in flight are processed. Source: Storm's `deactivate`.
        """
        self._set_active(active=False)

    def _set_active(self, *, active: bool) -> None:
        self._require_control("cannot activate or deactivate the topology")
        with self._condition:
            self._active = active
            self._send_state()

    def stop(self) -> None:
        """Stop the spouts, and process tuples in flight. Returns immediately; result() has the output."""
        self._require_control("cannot ask the topology to stop")
        self._request_stop(keep_output=True)

    def _require_control(self, problem: str) -> None:
        if self._control is None:
            raise ConfigError(
                f"{problem}: no worker is reachable from this program. Submit with reachable "
                "workers=[...], wait for result(), or cancel() the job"
            )

    def cancel(self) -> None:
        """Cancel the job, like Spark's UI. Tuples in flight are processed, but the output is lost.

        Spark leaves the PySpark tasks about 2 seconds for this (`spark.python.task.killTimeout`). A program
        that reaches no worker cannot notify them to drain. Returns immediately; result() raises. A job that
        Spark has not started is cancelled once it has.
        """
        threading.Thread(target=self._cancel, name="tuplewire-topology-cancel", daemon=True).start()

    def _cancel(self) -> None:
        remote = is_remote(self._spark)
        cancel = self._spark.interruptTag if remote else self._spark.sparkContext.cancelJobGroup
        # Interrupted while it plans the job, a Spark Connect server starts it nevertheless.
        self._job_started.wait(_PLANNING_SECONDS if remote else 0)
        while self._result is None and self._error is None:
            cancel(self.job_group)
            self._job_done.wait(0.2)  # Spark ignores a cancel that precedes the job

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job is done; return False after `timeout` seconds."""
        return self._job_done.wait(timeout)

    def result(self, timeout: float | None = None) -> TopologyResult:
        """Wait until the job is done, and return the result.

        Raises:
            ProcessFailedError: A spout or bolt has failed. A note has the traceback of the user's code.
            ClosedError: The job was cancelled.
            JobError: Spark has failed the job for another reason.
            WaitTimeoutError: `timeout` seconds have passed. The topology continues.
        """
        if not self.wait(timeout):
            raise WaitTimeoutError(f"topology {self.name!r} has not ended after {timeout:g} s; it continues")
        if self._result is not None:
            frames = self._submission.output.frames(self._result)
            letters = frames.pop(DEAD_LETTERS, None)
            return TopologyResult(frames, *collect_reports(self._result), letters)
        failure = decode_failure(str(self._error), self.name)
        if failure is not None:
            raise failure
        if self._was_cancelled:
            raise ClosedError(f"the Spark job of topology {self.name!r} was cancelled")
        # Without Spark's exception as its cause, because that cannot be printed after the JVM has exited.
        raise JobError(f"the Spark job of topology {self.name!r} has failed: {self._error}") from None

    # --- control messages -------------------------------------------------------------------------------

    def _receive(self, message: ControlMessage) -> None:
        with self._condition:
            current = self._progress.generation
            if current is not None and message.generation < current:
                return  # Spark has replaced these PySpark tasks
            if message.kind is ControlKind.STARTED:
                control_task, members = message.values
                self._coordinator = (message.generation, control_task)
                self._closed_ranks.clear()
                self._progress = TopologyProgress(message.generation, members)
                if not self._active or self._stop_keeps_output is not None:  # a new coordinator has no state
                    self._send_state()
            elif message.kind is ControlKind.PROGRESS and self._coordinator is not None:
                self._progress = TopologyProgress(message.generation, self._progress.members, *message.values)
            elif message.kind is ControlKind.CLOSED:
                self._closed_ranks.add(message.rank)
                self._condition.notify_all()
        if self._listener is not None:
            self._listener(self._progress)

    def _on_control_failure(self, _: Exception) -> None:
        """Continue without control messages. The end of the job does not depend on them."""
        with self._condition:
            self._receives_control = False
            self._condition.notify_all()

    def _request_stop(self, *, keep_output: bool) -> None:
        with self._condition:
            # Unwanted output stays unwanted.
            self._stop_keeps_output = keep_output and self._stop_keeps_output is not False
            self._send_state()

    def _send_state(self) -> None:
        """Send the wanted state to the coordinator, if there is one. A new one gets it from _receive()."""
        if self._coordinator is not None and self._control is not None:
            generation, control_task = self._coordinator
            values = (self._active, self._stop_keeps_output)
            state = ControlMessage(self._submission.run_id, generation, SUBMITTER, ControlKind.STATE, values)
            self._control.send(control_task, state)

    # --- the job ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        """Run the job. Release the client and the worker before it counts as done."""
        try:
            if is_remote(self._spark):
                self._spark.addTag(self.job_group)
                if hasattr(self._spark, "registerProgressHandler"):  # since Spark 4.0
                    handler: Any = self._on_spark_progress
                    self._spark.registerProgressHandler(handler)
                    self._stack.callback(self._spark.removeProgressHandler, handler)
            else:
                # The PySpark tasks of a cancelled job have spark.python.task.killTimeout to finish.
                self._spark.sparkContext.setJobGroup(
                    self.job_group, f"tuplewire topology {self.name}", interruptOnCancel=False
                )
            self._result = self._run_job()
        except BaseException as error:  # noqa: BLE001 - result() reports it
            self._error = error
        self._job_started.set()
        try:
            with self._stack:
                self._wait_for_members()
        finally:
            self._job_done.set()

    def _on_spark_progress(self, *, stages: Sequence[object], **_: object) -> None:
        # Spark calls this for all queries of the session, each in the thread that runs it.
        if stages and threading.current_thread() is self._thread:
            self._job_started.set()

    @property
    def _was_cancelled(self) -> bool:
        return any(word in str(self._error) for word in ("cancelled", "INTERRUPTED", "CANCELED"))

    def _wait_for_members(self) -> None:
        """Stop a cancelled topology; wait for the last message of each PySpark task, unless it has failed."""
        if self._was_cancelled and self._coordinator is not None:
            self._request_stop(keep_output=False)
        elif self._error is not None:
            return
        with self._condition:  # unread messages would remain at the worker
            self._condition.wait_for(
                lambda: len(self._closed_ranks) == self._submission.n_members or not self._receives_control,
                _LAST_MESSAGE_SECONDS,
            )


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """The progress of a topology: numbers of tuples in all its PySpark tasks.

    Attributes:
        generation: The generation of its PySpark tasks; None before they run.
        members: The number of PySpark tasks.
    """

    generation: int | None = None
    members: int = 0
    emitted: int = 0
    executed: int = 0
    dead_letter_count: int = 0

    def __str__(self) -> str:
        if self.generation is None:
            return "waiting for Spark to start the PySpark tasks"
        dead = f", {self.dead_letter_count:,} dead letters" if self.dead_letter_count else ""
        tuples = f"emitted {self.emitted:,}, executed {self.executed:,} tuples"
        return f"{self.members} PySpark tasks, {tuples}{dead}"


class ProgressPrinter:
    """Prints the watch command, then the progress at each new generation and every few seconds."""

    _INTERVAL_SECONDS = 5.0

    def __init__(self, name: str, watch_command: str = "") -> None:
        self._title = name if name == "topology" else f"topology {name}"
        self._printed_at = 0.0
        self._generation: int | None = -1
        if watch_command:
            print(f"{self._title}: watch it with {watch_command}", file=sys.stderr)

    def __call__(self, progress: TopologyProgress) -> None:
        now = time.monotonic()
        if progress.generation != self._generation or now - self._printed_at >= self._INTERVAL_SECONDS:
            self._printed_at, self._generation = now, progress.generation
            print(f"{self._title}: {progress}", file=sys.stderr, flush=True)


class JobError(TuplewireError):
    """Spark has failed a topology's job; the message has the reason."""
