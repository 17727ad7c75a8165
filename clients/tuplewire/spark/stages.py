"""Stages the rows of an attempt of a Spark task at the workers of their tasks.

Used by the writers and the Publisher. Owns the clients of the workers and the pieces that are not full yet.
Not thread-safe. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tuplewire.connection.task_owners import At
from tuplewire.errors import BufferFullError, FlushTimeoutError, TuplewireError, UnknownTaskError
from tuplewire.session.pieces import frame_pieces, wire_bytes
from tuplewire.session.retry import Backoff
from tuplewire.settings.config import KIB, SessionSettings
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.task_workers import RETRYABLE_ERRORS, RetryDeadline, TaskWorkers
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.codec import plain_frame

logger = event_logger(__name__)

_PIECE_BYTES = 512 * KIB
_SETTINGS = SessionSettings()
_LOOK_SECONDS = 5.0
"""The time that a task waits for free space before it logs a warning."""
NEEDS_A_SLOT = "If a query of this program is to read them, Spark needs a free core for it"
"""A write's tasks may use all cores: then neither can continue. See docs/how-to/spark.md."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers of all tasks in one version of the assignment, the same for all attempts of an epoch."""

    version: int
    worker_of: Mapping[int, At]


@dataclass(slots=True)
class _Piece:
    """The next piece for a worker, and the counts of earlier ones."""

    groups: list[TaskGroup] = field(default_factory=list)
    size_bytes: int = 0
    messages: int = 0
    pieces: int = 0


class SinkWorkers(TaskWorkers):
    """The workers of a sink; the common base of attempts and the driver's part."""

    CALL_SECONDS = 10.0

    def __init__(self, options: SinkOptions, sink: str = "", epoch: int = 0) -> None:
        """Call no worker yet. sink, epoch: the names of the write and of its epoch, if rows are staged."""
        super().__init__(options)
        self._sink, self._epoch = sink, epoch

    def _about(self, at: At) -> dict[str, Any]:
        return {"topology": self._topology, "sink": self._sink, "epoch": self._epoch, "receiver_id": at[1]}

    def known(self, tasks: Collection[int]) -> set[int]:
        """Return the given tasks that are in the assignment, which is requested again for unknown tasks.

        Raises the reason why the worker is unreachable after the timeout, and WrongTopologyError.
        """
        self._with_retries(partial(self._look_up, tasks))
        return self.owners.of.keys() & set(tasks)

    def check_known(self, tasks: Collection[int]) -> None:
        """Raise UnknownTaskError unless the assignment has all of these tasks. Also raises as known()."""
        if missing := sorted(set(tasks) - self.known(tasks)):
            raise self.owners.unknown(missing)

    def wait_for_room(self, attempt: Callable[..., object]) -> None:
        """Repeat `attempt` until there is free space, as long as the worker answers.

        attempt: gets its time limit as `timeout`, and raises BufferFullError or FlushTimeoutError without
        free space. Raises UnreachableError if the worker does not answer within the timeout.
        """
        warnings = LogRate()
        while True:
            try:
                attempt(timeout=min(self._timeout, _LOOK_SECONDS))
            except (BufferFullError, FlushTimeoutError) as error:
                # Raises UnreachableError if the worker no longer answers; otherwise its queues are full.
                self._with_retries(partial(self[self.reached].load, [0]))
                if warnings.due(self.reached):
                    reason = f"{error}. {NEEDS_A_SLOT}"
                    logger.warning("sink.waiting", extra={"worker": self.reached, "reason": reason})
            else:
                return

    def discard(self, at: At, attempt: str = "") -> None:
        """Discard the staged messages of an attempt, or of the whole epoch; log a failure."""
        try:
            self[at[0]].discard(pb.DiscardRequest(**self._about(at), attempt=attempt))
        except TuplewireError as error:
            logger.info("sink.not_discarded", extra={"address": at[0], "reason": str(error)})


class AttemptStage(SinkWorkers):
    """Stages the messages of an attempt in pieces, at the workers of their tasks; runs in the Spark task.

    If a task moves during the attempt, its messages are still staged at the worker of its first piece.
    """

    def __init__(
        self, options: SinkOptions, sink: str, epoch: int, partition: int, placement: Placement | None = None
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
        self._worker_of = {} if placement is None else dict(placement.worker_of)
        self._pieces: dict[At, _Piece] = {}

    def add(self, groups: Sequence[TaskGroup]) -> None:
        """Stage messages, or add them to the next piece.

        Wait for free space without a time limit. Raises refusals such as UnknownTaskError and
        EpochTooLargeError, and the reason why a worker is unreachable after the timeout.
        """
        self._find(groups)
        for group in groups:
            for part in frame_pieces(group, _PIECE_BYTES):
                piece = self._piece_for(part)
                full = len(piece.groups) >= MAX_FRAME_GROUPS
                if full or (piece.groups and piece.size_bytes + wire_bytes(part) > _PIECE_BYTES):
                    self._send(self._worker_of[part.task])
                    piece = self._piece_for(part)
                piece.groups.append(part)
                piece.size_bytes += wire_bytes(part)

    def _piece_for(self, group: TaskGroup) -> _Piece:
        return self._pieces.setdefault(self._worker_of[group.task], _Piece())

    def end(self) -> dict[At, pb.StagedAttempt]:
        """Stage the remaining messages; return the attempt's name and size at each worker."""
        # _send() may move groups to another worker's piece, so repeat until no piece is waiting.
        while waiting := [at for at, piece in self._pieces.items() if piece.groups]:
            for at in waiting:
                self._send(at)
        return {
            at: pb.StagedAttempt(
                partition=self._partition, attempt=self._attempt, messages=piece.messages, pieces=piece.pieces
            )
            for at, piece in self._pieces.items()
            if piece.pieces
        }

    def abandon(self) -> None:
        """Discard the staged messages now if possible; otherwise they are dropped with their epoch."""
        for at, piece in self._pieces.items():
            if piece.pieces:
                self.discard(at, self._attempt)

    def known(self, tasks: Collection[int]) -> set[int]:
        """Do the same as SinkWorkers.known(), and remember the workers of new tasks."""
        found = super().known(tasks)
        if new := found - self._worker_of.keys():
            self.versions.add(self.owners.version)
            self._worker_of |= {task: self.owners.of[task] for task in new}
        return found

    def _find(self, groups: Iterable[TaskGroup]) -> None:
        """Look up the workers of tasks that are new in this attempt."""
        if new := {group.task for group in groups}.difference(self._worker_of):
            self.check_known(new)

    def _send(self, at: At) -> None:
        """Send the next piece to a worker; to other workers if it has no piece of this attempt and fails."""
        address, worker_id = at
        piece = self._pieces[at]
        retry, warnings = RetryDeadline(self._timeout), LogRate()
        backoff = Backoff(_SETTINGS.backoff_initial_seconds, _SETTINGS.backoff_max_seconds, random.random)
        request = pb.StageRequest(
            **self._about(at),
            partition=self._partition,
            attempt=self._attempt,
            piece=piece.pieces,
            frame=plain_frame(piece.groups),
        )
        while True:
            try:
                waits_for = self[address].stage(request)
            except (*RETRYABLE_ERRORS, UnknownTaskError) as error:  # its assignment may be older
                self._wait_or_raise(retry, error)
                if piece.pieces:  # earlier pieces are staged there, and this one must follow them
                    continue
                # Nothing is staged there yet: find the workers again from a new assignment.
                del self._pieces[at]
                self._worker_of = {task: each for task, each in self._worker_of.items() if each != at}
                self._find(piece.groups)
                if any(self._worker_of[group.task] != at for group in piece.groups):
                    self.add(piece.groups)
                    return
                self._pieces[at] = piece
                continue
            retry.reset()
            if not waits_for:
                break
            if warnings.due(worker_id):
                about = {"sink": self._sink, "epoch": self._epoch, "worker": worker_id}
                reason = f"no room to stage: the tasks' queues are full. {NEEDS_A_SLOT}"
                logger.warning("sink.waiting", extra={**about, "reason": reason, "waits_for": waits_for})
            time.sleep(backoff.next())
        piece.messages += sum(map(len, piece.groups))
        piece.pieces += 1
        piece.groups, piece.size_bytes = [], 0
