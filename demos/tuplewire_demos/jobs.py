"""Spouts and bolts as two Spark jobs that run at the same time. Used by flights.py and run_wordcount.py.

A bolt uses a slot of Spark during the whole run. So the spouts start after Spark runs all bolts: otherwise,
spouts could use every slot, and wait indefinitely for bolts that cannot start. Messages of spouts wait at the
workers until the bolt connects. Owns the jobs' threads. Not thread-safe.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, TuplewireError, UnreachableError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.spark.releases import inheritable_thread, is_remote
from tuplewire.spark.slots import check_slots
from tuplewire_demos.report import Progress, settled
from tuplewire_service.command.status_report import ledger_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    from tuplewire.wire.control_pb2 import GetStatusResponse

SUBSCRIBE_SECONDS = 60.0
CANCEL_SECONDS = 30.0
INTERRUPTED_SECONDS = 2.0
DEAD_SECONDS = 5.0
_TRACEBACK = "Traceback (most recent call last):"
_POLL_SECONDS = 0.25
_QUICK_POLL_SECONDS = 0.05


class PipelineError(TuplewireError):
    """A spout or a bolt failed. The message has its error, and a note has its traceback."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: the bolts' rows, the spouts' reports, the duration and the workers' ledgers."""

    table: DataFrame
    reports: Sequence[Row]
    seconds: float
    ledgers: dict[str, LedgerSnapshot]


def bolt_frame(
    spark: SparkSession,
    tasks: Collection[int],
    run: Callable[[int], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return a DataFrame with a partition for each task. A PySpark task computes its rows with `run`."""

    def bolt(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for position in batch.column("id").to_pylist():
                yield from run(ids[position])

    ids = list(tasks)
    return spark.range(0, len(ids), 1, len(ids)).mapInArrow(bolt, schema)


def run_jobs(
    spark: SparkSession,
    workers: Sequence[Endpoint],
    *,
    bolts: DataFrame,
    spouts: DataFrame,
    tasks: Collection[int],
    progress: Progress,
) -> Outcome:
    """Run the bolts, then in parallel the spouts, until both jobs have finished.

    tasks: the bolts' task ids. Raises ConfigError if Spark has too few slots, PipelineError with the first
    error of a spout or bolt, and UnreachableError if a worker does not answer. Errors cancel both jobs.
    """
    check_room(spark, len(tasks))
    with ExitStack() as stack:
        controls = [stack.enter_context(ControlClient(worker.unix_address)) for worker in workers]
        before = _traffic(controls, tasks)
        # The checkpoint stores the rows, so that a second use of the table does not run the bolts again.
        bolt_job = stack.enter_context(PipelineJob(spark, "bolt", partial(bolts.localCheckpoint, eager=True)))
        spout_job = stack.enter_context(PipelineJob(spark, "spout", spouts.collect))
        progress.stage(f"Starting {len(tasks)} bolts, then the spouts ...")
        bolt_job.start()
        bolt_job.wait_running(len(tasks))
        spout_job.start()
        started = ended = time.monotonic()
        running = {job.done: job for job in (bolt_job, spout_job)}
        while running:
            done, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
            ended = time.monotonic()
            for each in done:
                running.pop(each).check()
            sent, received = (now - then for now, then in zip(_traffic(controls, tasks), before, strict=True))
            rate = received / (ended - started)
            progress.line(f"sent {sent:,}, received {received:,}, {rate:,.0f} messages/s")
        ledgers = settled_ledgers(controls)
    return Outcome(bolt_job.done.result(), spout_job.done.result(), ended - started, ledgers)


def check_room(spark: SparkSession, n_bolts: int) -> None:
    """Raise ConfigError unless Spark has a slot for each bolt, and one more for the spouts."""
    if is_remote(spark):
        raise ConfigError(
            "this pipeline needs a SparkContext, which a session of Spark Connect does not have: give it a "
            "session of SparkSession.builder.master(...), or write it as a topology (run_topology): that "
            "runs on both"
        )
    check_slots(spark, n_bolts + 1, f"a pipeline of {n_bolts} bolts, which need a slot each,")


class PipelineJob(AbstractContextManager["PipelineJob"]):
    """A Spark job in a separate thread. It can be cancelled by its job group."""

    def __init__(self, spark: SparkSession, name: str, action: Callable[[], Any]) -> None:
        self.name = name
        self.done: Future[Any] = Future()
        self._context = spark.sparkContext
        self._group = f"{name}-{uuid.uuid4().hex}"
        self._action = action
        self._thread = inheritable_thread(spark, self._main)

    def start(self) -> None:
        """Start the thread that runs the action."""
        self._thread.start()

    def _main(self) -> None:
        self._context.setJobGroup(self._group, f"tuplewire {self.name}s", interruptOnCancel=True)
        try:
            self.done.set_result(self._action())
        except Exception as error:  # noqa: BLE001 - check() reports it
            self.done.set_exception(error)

    def wait_running(self, tasks: int) -> None:
        """Wait until Spark runs `tasks` of its tasks. Raises PipelineError after a minute, or if it ends."""
        deadline = time.monotonic() + SUBSCRIBE_SECONDS
        tracker = self._context.statusTracker()
        while True:
            running = 0
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
                running += sum(stage.numActiveTasks for stage in stages if stage)
            if running >= tasks:
                return
            if self.done.done():
                self.check()
                raise PipelineError("the bolts ended before any spout had started")
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"only {running} of {tasks} bolts run after {SUBSCRIBE_SECONDS:g} s: "
                    "has Spark enough free slots?"
                )
            time.sleep(_QUICK_POLL_SECONDS)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Cancel the job if it runs, and wait for its thread; briefly after Ctrl-C, as Spark stops next."""
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        deadline = time.monotonic() + (INTERRUPTED_SECONDS if interrupted else CANCEL_SECONDS)
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Repeatedly, because the thread may not have started its job yet.
            with suppress(*([Exception] if interrupted else [])):  # Ctrl-C may have cut off a JVM's answer
                self._context.cancelJobGroup(self._group)
            self._thread.join(_POLL_SECONDS)

    def check(self) -> None:
        """Raise PipelineError if the finished job has failed."""
        error = self.done.exception()
        if error is None:
            return
        summary, traceback = _root(error)
        failure = PipelineError(f"a {self.name} failed: {summary}")
        if traceback:
            failure.add_note(f"In the PySpark task:\n{traceback}")
        # Without Spark's exception as its cause, because that cannot be printed after the JVM has exited.
        raise failure from None


def _root(error: BaseException) -> tuple[str, str]:
    """Return the root cause of a Spark error, and the traceback if the cause is in a Python task."""
    lines = str(error).splitlines()
    if _TRACEBACK not in lines:
        return lines[0], ""
    traceback = list(takewhile(lambda line: not line.startswith("\tat "), lines[lines.index(_TRACEBACK) :]))
    # The last traceback is the outermost one. Its first line without indentation is the exception.
    last = len(traceback) - traceback[::-1].index(_TRACEBACK)
    raised = (line for line in traceback[last:] if line and not line[0].isspace())
    return next(raised, _TRACEBACK), "\n".join(traceback).rstrip()


def settled_ledgers(controls: Sequence[ControlClient]) -> dict[str, LedgerSnapshot]:
    """Return each worker's ledger when no message is pending, or after 10 s."""
    return settled(lambda: {each.worker_id: ledger_of(each.ledger) for each in map(_status, controls)})


def _status(control: ControlClient) -> GetStatusResponse:
    """Return a worker's status. Raises UnreachableError if there is no answer for DEAD_SECONDS."""
    deadline = time.monotonic() + DEAD_SECONDS
    while True:
        try:
            return control.status()
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_QUICK_POLL_SECONDS)


def _traffic(controls: Sequence[ControlClient], tasks: Collection[int]) -> tuple[int, int]:
    """Return the numbers of messages from clients and of messages acknowledged by bolts, with end marks."""
    statuses = list(map(_status, controls))
    sent = sum(each.messages for status in statuses for each in status.received if each.source == "client")
    received = (task for status in statuses for task in status.tasks if task.task in tasks)
    return sent, sum(task.begin_sequence + task.acknowledged_messages for task in received)
