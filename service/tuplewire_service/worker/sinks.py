"""The messages of sinks: staged by attempt, chosen by epoch, and queued when there is space.

Used by worker.py, for control/spark_servicers.py. Owns the staging, the publications and their files.
Call only from the event loop. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

from tuplewire.connection.loop import report_errors
from tuplewire.errors import ResourceLimitError, StagedDataLostError, UnknownRunError
from tuplewire.settings.addresses import Peer
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.translate import TaskContent
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.publications import ChosenGroup, Publications
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.stage_file import StageFiles
from tuplewire_service.worker.staging import Attempt, AttemptName, Placement, Sink, StagedGroup, Staging
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)

_MAX_READ_BYTES = 4 << 20
_PROGRESS_WAIT_SECONDS = 0.5
"""Seconds that a response about an epoch waits for progress."""
_REPEAT_SECONDS = 3.0
"""A live caller repeats its request within this time while messages wait."""
_PREVIOUS_OWNER_SECONDS = 600.0
"""Seconds that a worker may continue to drain after it was removed from the assignment."""


class Sinks:
    """Stages and publishes for a worker. Call only from the event loop; threads write and read files."""

    def __init__(self, settings: WorkerSettings, router: Router) -> None:
        self._router = router
        self._files = StageFiles(settings.staging_directory)
        self.staging = Staging(
            settings.staging_memory_bytes, settings.staging_disk_bytes, settings.staging_expiry_seconds
        )
        self.publications = Publications(
            settings.receive_queue_messages, settings.receive_queue_bytes, router.can_route, self._start_task
        )
        self._log_rate = LogRateLimiter()
        self._requested_at: dict[tuple[Sink, int], float] = {}
        self._previous_owners: dict[Peer, tuple[AssignedWorker, float]] = {}
        self._publish_task: asyncio.Task[None] | None = None

    @property
    def is_publishing(self) -> bool:
        """True if chosen messages wait for space, or a caller has not received the final result yet."""
        # A drain waits for callers, so that a driver receives its result; see docs/design/sinks.md.
        return bool(self.publications.waiting_messages or self._publish_task or self._requested_at)

    async def stage(
        self, sink: Sink, epoch: int, name: AttemptName, piece: int, groups: Sequence[TaskGroup]
    ) -> str:
        """Store a piece of an attempt; return the reason to wait, or an empty string if it is stored.

        Raises the errors of Staging.reserve(), StaleEpochError, UnknownTaskError if no worker owns a task,
        and ResourceLimitError if the file cannot be written.
        """
        self.publications.check_epoch(sink, epoch)
        for group in groups:
            if not self._router.can_route(group.task):
                raise self._router.table.not_local_error(group.task)
        placement, attempt = self.staging.reserve(sink, epoch, name, piece, groups, time.monotonic())
        if placement is Placement.NO_SPACE:
            usage = f"{self.staging.memory_bytes} bytes in memory and {self.staging.disk_bytes} in files"
            if self._log_rate.count_event(sink):
                extra = {"sink": sink[1], "epoch": epoch, "partition": name.partition, "staged": usage}
                logger.warning("staging.full", extra=extra)
            return f"space for staged messages: {usage} are used"
        if placement is Placement.DISK:
            # A cancelled request must not leave the write unaccounted for. An error of the write is then
            # awaited by no request, and must not count as a defect of the worker.
            write = asyncio.create_task(self._write(sink, attempt, groups))
            write.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.wait([write])
            await write
        return ""

    async def _write(self, sink: Sink, attempt: Attempt, groups: Sequence[TaskGroup]) -> None:
        try:
            if attempt.file is None:
                attempt.file = await asyncio.to_thread(self._files.create_part)
            places = await asyncio.to_thread(attempt.file.write, groups)
        except ResourceLimitError as error:
            self.staging.on_write_failed(sink, attempt)
            if self._log_rate.count_event("file"):
                logger.error("staging.write_failed", extra={"reason": str(error)})  # noqa: TRY400 - it says all
            raise
        entries = [StagedGroup.of(attempt, group, place) for group, place in zip(groups, places, strict=True)]
        if not self.staging.on_written(attempt, entries):
            raise StagedDataLostError("the attempt was dropped while a piece of it was written: run it again")

    def check(
        self, sink: Sink, epoch: int, names: Iterable[AttemptName], remote_contents: Mapping[int, TaskContent]
    ) -> list[int]:
        """Return the tasks of attempts. `remote_contents`: the content of the epoch on other workers.

        Raises StagedDataLostError if an attempt is not complete, and StaleEpochError like check_contents().
        """
        attempts = self.staging.find(sink, epoch, self._unpublished(sink, epoch, names))
        return sorted(self.publications.check_contents(sink, epoch, attempts, remote_contents))

    def _unpublished(self, sink: Sink, epoch: int, names: Iterable[AttemptName]) -> list[AttemptName]:
        """Return the attempts that were not chosen before. Raises StaleEpochError; see Publications."""
        self.publications.check_epoch(sink, epoch)
        return [each for each in names if not self.publications.has_chosen(sink, epoch, each.attempt_id)]

    def begin_run(
        self, sink: Sink, epoch: int, run: str, names: Sequence[AttemptName]
    ) -> tuple[dict[int, TaskContent], list[AssignedWorker]]:
        """Register a run, and drop the staged messages of other runs. Raises the errors of check().

        Returns the content of tasks that have the epoch, and workers that have recently left.
        """
        self.check(sink, epoch, names, {})
        self.staging.keep_only(sink, epoch, {each.attempt_id for each in names})
        lately = time.monotonic() - _PREVIOUS_OWNER_SECONDS
        self._previous_owners = {peer: old for peer, old in self._previous_owners.items() if old[1] > lately}
        workers = [worker for worker, _ in self._previous_owners.values()]
        return self.publications.register_run(sink, epoch, run), workers

    def on_assignment(self, previous: Assignment | None, current: Assignment) -> None:
        """Record that an assignment has replaced another one."""
        # Previous workers may still drain, and know published epochs; begin_run() returns them.
        for each in previous.workers if previous is not None else ():
            self._previous_owners[each.peer] = each, time.monotonic()
        for each in current.workers:
            self._previous_owners.pop(each.peer, None)
        self.resume()

    async def publish(
        self,
        sink: Sink,
        epoch: int,
        names: Sequence[AttemptName],
        run: str = "",
        remote_contents: Mapping[int, TaskContent] | None = None,
    ) -> tuple[int, int]:
        """Choose attempts; return the number of newly chosen messages, and of messages that wait for space.

        `run` is the publishing run of the query; empty: no other run ever publishes the epoch. Raises
        UnknownRunError before begin_run(), and the errors of check().
        """
        new = self._unpublished(sink, epoch, names)
        chosen = 0
        # A repeated request finds all attempts chosen, and only returns the progress.
        if new:
            if run and not self.publications.is_current_run(sink, run):
                raise UnknownRunError(
                    f"sink {sink[1]!r}: run {run!r} has not begun at this worker: call Begin first, which "
                    f"returns the messages of epoch {epoch} that an earlier run has published"
                )
            self.check(sink, epoch, new, remote_contents or {})
            attempts = self.staging.choose(sink, epoch, new)
            ids = [each.attempt_id for each in new]
            chosen, omitted = self.publications.choose(sink, epoch, ids, attempts, run, remote_contents)
            for staged in omitted:
                self.staging.free_group(staged)
            self._start_task()
        # The publishing task gets one turn, so that a small epoch is complete in the response.
        return chosen, (await self._wait_for_progress(sink, epoch, 0.0))[0]

    async def await_progress(self, sink: Sink, epoch: int) -> tuple[int, list[int]]:
        """Return, after a moment, the number of an epoch's messages that wait, and some of their tasks.

        Raises StagedDataLostError if the epoch was not chosen here.
        """
        if self.publications.progress_of(sink, epoch) is None:
            raise StagedDataLostError(
                f"sink {sink[1]!r}: epoch {epoch} is not known here: this worker has started since it was "
                "chosen; the epoch has to be computed again: start the query or the write again"
            )
        return await self._wait_for_progress(sink, epoch, _PROGRESS_WAIT_SECONDS)

    async def _wait_for_progress(self, sink: Sink, epoch: int, seconds: float) -> tuple[int, list[int]]:
        """Return the waiting messages for a caller that repeats its request while there are any."""
        self._requested_at[sink, epoch] = time.monotonic()
        deadline = asyncio.get_running_loop().time() + seconds
        progress_of = self.publications.progress_of
        await self._router.wait_until(lambda: not (progress_of(sink, epoch) or (0,))[0], deadline)
        progress = progress_of(sink, epoch) or (0, [])
        if not progress[0]:
            self._requested_at.pop((sink, epoch), None)
        return progress

    def resume(self) -> None:
        """Expire old epochs and resume publishing. Called periodically and after a new assignment."""
        now = time.monotonic()
        self._requested_at = {key: at for key, at in self._requested_at.items() if at > now - _REPEAT_SECONDS}
        for (_, name), epoch in self.staging.expire(now):
            logger.warning("staging.expired", extra={"sink": name, "epoch": epoch})
        if self.publications.retry_waiting_tasks():
            self._start_task()

    def status(self) -> pb.SinkStatus:
        """Return the used space and the waiting messages."""
        return pb.SinkStatus(
            memory_bytes=self.staging.memory_bytes,
            disk_bytes=self.staging.disk_bytes,
            waiting_messages=self.publications.waiting_messages,
            waits=self.staging.no_space_count,
        )

    def _start_task(self) -> None:
        if self._publish_task is None:
            self._publish_task = report_errors(asyncio.create_task(self._publish_waiting(), name="publish"))

    async def _publish_waiting(self) -> None:
        try:
            while taken := self.publications.pop_ready(_MAX_READ_BYTES):
                groups = [staged.group for staged, _ in taken if staged.group is not None]
                if len(groups) < len(taken):
                    groups = await asyncio.to_thread(_read, taken)
                # Groups of tasks without an owner wait again.
                routable = [self._router.can_route(staged.task) for staged, _ in taken]
                self.publications.put_back([each for each, ok in zip(taken, routable, strict=True) if not ok])
                self._router.recv(ReceivedBatch.for_callback(compress(groups, routable), self.publications))
                for staged, _ in compress(taken, routable):
                    self.staging.free_group(staged)
        finally:
            self._publish_task = None
            # A drain and _wait_for_progress() wait for this.
            self._router.changed.set()


def _read(taken: Sequence[ChosenGroup]) -> list[TaskGroup]:
    """Return the groups, reading files where needed. Runs in a thread."""
    groups = []
    for staged, _ in taken:
        if staged.group is not None:
            groups.append(staged.group)
        elif staged.attempt.file is not None:
            groups += staged.attempt.file.read(staged.offset, staged.length)
    return groups
