"""A topology that runs on Spark, in the hands of the program that submitted it."""

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
from tuplewire.errors import ClosedError, ConfigError, TopologyError, TuplewireError
from tuplewire.identity.credentials import Credentials
from tuplewire.spark.releases import inheritable_thread, is_remote
from tuplewire_topology.coordination.mail import SUBMITTER, Mail, MailKind, Post
from tuplewire_topology.running.statistics import ExecutorStatistics
from tuplewire_topology.spark.letters import LETTERS
from tuplewire_topology.spark.member import Submitted
from tuplewire_topology.spark.plan import SUBMITTER_TASK, Place
from tuplewire_topology.spark.rows import GivenUp, failure_in, reports_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLOSE_SECONDS = 5.0
"""How long the last mail of an ended job's PySpark tasks is waited for. Those of a cancelled one get no more
time from Spark; that of any other is on its way."""


@dataclass(frozen=True)
class TopologyResult:
    """What a topology has left. frames: the rows of each bolt whose output was asked for.

    executors: what each has done. given_up: rows that have failed as often as a Rows spout allows. letters:
    see dead_letters.
    """

    frames: Mapping[str, DataFrame]
    executors: Sequence[ExecutorStatistics]
    given_up: GivenUp
    letters: DataFrame | None = None

    @property
    def dead_letters(self) -> DataFrame:
        """The tuples that could not be processed; see docs/how-to/spark.md for the columns.

        Raises TopologyError where no component has topology.error.policy `dead_letter`: none is kept then.
        """
        if self.letters is None:
            raise TopologyError("no dead letters are kept: set topology.error.policy to dead_letter")
        return self.letters

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

    progress(), listen(), activate(), deactivate() and stop() raise ConfigError where this program reaches no
    worker.
    """

    def __init__(
        self,
        submitted: Submitted,
        job: Job,
        place: Place | None,
        stack: ExitStack,
        credentials: Credentials | None = None,
    ) -> None:
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
        self._hears = place is not None
        self._place = place
        self._token_file = None if credentials is None else credentials.token_file
        self._stop: bool | None = None
        self._active = True
        self._post: Post | None = None
        self._listener: Callable[[TopologyProgress], None] | None = None
        if place is not None:
            client = Client(
                place.address,
                topology=place.topology,
                worker_id=place.worker_id,
                client_id=f"{submitted.run}-submitter",
                credentials=credentials,
            )
            self._post = stack.enter_context(
                Post(client, submitted.run, SUBMITTER_TASK, self._receive, self._unheard, waits=True)
            )
        job.start(self._ended)

    def __repr__(self) -> str:
        return f"<SparkTopology {self.name}: {'ended' if self.done else self._progress}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self._job.done.is_set()

    @property
    def reaches_worker(self) -> bool:
        """Whether this program can talk to the topology; not over Spark Connect without workers=[...]."""
        return self._post is not None

    @property
    def watch_command(self) -> str:
        """The command that shows the topology live, to type on this program's machine; empty: none does.

        Guarantee: no token is in it, but perhaps the name of a file that has one.
        """
        return "" if self._place is None else self._place.watch_command(self._token_file)

    def progress(self) -> TopologyProgress:
        """Return how far it is, as of a second ago."""
        self._check_reach("cannot see how far the topology is")
        return self._progress

    def listen(self, listener: Callable[[TopologyProgress], None]) -> None:
        """Have a function called, in a thread of ours, with each news of the progress."""
        self._check_reach("gets no news of the topology")
        self._listener = listener
        listener(self._progress)

    def activate(self) -> None:
        """Have the spouts asked for tuples again; returns at once. Source: Storm's `activate`."""
        self._switch(active=True)

    def deactivate(self) -> None:
        """Have the spouts asked no longer, and keep the job until activate() or stop(); returns at once.

        Tuples in flight are processed. Source: Storm's `deactivate`.
        """
        self._switch(active=False)

    def _switch(self, *, active: bool) -> None:
        self._check_reach("cannot activate or deactivate the topology")
        with self._lock:
            self._active = active
            self._send(MailKind.SWITCH, active)

    def stop(self) -> None:
        """Have the spouts asked no longer, and everything that is on the way processed; returns at once.

        result() then returns what comes out.
        """
        self._check_reach("cannot ask the topology to stop")
        self._ask_to_stop(output_wanted=True)

    def _check_reach(self, what: str) -> None:
        if self._post is None:
            raise ConfigError(
                f"this program reaches no worker, and {what}: submit it with workers=[...] that it "
                "reaches, or wait for result(), or cancel() the job"
            )

    def cancel(self) -> None:
        """Cancel the job, as Spark's UI would; what is on the way is processed, but its output is lost.

        Spark leaves the PySpark tasks about 2 seconds (`spark.python.task.killTimeout`) for that, and where
        this program reaches no worker it cannot tell them to use the time. Returns at once; result() raises.
        """
        self._job.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, in whichever way; False when so many seconds are over first."""
        return self._job.done.wait(timeout)

    def result(self, timeout: float | None = None) -> TopologyResult:
        """Wait for the end, and return what the topology has left.

        Raises ProcessFailedError for a spout or bolt that has failed, with the traceback of the user's code
        as a note. Raises ClosedError when the job was cancelled, and JobError for what else Spark has against
        it. Raises TimeoutError after so many seconds; the topology then goes on.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"topology {self.name!r} was not over after {timeout:g} s; it goes on")
        error = self._job.error
        if error is None:
            frame = self._job.result
            frames = self._submitted.output.frames(frame)
            letters = frames.pop(LETTERS, None)
            return TopologyResult(frames, *reports_in(frame), letters)
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
            if mail.kind is MailKind.BEGUN:
                mailbox, members = mail.values
                self._coordinator = (mail.generation, mailbox)
                self._closed.clear()
                self._progress = TopologyProgress(mail.generation, members)
                if not self._active:
                    self._send(MailKind.SWITCH, self._active)
                if self._stop is not None:
                    self._send(MailKind.STOP, self._stop)
            elif mail.kind is MailKind.PROGRESS and self._coordinator is not None:
                self._progress = TopologyProgress(mail.generation, self._progress.members, *mail.values)
            elif mail.kind is MailKind.CLOSED:
                self._closed.add(mail.rank)
                self._lock.notify_all()
        if self._listener is not None:
            self._listener(self._progress)

    def _unheard(self, _: Exception) -> None:
        """Do without mail: the job goes on, and tells its end itself."""
        with self._lock:
            self._hears = False
            self._lock.notify_all()

    def _ask_to_stop(self, *, output_wanted: bool) -> None:
        with self._lock:
            self._stop = output_wanted
            self._send(MailKind.STOP, output_wanted)

    def _send(self, kind: MailKind, value: bool) -> None:  # noqa: FBT001 - the value of a mail
        """Send a mail to the coordinator, if there is one; a new one gets the state when it begins."""
        if self._coordinator is not None and self._post is not None:
            generation, mailbox = self._coordinator
            self._post.send(mailbox, Mail(self._submitted.run, generation, SUBMITTER, kind, (value,)))

    # --- the end ------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        """End what is ours, in the job's thread, before the job counts as done."""
        try:
            if self._job.was_cancelled:
                if self._coordinator is not None:
                    self._ask_to_stop(output_wanted=False)
                    self._wait_closed()
            elif self._job.error is None:
                self._wait_closed()
        finally:
            self._stack.close()

    def _wait_closed(self) -> None:
        """Wait for the last mail of every PySpark task: what is not read would stay with the worker."""
        with self._lock:
            self._lock.wait_for(
                lambda: len(self._closed) == self._submitted.n_members or not self._hears, _CLOSE_SECONDS
            )


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """How far a topology is. generation: of its PySpark tasks, None before they run; members: how many.

    emitted, executed, dead_letters: tuples, in all of them.
    """

    generation: int | None = None
    members: int = 0
    emitted: int = 0
    executed: int = 0
    dead_letters: int = 0

    def __str__(self) -> str:
        if self.generation is None:
            return "waiting for Spark to start the PySpark tasks"
        dead = f", {self.dead_letters:,} dead letters" if self.dead_letters else ""
        return (
            f"{self.members} PySpark tasks, emitted {self.emitted:,}, executed {self.executed:,} tuples{dead}"
        )


class ProgressLine:
    """Writes a line where it says something new, and every few seconds; at first how to see more."""

    _EVERY_SECONDS = 5.0

    def __init__(self, name: str, watch_command: str = "") -> None:
        self._name = name
        self._written = 0.0
        self._generation: int | None = -1
        if watch_command:
            print(f"topology {name}: watch it with {watch_command}", file=sys.stderr)

    def __call__(self, progress: TopologyProgress) -> None:
        """Write it."""
        now = time.monotonic()
        if progress.generation != self._generation or now - self._written >= self._EVERY_SECONDS:
            self._written, self._generation = now, progress.generation
            print(f"topology {self._name}: {progress}", file=sys.stderr, flush=True)


class JobError(TuplewireError):
    """Spark has given a topology's job up; the message has its reason."""


class Job:
    """An action on a DataFrame. group: its job group, or its tag over Spark Connect.

    description: what Spark's UI shows. Its PySpark tasks are not interrupted when it is cancelled: they have
    spark.python.task.killTimeout to end.
    """

    def __init__(self, spark: SparkSession, description: str, action: Callable[[], DataFrame]) -> None:
        self.group = f"tuplewire-{uuid.uuid4().hex}"
        self.result: Any = None
        self.error: BaseException | None = None
        self._spark = spark
        self._description = f"tuplewire {description}"
        self._action = action
        self.done = threading.Event()

    def start(self, ended: Callable[[], None]) -> None:
        """Start it; ended: called in its thread at its end, before it counts as done."""
        inheritable_thread(self._spark, self._main, ended, daemon=True).start()

    def _main(self, ended: Callable[[], None]) -> None:
        try:
            if is_remote(self._spark):
                self._spark.addTag(self.group)
            else:
                context = self._spark.sparkContext
                context.setJobGroup(self.group, self._description, interruptOnCancel=False)
            self.result = self._action()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self.error = error
        try:
            ended()
        finally:
            self.done.set()

    @property
    def was_cancelled(self) -> bool:
        """Whether its error is that it was cancelled."""
        text = str(self.error)
        return self.error is not None and ("cancelled" in text or "INTERRUPTED" in text or "CANCELED" in text)

    def cancel(self) -> None:
        """Cancel it."""
        if is_remote(self._spark):
            self._spark.interruptTag(self.group)
        else:
            self._spark.sparkContext.cancelJobGroup(self.group)
