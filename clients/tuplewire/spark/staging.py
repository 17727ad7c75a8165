"""Stages the rows of attempts at the workers of their tasks, and publishes the attempts that Spark chose.

Used by the writers: Spark tasks stage, and the driver publishes once Spark commits. Owns the clients of the
workers and the pieces that are not full yet. Not thread-safe. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import (
    BufferFullError,
    FlushTimeoutError,
    TuplewireError,
    UnknownRunError,
    UnknownTaskError,
    UnreachableError,
)
from tuplewire.session.backoff import Backoff
from tuplewire.session.pieces import frame_pieces, wire_bytes
from tuplewire.settings.addresses import Peer
from tuplewire.settings.config import KIB, SessionSettings
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.task_workers import RETRYABLE_ERRORS, RetryDeadline, TaskWorkers
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.codec import plain_frame
from tuplewire.wire.translate import TaskContent, contents_from_wire, contents_to_wire

logger = event_logger(__name__)

_PIECE_BYTES = 512 * KIB
_SETTINGS = SessionSettings()
_SPACE_WAIT_SECONDS = 5.0
"""The time that a Spark task waits for free space before it logs a warning."""
FREE_CORE_HINT = "If a query of this program is to read them, Spark needs a free core for it"
"""A write's tasks may use all cores: then neither can continue. See docs/how-to/spark.md."""
_SHOWN_TASKS = 10
_COMMIT_WAIT_SECONDS = 5.0
"""The time that a commit waits for free space. Spark cannot interrupt a commit: query.stop() and a cancelled
job wait for its end. Afterwards, the workers continue with the waiting messages. See docs/how-to/spark.md."""
_PREVIOUS_OWNER_SECONDS = 2.0
"""The timeout of a call to a worker that is no longer in an assignment."""


@dataclass(slots=True)
class _Piece:
    """The next piece for a worker. staged: the attempt there, with the counts of earlier pieces."""

    staged: pb.StagedAttempt
    groups: list[TaskGroup] = field(default_factory=list)
    size_bytes: int = 0


class SinkWorkers(TaskWorkers):
    """The workers of a sink; the common base of AttemptStager and Publisher."""

    CALL_SECONDS = 10.0

    def __init__(self, options: SinkOptions, sink: str = "", epoch: int = 0) -> None:
        """Call no worker yet. sink, epoch: the names of the write and of its epoch, if rows are staged."""
        super().__init__(options)
        self._sink, self._epoch = sink, epoch

    def _fields(self, peer: Peer) -> dict[str, Any]:
        fields = {"topology": self._topology, "sink": self._sink, "epoch": self._epoch}
        return {**fields, "expected_worker_id": peer.worker_id}

    def find_assigned(self, tasks: Collection[int]) -> set[int]:
        """Return the given tasks that are in the assignment, which is requested again for unknown tasks.

        After the timeout, raises the last error of RETRYABLE_ERRORS. Also raises WrongTopologyError.
        """
        self._with_retries(partial(self._update_owners, tasks))
        return self.owners.by_task.keys() & set(tasks)

    def check_assigned(self, tasks: Collection[int]) -> None:
        """Raise UnknownTaskError unless all of these tasks are assigned. Also raises as find_assigned()."""
        if missing := sorted(set(tasks) - self.find_assigned(tasks)):
            raise self.owners.unknown_error(missing)

    def retry_until_space(self, call: Callable[..., object]) -> None:
        """Repeat `call` until there is free space, as long as the worker answers.

        call: gets its time limit as `timeout`, and raises BufferFullError or FlushTimeoutError without
        free space. Raises UnreachableError if the worker does not answer within the timeout.
        """
        log_rate = LogRateLimiter()
        while True:
            try:
                call(timeout=min(self._timeout, _SPACE_WAIT_SECONDS))
            except (BufferFullError, FlushTimeoutError) as error:
                # Raises UnreachableError if the worker no longer answers; otherwise its queues are full.
                self._with_retries(partial(self[self.last_address].get_loads, [0]))
                if log_rate.count_event(self.last_address):
                    reason = f"{error}. {FREE_CORE_HINT}"
                    logger.warning("sink.waiting", extra={"address": self.last_address, "reason": reason})
            else:
                return

    def discard(self, peer: Peer, attempt: str = "") -> None:
        """Discard the staged messages of an attempt, or of the whole epoch; log a failure."""
        try:
            self[peer.address].discard(pb.DiscardRequest(**self._fields(peer), attempt=attempt))
        except TuplewireError as error:
            logger.info("sink.not_discarded", extra={"address": peer.address, "reason": str(error)})


class AttemptStager(SinkWorkers):
    """Stages the messages of an attempt in pieces, at the workers of their tasks; runs in the Spark task.

    If a task moves during the attempt, its messages are still staged at the worker of its first piece.
    """

    def __init__(
        self, options: SinkOptions, sink: str, epoch: int, partition: int, placement: TaskOwners | None = None
    ) -> None:
        """Start an attempt. sink, epoch, partition: its name, with a random `attempt`.

        placement: the workers that tasks are staged at, even if they have moved; None: the current ones.
        """
        super().__init__(options, sink, epoch)
        self._partition = partition
        self._attempt = uuid.uuid4().hex
        """The name of the attempt. It is random, as Spark's attempt numbers start again with each driver."""
        self.versions = set() if placement is None else {placement.version}
        """The versions of the assignments from which the workers were taken."""
        self._worker_of = {} if placement is None else dict(placement.by_task)
        new_attempt = partial(pb.StagedAttempt, partition=partition, attempt=self._attempt)
        self._pieces = defaultdict[Peer, _Piece](lambda: _Piece(new_attempt()))

    def add(self, groups: Sequence[TaskGroup]) -> None:
        """Stage messages, or add them to the next piece.

        Wait for free space without a time limit. Raises refusals such as UnknownTaskError and
        EpochTooLargeError, and the reason why a worker is unreachable after the timeout.
        """
        self._find_workers(groups)
        for group in groups:
            for subgroup in frame_pieces(group, _PIECE_BYTES):
                # _send() may move groups to another worker's piece, so check again.
                while (piece := self._pieces[self._worker_of[subgroup.task]]).groups and (
                    len(piece.groups) >= MAX_FRAME_GROUPS
                    or piece.size_bytes + wire_bytes(subgroup) > _PIECE_BYTES
                ):
                    self._send(self._worker_of[subgroup.task])
                piece.groups.append(subgroup)
                piece.size_bytes += wire_bytes(subgroup)

    def finish(self) -> dict[Peer, pb.StagedAttempt]:
        """Stage the remaining messages; return the attempt's name and size at each worker."""
        # _send() may move groups to another worker's piece, so repeat until no piece is waiting.
        while waiting := [peer for peer, piece in self._pieces.items() if piece.groups]:
            for peer in waiting:
                self._send(peer)
        return {peer: piece.staged for peer, piece in self._pieces.items() if piece.staged.piece_count}

    def abandon(self) -> None:
        """Discard the staged messages now if possible; otherwise they are dropped with their epoch."""
        for peer, piece in self._pieces.items():
            if piece.staged.piece_count:
                self.discard(peer, self._attempt)

    def find_assigned(self, tasks: Collection[int]) -> set[int]:
        """Do the same as SinkWorkers.find_assigned(), and remember the workers of new tasks."""
        found = super().find_assigned(tasks)
        if new := found - self._worker_of.keys():
            self.versions.add(self.owners.version)
            self._worker_of |= {task: self.owners.by_task[task] for task in new}
        return found

    def _find_workers(self, groups: Iterable[TaskGroup]) -> None:
        """Look up the workers of tasks that are new in this attempt."""
        if new := {group.task for group in groups}.difference(self._worker_of):
            self.check_assigned(new)

    def _send(self, peer: Peer) -> None:
        """Send the next piece to a worker; to other workers if it has no piece of this attempt and fails."""
        piece = self._pieces[peer]
        retry, warnings = RetryDeadline(self._timeout), LogRateLimiter()
        backoff = Backoff(_SETTINGS.backoff_initial_seconds, _SETTINGS.backoff_max_seconds)
        request = pb.StageRequest(
            **self._fields(peer),
            partition=self._partition,
            attempt=self._attempt,
            piece=piece.staged.piece_count,
            frame=plain_frame(piece.groups),
        )
        while True:
            try:
                waits_for = self[peer.address].stage(request)
            except (*RETRYABLE_ERRORS, UnknownTaskError) as error:  # its assignment may be older
                self._wait_or_raise(retry, error)
                if piece.staged.piece_count:  # earlier pieces are staged there, and this one must follow them
                    continue
                # Nothing is staged there yet: find the workers again from a new assignment.
                del self._pieces[peer]
                self._worker_of = {task: each for task, each in self._worker_of.items() if each != peer}
                self._find_workers(piece.groups)
                if any(self._worker_of[group.task] != peer for group in piece.groups):
                    self.add(piece.groups)
                    return
                self._pieces[peer] = piece
                continue
            retry.reset()
            if not waits_for:
                break
            if warnings.count_event(peer.worker_id):
                fields = {"sink": self._sink, "epoch": self._epoch, "worker": peer.worker_id}
                reason = f"no space to stage more messages. {FREE_CORE_HINT}"
                logger.warning("sink.waiting", extra={**fields, "reason": reason, "waits_for": waits_for})
            time.sleep(backoff.next())
        piece.staged.messages += sum(map(len, piece.groups))
        piece.staged.piece_count += 1
        piece.groups, piece.size_bytes = [], 0


class Publisher(SinkWorkers):
    """Publishes the chosen attempts of an epoch by name, in the driver.

    run: the name of the query's run; empty: no other run ever publishes the epoch.
    """

    def __init__(
        self,
        options: SinkOptions,
        sink: str,
        epoch: int,
        chosen: Mapping[Peer, Sequence[pb.StagedAttempt]],
        run: str = "",
    ) -> None:
        super().__init__(options, sink, epoch)
        self._chosen, self._run = chosen, run

    def check(self) -> dict[Peer, Sequence[int]]:
        """Check that all chosen attempts are staged; return the tasks at each worker.

        Raises StagedDataLostError, or the reason why a worker is unreachable after the timeout.
        """
        return {peer: self._check(peer, {}) for peer in self._chosen}

    def _check(self, peer: Peer, earlier: Mapping[int, TaskContent]) -> Sequence[int]:
        request = pb.CheckRequest(**self._fields(peer), **self._attempts(peer, earlier))
        return self._with_retries(partial(self[peer.address].check, request)).tasks

    def publish(self) -> int:
        """Publish the epoch; return the number of messages that were not published before.

        Wait some seconds for free space in the tasks' queues. The workers store the remaining messages, and
        queue them when consumers free space. Each task gets an epoch once, even if another run publishes it
        again or the task has moved, as long as the workers run or shut down cleanly.

        Raises StagedDataLostError if a worker has lost staged messages, and the reason why a worker is
        unreachable after the timeout. Other workers may have published their part by then.
        """
        published: dict[Peer, pb.PublishResponse] = {}
        unaware: list[Peer] = []
        for peer in self._chosen:
            try:
                published[peer] = self._publish(peer, {})
            except UnknownRunError:
                unaware.append(peer)
        earlier: dict[int, TaskContent] = {}
        if unaware and published:
            # A worker that knows this run has had another epoch of it. So no earlier run has this epoch.
            for peer in unaware:
                self._with_retries(partial(self._register_run_at, self[peer.address], peer))
        elif unaware:
            earlier = self._register_run()
        for peer in unaware if earlier else ():  # before any worker publishes its part
            self._check(peer, earlier)
        for peer in unaware:
            published[peer] = self._publish(peer, earlier)
        self._wait_for_space([peer for peer, answer in published.items() if answer.waiting_messages])
        return sum(each.chosen_messages for each in published.values())

    def _wait_for_space(self, waiting: Sequence[Peer]) -> None:
        """Wait a few seconds for free space; log the tasks without any."""
        deadline = time.monotonic() + _COMMIT_WAIT_SECONDS
        while waiting:
            polls: dict[Peer, pb.GetProgressResponse] = {}
            for peer in waiting:
                request = pb.GetProgressRequest(**self._fields(peer))
                polls[peer] = self._with_retries(partial(self[peer.address].progress, request))
            waiting = [peer for peer, answer in polls.items() if answer.waiting_messages]
            if waiting and time.monotonic() > deadline:
                tasks = sorted(task for each in polls.values() for task in each.waiting_tasks)[:_SHOWN_TASKS]
                messages = sum(each.waiting_messages for each in polls.values())
                fields = {"sink": self._sink, "epoch": self._epoch, "waiting": messages, "tasks": tasks}
                reason = f"tasks have no space, or no owner; the workers wait and continue. {FREE_CORE_HINT}"
                logger.warning("sink.waiting", extra={**fields, "reason": reason})
                return

    def _attempts(self, peer: Peer, earlier: Mapping[int, TaskContent]) -> dict[str, Any]:
        """Return request fields: a worker's attempts, and the content that tasks got from `earlier` runs."""
        return {
            "attempts": self._chosen[peer],
            "published_tasks": earlier,
            "published_contents": contents_to_wire(earlier),
        }

    def _publish(self, peer: Peer, earlier: Mapping[int, TaskContent]) -> pb.PublishResponse:
        request = pb.PublishRequest(**self._fields(peer), run=self._run, **self._attempts(peer, earlier))
        return self._with_retries(partial(self[peer.address].publish, request))

    def _register_run(self) -> dict[int, TaskContent]:
        """Register this run at all workers; return the content of tasks that got the epoch by an earlier run.

        An earlier driver may have failed while it published, and a task may have moved since. The task's
        worker of that time knows it, or the workers that this worker notified when it shut down. If a worker
        knows an earlier epoch of this run, other workers may be unreachable.
        """
        responses: dict[Peer, pb.BeginResponse] = {}
        retry = RetryDeadline(self._timeout)
        while True:
            last_error: TuplewireError | None = None
            self._with_retries(self._update_owners)
            for peer in dict.fromkeys((*self._chosen, *self.owners.by_address.values())):
                try:
                    responses[peer] = self._register_run_at(self[peer.address], peer)
                except RETRYABLE_ERRORS as error:
                    last_error = last_error if peer in responses else error
                chosen_answered = responses.keys() >= self._chosen.keys()
                if chosen_answered and any(each.run_continues for each in responses.values()):
                    return {}
            if last_error is None:
                break
            failure = UnreachableError(
                f"the first commit of a run must query all workers, and one is unreachable: {last_error}. "
                "Restart it, or remove it from the assignment, and start the query again"
            )
            self._wait_or_raise(retry, failure)
        answers = list(responses.values())
        previous = {Peer(old.worker_id, old.address) for answer in answers for old in answer.previous_workers}
        unreachable = False
        # A worker that is no longer assigned may still be draining, and knows the epochs of its tasks.
        for peer in previous - responses.keys():
            try:
                with self.client(peer.address, _PREVIOUS_OWNER_SECONDS) as control:
                    answers.append(self._register_run_at(control, peer))
            except RETRYABLE_ERRORS:
                unreachable = True
        if unreachable:  # it may have shut down and notified the others only after they were polled
            for peer in responses:
                with suppress(UnreachableError):
                    answers.append(self._register_run_at(self[peer.address], peer))
        return {
            task: content
            for answer in answers
            for task, content in contents_from_wire(answer.published_tasks, answer.published_contents).items()
        }

    def _register_run_at(self, control: ControlClient, peer: Peer) -> pb.BeginResponse:
        attempts = self._chosen.get(peer, ())
        return control.begin(pb.BeginRequest(**self._fields(peer), run=self._run, attempts=attempts))
