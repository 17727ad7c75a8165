"""A topology on Spark, as the program sees it that submits one. Source: Storm's `StormSubmitter`."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuplewire.client import Client
from tuplewire.errors import ClosedError, ConfigError, TopologyError
from tuplewire.spark.topology.job import Job, JobError, check_slots, is_remote
from tuplewire.spark.topology.mail import SUBMITTER, Kind, Mail
from tuplewire.spark.topology.member import START_SECONDS, Submitted
from tuplewire.spark.topology.nearest import nearest_worker
from tuplewire.spark.topology.output import Output, failure_in, statistics_in
from tuplewire.spark.topology.plan import SUBMITTER_TASK, Place
from tuplewire.spark.topology.post import Post
from tuplewire.spark.topology.rows import rows_spout
from tuplewire.topology.acker_tasks import with_ackers
from tuplewire.topology.description import Topology
from tuplewire.topology.settings import TopologySettings
from tuplewire.topology.shares import shares_of
from tuplewire.topology.statistics import ExecutorStatistics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CANCEL_SECONDS = 15.0
_DRAIN_SECONDS = 5.0
"""How long a cancelled job's PySpark tasks are waited for; Spark kills them after about as long."""


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """How far a topology is. generation: of its PySpark tasks, None before they run; members: how many.

    emitted, executed: tuples, in all of them.
    """

    generation: int | None = None
    members: int = 0
    emitted: int = 0
    executed: int = 0

    def __str__(self) -> str:
        if self.generation is None:
            return "waiting for Spark to start the PySpark tasks"
        return f"{self.members} PySpark tasks, emitted {self.emitted:,}, executed {self.executed:,} tuples"


@dataclass(frozen=True)
class TopologyResult:
    """What a topology has left. frames: the rows of each bolt whose output was asked for.

    executors: what each has done.
    """

    frames: Mapping[str, DataFrame]
    executors: Sequence[ExecutorStatistics]

    @property
    def frame(self) -> DataFrame:
        """The rows, where one bolt's output was asked for; TopologyError where there are more or none."""
        if len(self.frames) != 1:
            known = ", ".join(map(repr, self.frames)) or "none"
            raise TopologyError(f"the outputs are of {known}: take one of frames, by its component")
        return next(iter(self.frames.values()))


class SparkTopology:
    """A topology that runs as a Spark job. Made by submit_topology; thread-safe.

    job_group: the job's, by which Spark cancels it; over Spark Connect its tag.
    """

    def __init__(self, submitted: Submitted, job: Job, place: Place | None, stack: ExitStack) -> None:
        self.name = submitted.name
        self.job_group = job.group
        self._submitted = submitted
        self._job = job
        self._stack = stack
        self._lock = threading.Condition()
        self._progress = TopologyProgress()
        self._coordinator: tuple[int, int] | None = None
        """Its generation, and its mailbox."""
        self._closed: set[int] = set()
        self._stop: bool | None = None
        self._post: Post | None = None
        self._listener: Callable[[TopologyProgress], None] | None = None
        if place is not None:
            client = Client(place.address, topology=place.topology, client_id=f"{submitted.run}-submitter")
            self._post = stack.enter_context(
                Post(client, submitted.run, SUBMITTER_TASK, self._receive, self._unheard, waits=True)
            )
        job.start(self._ended)

    def __repr__(self) -> str:
        return f"<SparkTopology {self.name}: {'ended' if self._job.done else self._progress}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self._job.done

    def progress(self) -> TopologyProgress:
        """Return how far it is, as of a second ago; always the beginning where no worker is in reach."""
        return self._progress

    def listen(self, listener: Callable[[TopologyProgress], None]) -> None:
        """Have a function called, in a thread of ours, with each news of the progress."""
        self._listener = listener
        listener(self._progress)

    def stop(self) -> None:
        """Have the spouts asked no longer, and everything that is on the way processed; returns at once.

        result() then returns what comes out. Raises ConfigError where this program reaches no worker.
        """
        if self._post is None:
            raise ConfigError(
                "this program reaches no worker, and cannot ask the topology to stop: submit it with "
                "workers=[...] that it reaches, or cancel the job"
            )
        self._ask_to_stop(output_wanted=True)

    def cancel(self) -> None:
        """Cancel the job, as Spark's UI would; what is on the way is processed, but its output is lost.

        Spark leaves the PySpark tasks about 2 seconds (`spark.python.task.killTimeout`) for that. Returns at
        once; result() raises.
        """
        self._job.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, in whichever way; False when so many seconds are over first."""
        return self._job.wait(timeout)

    def result(self, timeout: float | None = None) -> TopologyResult:
        """Wait for the end, and return what the topology has left.

        Raises ProcessFailedError, with the traceback of the user's code as a note, for a spout or bolt that
        has failed, ClosedError when the job was cancelled, JobError for what else Spark has against it, and
        TimeoutError after so many seconds; the topology then goes on.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"topology {self.name!r} was not over after {timeout:g} s; it goes on")
        error = self._job.error
        if error is None:
            frame = self._job.result
            return TopologyResult(self._submitted.output.frames(frame), statistics_in(frame))
        failure = failure_in(str(error), self.name)
        if failure is not None:
            raise failure
        if self._job.was_cancelled:
            raise ClosedError(f"the Spark job of topology {self.name!r} was cancelled")
        # Spark's own exception is of no use as a cause: it cannot be printed once the JVM has gone.
        raise JobError(f"the Spark job of topology {self.name!r} has failed: {error}") from None

    # --- mail -------------------------------------------------------------------------------------------

    def _receive(self, mail: Mail) -> None:
        with self._lock:
            current = self._progress.generation
            if current is not None and mail.generation < current:
                return
            if mail.kind is Kind.BEGUN:
                mailbox, members = mail.values
                self._coordinator = (mail.generation, mailbox)
                self._closed.clear()
                self._progress = TopologyProgress(mail.generation, members)
                if self._stop is not None:
                    self._send_stop()
            elif mail.kind is Kind.PROGRESS and self._coordinator is not None:
                self._progress = TopologyProgress(mail.generation, self._progress.members, *mail.values)
            elif mail.kind is Kind.CLOSED:
                self._closed.add(mail.rank)
                self._lock.notify_all()
        if self._listener is not None:
            self._listener(self._progress)

    def _unheard(self, _: Exception) -> None:
        """Do without mail: the job goes on, and tells its end itself."""

    def _ask_to_stop(self, *, output_wanted: bool) -> None:
        with self._lock:
            self._stop = output_wanted
            if self._coordinator is not None:
                self._send_stop()

    def _send_stop(self) -> None:
        assert self._post is not None  # noqa: S101 - there is a coordinator by its mail alone
        assert self._coordinator is not None  # noqa: S101 - as above
        generation, mailbox = self._coordinator
        stop = Mail(self._submitted.run, generation, SUBMITTER, Kind.STOP, (bool(self._stop),))
        self._post.send(mailbox, stop)

    # --- the end ------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        """End what is ours, in the job's thread, before the job counts as done."""
        try:
            if self._job.was_cancelled and self._coordinator is not None:
                self._drain()
        finally:
            self._stack.close()

    def _drain(self) -> None:
        """Use the time that Spark leaves the PySpark tasks of a cancelled job."""
        self._ask_to_stop(output_wanted=False)
        deadline = time.monotonic() + _DRAIN_SECONDS
        with self._lock:
            self._lock.wait_for(
                lambda: len(self._closed) >= self._progress.members, deadline - time.monotonic()
            )


def submit_topology(
    spark: SparkSession,
    topology: Topology,
    *,
    conf: Mapping[str, Any] | None = None,
    outputs: Mapping[str, str | StructType | None] | None = None,
    rows: DataFrame | None = None,
    workers: Sequence[str] = (),
    name: str = "topology",
) -> SparkTopology:
    """Run a topology as a Spark job of `topology.workers` PySpark tasks, and return at once.

    conf: settings by Storm's keys, and the user's own. outputs: the bolts whose default stream comes back,
    each with a schema for its fields, or None for strings; by default all bolts that nobody subscribes to.
    rows: what a Rows spout of the topology emits. workers: addresses that Spark's executors and this program
    reach, and that serve this topology alone meanwhile; by default everybody takes the worker of its
    TUPLEWIRE_ADDRESS, and starts one where there is none.

    Guarantee: the result is that of one generation. When a process is lost, Spark runs all PySpark tasks
    again (at most spark.stage.maxConsecutiveAttempts times), from the beginning of the spouts, and nothing of
    an earlier generation comes to the later, nor into the result. What bolts have done to the outside world
    is done twice then. The user's own errors are final.

    Raises ConfigError where Spark has fewer slots than that, and for settings that are wrong; TopologyError
    for a schema or rows that do not fit the topology.
    """
    conf = dict(conf or {})
    settings = TopologySettings.of(conf)
    full = with_ackers(topology, settings.ackers)
    members = len(shares_of(full, settings.workers))
    output = Output.of(topology, outputs)
    source = _input(spark, topology, rows, members)
    check_slots(spark, members)
    run = uuid.uuid4().hex
    with ExitStack() as stack:
        place = None
        if workers or not is_remote(spark):
            address = workers[0] if workers else None
            host = "127.0.0.1" if is_remote(spark) else spark.conf.get("spark.driver.host", "127.0.0.1")
            place = stack.enter_context(nearest_worker(address, str(host), name, START_SECONDS))
        submitted = Submitted(
            name, run, full, conf, members, output, tuple(workers), place, has_rows=rows is not None
        )
        _check_travels(submitted)
        stage = source.mapInArrow(submitted, output.stage_schema(), barrier=True)
        checked = output.checked(stage.repartition(members))
        job = Job(spark, f"topology {name}", lambda: checked.localCheckpoint(eager=True))
        return SparkTopology(submitted, job, place, stack.pop_all())


def run_topology(
    spark: SparkSession,
    topology: Topology,
    *,
    conf: Mapping[str, Any] | None = None,
    outputs: Mapping[str, str | StructType | None] | None = None,
    rows: DataFrame | None = None,
    workers: Sequence[str] = (),
    name: str = "topology",
    progress: Callable[[TopologyProgress], None] | None = None,
) -> TopologyResult:
    """Run a topology to its end, as submit_topology does, and return what it has left.

    progress: called with each news; by default a line is written to standard error. Where this is interrupted
    (Ctrl-C), the job is cancelled, as cancel() says, and the interrupt goes on.
    """
    running = submit_topology(
        spark, topology, conf=conf, outputs=outputs, rows=rows, workers=workers, name=name
    )
    try:
        running.listen(progress or ProgressLine(name))
        return running.result()
    except BaseException:
        if not running.done:
            running.cancel()
            running.wait(_CANCEL_SECONDS)
        raise


class ProgressLine:
    """Writes one line, over and over on a terminal, and only where it says something new elsewhere."""

    _EVERY_SECONDS = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._written = 0.0
        self._generation: int | None = -1

    def __call__(self, progress: TopologyProgress) -> None:
        """Write it."""
        now = time.monotonic()
        live = sys.stderr.isatty()
        new = progress.generation != self._generation
        if not new and not live and now - self._written < self._EVERY_SECONDS:
            return
        self._written, self._generation = now, progress.generation
        end = "\r" if live and progress.executed else "\n"
        sys.stderr.write(f"topology {self._name}: {progress}{end}")
        sys.stderr.flush()


def _check_travels(submitted: Submitted) -> None:
    """Raise TopologyError for a spout or bolt that cannot be sent to Spark's executors."""
    from pyspark import cloudpickle

    for component in submitted.topology.components.values():
        try:
            cloudpickle.dumps(component)
        except Exception as error:
            raise TopologyError(
                f"{component.id!r} cannot be sent to Spark's executors: {error}; "
                "make in open() or prepare() what a spout or bolt cannot take along"
            ) from error


def _input(spark: SparkSession, topology: Topology, rows: DataFrame | None, members: int) -> DataFrame:
    """Return a DataFrame with a partition for each PySpark task."""
    spout = rows_spout(topology)
    if (spout is None) != (rows is None):
        raise TopologyError(
            "rows=... is for a Rows spout, and the topology has none"
            if spout is None
            else f"{spout!r} emits the rows of a DataFrame: give it, as rows=..."
        )
    if rows is None or spout is None:
        return spark.range(0, members, 1, members)
    component = topology.component(spout)
    if not component.parallelism == component.n_tasks == members:
        raise TopologyError(
            f"{spout!r} has {component.n_tasks} tasks in {component.parallelism} executors, and there are "
            f"{members} PySpark tasks: give it an executor for each, as many as topology.workers"
        )
    wanted = component.template.outputs
    missing = [column for column in wanted if column not in rows.columns]
    if missing:
        raise TopologyError(
            f"{spout!r} emits {', '.join(missing)}, and the DataFrame has only {', '.join(rows.columns)}"
        )
    return rows.select(*wanted).repartition(members)
