"""Running the pipeline `sensors` until it is stopped: two streaming queries, and bolts between them.

To stop, what comes in is stopped first, and then each part once it has had everything: nothing is cut off.
After any other end the next run goes on from the last window that was complete (`course.py`).
"""

from __future__ import annotations

import math
import queue
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tuplewire.batch import TaskMessageBatch
from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_demos.attachment import Attachment, WorkerEndpoint
from tuplewire_demos.course import WINDOW_SECONDS, Course, CourseKeeper
from tuplewire_demos.jobs import (
    PipelineError,
    PipelineJob,
    ask_all,
    bolt_frame,
    check_room,
    next_finished,
    settled_ledgers,
    wait_subscribed,
)
from tuplewire_demos.report import Progress, Traffic, is_clean, write_ledgers
from tuplewire_demos.sensors import (
    BOLT_SCHEMA,
    END,
    SensorBolt,
    StreamTasks,
    readings,
    windows,
)
from tuplewire_service.command.terminal import write_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRAIN_SECONDS = 120.0
_POLL_SECONDS = 0.25
_KEPT = timedelta(minutes=30)
"""How long after its window a row may still change, and more."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """A run that was stopped. readings: those that came to the bolts. counted: those in windows."""

    readings: int
    counted: int
    seconds: float
    ledgers: Mapping[str, LedgerSnapshot]

    @property
    def ok(self) -> bool:
        """Whether every reading is in a window, and every ledger adds up with nothing dropped or pending."""
        return self.readings == self.counted and all(map(is_clean, self.ledgers.values()))


def run_stream(
    spark: SparkSession,
    workers: Sequence[WorkerEndpoint],
    out: TextIO,
    *,
    stop: threading.Event,
    stop_after: float | None = None,
    rows_per_second: int = 1000,
    output: Path | None = None,
    checkpoint: Path | None = None,
    n_bolts: int = 2,
    topology: str = "stream",
    progress: Progress,
) -> StreamResult:
    """Run the pipeline on workers that have assignment_for(len(workers), n_bolts), until `stop` is set.

    stop_after: seconds of running after which it stops by itself; None: it does not.
    out: gets a line for each window that is over. output: a new directory for the windows, as Parquet files:
    of a window and sensor the row with the most readings is the last. checkpoint: a directory for what the
    next run needs to go on where this one was ended, however that was; the output is then that of all runs.
    Raises InputError, ConfigError, or PipelineError, also when a worker is gone.
    """
    check_room(spark, n_bolts)
    keeper = CourseKeeper(checkpoint, output)
    course = keeper.begin(rows_per_second)
    tasks = StreamTasks.of(n_bolts)
    attachment = Attachment.of(topology, f"stream-{uuid.uuid4().hex}", workers, tasks.placed(len(workers)))
    with ExitStack() as stack:
        checkpoints = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuplewire-")))
        parts = _Parts(
            spark,
            {"address": workers[0].address, "topology": topology},
            tasks,
            [stack.enter_context(ControlClient(worker.address)) for worker in workers],
            progress,
        )
        tally = WindowTally(None if output is None else output / f"run={course.run}")
        before = parts.traffic()
        bolts = bolt_frame(spark, tasks.bolts, SensorBolt(attachment, tasks), BOLT_SCHEMA)
        job = PipelineJob(spark, "bolt", bolts.collect, parts.finished)
        stack.enter_context(job)
        job.start()
        progress.stage(f"Waiting for {n_bolts} bolts to subscribe ...")
        wait_subscribed(parts.controls, set(tasks.bolts), parts.finished)
        started = time.monotonic()
        second = parts.start_windows(tally, checkpoints / "windows")
        stack.callback(second.stop)
        first = parts.start_readings(course, checkpoints / "readings")
        stack.callback(first.stop)
        progress.stage("Running until it is stopped (Ctrl-C) ...")
        until = math.inf if stop_after is None else started + stop_after
        while not stop.wait(_POLL_SECONDS) and time.monotonic() < until:
            parts.check()
            progress.show(parts.traffic() - before)
            tally.write_closed(out, progress)
            course = tally.keep_complete(course, keeper)
        parts.drain()
        seconds = time.monotonic() - started
        tally.write_closed(out, progress, last=True)
        tally.keep_complete(course, keeper)
        arrived = (parts.traffic() - before).sent - n_bolts  # each was sent its end
        return StreamResult(arrived, tally.total, seconds, settled_ledgers(parts.controls))


class _Parts:
    """The two queries and the bolts."""

    def __init__(
        self,
        spark: SparkSession,
        where: Mapping[str, str],
        tasks: StreamTasks,
        controls: Sequence[ControlClient],
        progress: Progress,
    ) -> None:
        self.controls = controls
        self.finished: queue.SimpleQueue[PipelineJob] = queue.SimpleQueue()
        self._spark = spark
        self._where = where
        self._tasks = tasks
        self._progress = progress
        self._queries: list[StreamingQuery] = []

    def start_readings(self, course: Course, checkpoint: Path) -> StreamingQuery:
        """Stream the readings to the bolts."""
        query = (
            readings(self._spark, course)
            .writeStream.format("tuplewire")
            .options(**self._where, grouping="fields", tasks=_listed(self._tasks.bolts))
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="500 milliseconds")
            .queryName("readings")
            .start()
        )
        self._queries.append(query)
        return query

    def start_windows(self, tally: WindowTally, checkpoint: Path) -> StreamingQuery:
        """Stream what the bolts send into windows."""
        options = {**self._where, "tasks": _listed(self._tasks.windows)}
        query = (
            windows(self._spark, options)
            .writeStream.outputMode("update")
            .foreachBatch(tally.add)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="500 milliseconds")
            .queryName("windows")
            .start()
        )
        self._queries.append(query)
        return query

    def traffic(self) -> Traffic:
        """Return how many messages came to the bolts, and how many of theirs are in windows."""
        arrived, _ = self._counts(self._tasks.bolts)
        _, taken = self._counts(self._tasks.windows)
        return Traffic(arrived, taken)

    def _counts(self, tasks: Collection[int]) -> tuple[int, int]:
        """Return how many messages have come to tasks, and how many of them are acknowledged."""
        try:
            statuses = ask_all(self.controls)
        except UnreachableError as error:
            raise PipelineError(
                f"a worker is gone, and with it what it held: {error}; start again, and give the run a "
                "checkpoint to go on after the last complete window"
            ) from error
        found = [each for status in statuses for each in status.tasks if each.task in tasks]
        taken = sum(each.acknowledged_sequence for each in found)
        return taken + sum(each.queued_messages for each in found), taken

    def check(self) -> None:
        """Raise PipelineError when a query or a bolt has ended."""
        job = next_finished(self.finished, 0)
        if job is not None:
            job.check()
            raise PipelineError("the bolts ended before they were told to")
        for query in self._queries:
            if not query.isActive:
                raise PipelineError(f"the query {query.name} failed: {query.exception()}")

    def drain(self) -> None:
        """Stop what comes in, then each part once it has had everything; PipelineError after a time."""
        self._progress.stage("Stopping, once everything that is on its way is counted ...")
        second, first = self._queries
        self._until(lambda: not first.status["isTriggerActive"], "the readings' micro-batch is over")
        first.stop()
        self._queries.remove(first)
        self._until(lambda: self._is_done(self._tasks.bolts), "the bolts have had everything")
        with Client(self._where["address"], topology=self._where["topology"]) as client:
            ends = [END] * len(self._tasks.bolts)
            client.send(TaskMessageBatch.from_columns(list(self._tasks.bolts), ends))
            client.flush()
        deadline = time.monotonic() + DRAIN_SECONDS
        while (job := next_finished(self.finished, _POLL_SECONDS)) is None:
            if time.monotonic() > deadline:
                raise PipelineError(f"the bolts have not ended within {DRAIN_SECONDS:g} s")
        job.check()
        self._until(lambda: self._is_done(self._tasks.windows), "the windows have had everything")
        second.stop()

    def _is_done(self, tasks: Collection[int]) -> bool:
        arrived, taken = self._counts(tasks)
        return arrived == taken

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while not holds():
            self.check()
            if time.monotonic() > deadline:
                raise PipelineError(f"it has not come to it within {DRAIN_SECONDS:g} s that {what}")
            time.sleep(_POLL_SECONDS)


class WindowTally:
    """Takes the rows of windows as they change, counts readings, and hands out windows that are over.

    Guarantee: a micro-batch that Spark runs again counts once, as the rows say how much there is in all.
    """

    def __init__(self, output: Path | None) -> None:
        self.total = 0
        self._output = output
        self._rows: dict[tuple[datetime, str], Row] = {}
        self._shown: datetime | None = None
        self._lock = threading.Lock()

    def add(self, frame: DataFrame, batch: int) -> None:
        """Take a micro-batch: what changed in it. PipelineError when it cannot be computed or written."""
        try:
            rows = self._computed(frame, batch)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            # Spark searches a text from here by a pattern that overflows its stack where the text is long.
            raise PipelineError(str(error).partition("\n")[0]) from None
        with self._lock:
            for row in rows:
                key = row["start"], row["sensor"]
                before = self._rows.get(key)
                self.total += row["readings"] - (0 if before is None else before["readings"])
                self._rows[key] = row
            if self._rows:
                newest = max(start for start, _ in self._rows)
                self._rows = {key: row for key, row in self._rows.items() if key[0] >= newest - _KEPT}

    def _computed(self, frame: DataFrame, batch: int) -> list[Row]:
        frame.persist()
        if self._output is not None:
            frame.write.mode("overwrite").parquet(f"file:{self._output.absolute()}/batch={batch}")
        rows = frame.collect()
        frame.unpersist()
        return rows

    def keep_complete(self, course: Course, keeper: CourseKeeper) -> Course:
        """Write down that windows are complete, where there are new ones; return the course from here."""
        with self._lock:
            counts: Counter[float] = Counter()
            for row in self._rows.values():
                counts[row["start"].timestamp()] += row["readings"]
        before = course
        while counts[course.next_window.timestamp()] == course.window_readings:
            course = course.completed()
        if course is not before:
            keeper.keep(course)
        return course

    def write_closed(self, out: TextIO, progress: Progress, *, last: bool = False) -> None:
        """Write a line for each window that has a later one; with `last`, for that one, too."""
        with self._lock:
            starts = sorted({start for start, _ in self._rows})
            new = [start for start in starts if self._shown is None or start > self._shown]
            new = new if last else new[:-1]
            lines = [
                _line(start, [row for key, row in self._rows.items() if key[0] == start]) for start in new
            ]
        if new:
            self._shown = new[-1]
            progress.end()
            write_text(out, "".join(lines))
            out.flush()


def _line(start: datetime, rows: Sequence[Row]) -> str:
    count = sum(row["readings"] for row in rows)
    mean = sum(row["mean_celsius"] * row["readings"] for row in rows) / count
    end = start + timedelta(seconds=WINDOW_SECONDS)
    unusual = sum(row["unusual"] for row in rows)
    return (
        f"{start:%H:%M:%S} to {end:%H:%M:%S}: {count:>8,} readings of {len(rows)} sensors, "
        f"mean {mean:.2f} degrees, {unusual} unusual\n"
    )


def _listed(tasks: Collection[int]) -> str:
    return ",".join(map(str, tasks))


def write_stream(stream: TextIO, result: StreamResult, output: Path | None = None) -> None:
    """Write the account."""
    account = StringIO()
    _write_account(account, result, output)
    write_text(stream, account.getvalue())


def _write_account(stream: TextIO, result: StreamResult, output: Path | None) -> None:
    verdict = "yes" if result.readings == result.counted else "NO"
    stream.write(
        f"\n{result.readings:,} readings came to the bolts, {result.counted:,} are counted in windows; "
        f"equal: {verdict}\n"
    )
    write_ledgers(stream, result.ledgers)
    rate = result.readings / max(result.seconds, 0.001)
    stream.write(f"{result.seconds:.1f} s: {rate:,.0f} readings/s\n")
    if output is not None:
        stream.write(f"The windows are in {output} (Parquet)\n")
