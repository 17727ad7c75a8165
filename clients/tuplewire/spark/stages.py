"""Attempts of Spark tasks stage what they write, at the workers of its tasks."""

from __future__ import annotations

import random
import time
import uuid
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuplewire.errors import (
    BufferFullError,
    DrainingError,
    FlushTimeoutError,
    NotReadyError,
    TuplewireError,
    UnknownTaskError,
    UnreachableError,
    WrongWorkerError,
)
from tuplewire.session.pieces import frame_pieces, wire_bytes
from tuplewire.session.retry import Backoff
from tuplewire.settings.config import KIB, SessionSettings
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.task_workers import At, Patience, TaskWorkers
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.codec import plain_frame

logger = event_logger(__name__)

_PIECE_BYTES = 512 * KIB
_SETTINGS = SessionSettings()
_LEAST_CALL_SECONDS = 2.0
"""A worker takes a moment to answer that something waits, whatever the user's timeout is."""
_LOOK_SECONDS = 5.0
"""So long a task waits for room before it says so."""
NEEDS_A_SLOT = "If a query of this program is to read them, Spark needs a free core for it"
"""A write's tasks may hold all of them: then neither goes on. See docs/how-to/spark.md."""
AWAY = (UnreachableError, NotReadyError, DrainingError, WrongWorkerError)
"""A worker may be back soon, or its tasks elsewhere."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tasks are, by one version of the assignment. All attempts of an epoch go by the same."""

    version: int
    tasks: Mapping[At, array[int]]

    def workers(self) -> dict[int, At]:
        """Return the worker of each task."""
        return {task: at for at, tasks in self.tasks.items() for task in tasks}


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What an attempt has staged at one worker: where, and how much."""

    address: str
    worker_id: str
    messages: int
    pieces: int


@dataclass(slots=True)
class _Piece:
    """What goes to a worker next, and what has gone there."""

    groups: list[TaskGroup] = field(default_factory=list)
    size_bytes: int = 0
    messages: int = 0
    pieces: int = 0


class SinkWorkers(TaskWorkers):
    """The workers that a sink writes to; what attempts and the driver have in common."""

    CALL_SECONDS = 10.0

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self._seconds = options.timeout
        self._timeout = max(options.timeout, _LEAST_CALL_SECONDS)

    def placement(self) -> Placement:
        """Return where all tasks are now; raises what known() raises."""
        self._workers_of(())
        tasks: dict[At, array[int]] = {}
        for task, at in self._all.items():
            tasks.setdefault(at, array("i")).append(task)
        return Placement(self._version, tasks)

    def known(self, tasks: Collection[int]) -> set[int]:
        """Return which of some tasks the assignment has, by another look at it.

        Raises what keeps the worker out of reach once the timeout has passed, and WrongTopologyError.
        """
        return set(self._workers_of(tasks))

    def check_known(self, tasks: Collection[int]) -> None:
        """Raise UnknownTaskError, and what known() raises, unless the assignment has all of these tasks."""
        if missing := sorted(set(tasks) - self.known(tasks)):
            raise self._unknown(missing)

    def _workers_of(self, tasks: Collection[int]) -> dict[int, At]:
        patience = Patience(self._seconds)
        while True:
            try:
                return self._assigned(tasks)
            except AWAY as error:
                self._bear(patience, error, self._address)

    def _bear(self, patience: Patience, error: TuplewireError, address: str) -> None:
        """Wait a moment, and connect anew: gRPC waits longer each time. Raise the error if time is over."""
        self.drop(address)
        patience.bear(error)

    def wait_for_room(self, attempt: Callable[[float], object]) -> None:
        """Try to hand messages over until there is room for them, as long as the worker answers.

        attempt: takes how long to try, and raises BufferFullError or FlushTimeoutError if there was no room.
        Raises UnreachableError once the worker does not answer within the timeout.
        """
        warnings = LogRate()
        while True:
            try:
                attempt(min(self._seconds, _LOOK_SECONDS))
            except (BufferFullError, FlushTimeoutError) as error:
                with self.client(self.reached, self._timeout) as control:
                    control.load([0])
                if warnings.due(self.reached):
                    reason = f"{error}. {NEEDS_A_SLOT}"
                    logger.warning("sink.waits", extra={"worker": self.reached, "reason": reason})
            else:
                return

    def discard(self, at: At, sink: str, epoch: int, attempt: str = "") -> None:
        """Have what was staged of an attempt thrown away, or all of an epoch; log it if that fails."""
        address, worker_id = at
        try:
            self[address].discard(
                pb.DiscardRequest(
                    topology=self._topology, sink=sink, epoch=epoch, attempt=attempt, receiver_id=worker_id
                )
            )
        except TuplewireError as error:
            logger.info("sink.not_discarded", extra={"address": address, "reason": str(error)})


class AttemptStage(SinkWorkers):
    """Stages what an attempt of a Spark task writes, piece by piece as it comes, at the workers of its tasks.

    In the task. A task that moves meanwhile stays staged where the attempt has begun with it.
    """

    def __init__(
        self,
        options: SinkOptions,
        sink: str,
        epoch: int,
        partition: int,
        placement: Placement | None = None,
    ) -> None:
        """Begin. sink, epoch, partition: see Stage.

        placement: where the tasks are staged, though they may have moved since; None: where they are now.
        """
        super().__init__(options)
        self._sink, self._epoch, self._partition = sink, epoch, partition
        self.attempt = uuid.uuid4().hex
        """Its name. Spark's numbers of attempts begin anew with every driver."""
        self.versions = set() if placement is None else {placement.version}
        """The versions of the assignment by which it has found its workers."""
        self._worker_of = {} if placement is None else placement.workers()
        self._pieces: dict[At, _Piece] = {}

    def add(self, groups: Sequence[TaskGroup]) -> None:
        """Stage messages, or keep them for the next piece.

        Waits for room as long as it takes. Raises UnknownTaskError, EpochTooLargeError and the like, and what
        keeps a worker out of reach once the timeout has passed.
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

    def end(self) -> list[StagedPart]:
        """Stage the rest; return what is where."""
        while waiting := [at for at, piece in self._pieces.items() if piece.groups]:
            for at in waiting:
                self._send(at)
        return [
            StagedPart(*at, piece.messages, piece.pieces)
            for at, piece in self._pieces.items()
            if piece.pieces
        ]

    def abandon(self) -> None:
        """Have what was staged thrown away, where that is possible at once; else it dies with its epoch."""
        for at, piece in self._pieces.items():
            if piece.pieces:
                self.discard(at, self._sink, self._epoch, self.attempt)

    def _workers_of(self, tasks: Collection[int]) -> dict[int, At]:
        found = super()._workers_of(tasks)
        if new := {task: at for task, at in found.items() if task not in self._worker_of}:
            self.versions.add(self._version)
            self._worker_of |= new
        return found

    def _find(self, groups: Iterable[TaskGroup]) -> None:
        """Find the workers of tasks that the attempt has not had yet."""
        if new := {group.task for group in groups}.difference(self._worker_of):
            self.check_known(new)

    def _send(self, at: At) -> None:
        """Send the next piece to a worker; to others if it has none of ours and takes none."""
        address, worker_id = at
        piece = self._pieces[at]
        patience, warnings = Patience(self._seconds), LogRate()
        backoff = Backoff(_SETTINGS.backoff_initial_seconds, _SETTINGS.backoff_max_seconds, random.random)
        request = pb.StageRequest(
            topology=self._topology,
            sink=self._sink,
            epoch=self._epoch,
            partition=self._partition,
            attempt=self.attempt,
            piece=piece.pieces,
            frame=plain_frame(piece.groups),
            receiver_id=worker_id,
        )
        while True:
            try:
                waits_for = self[address].stage(request)
            except (*AWAY, UnknownTaskError) as error:  # the worker's assignment may be older than ours
                self._bear(patience, error, address)
                if piece.pieces:
                    continue
                del self._pieces[at]
                self._worker_of = {task: each for task, each in self._worker_of.items() if each != at}
                self._find(piece.groups)
                if any(self._worker_of[group.task] != at for group in piece.groups):
                    self.add(piece.groups)
                    return
                self._pieces[at] = piece
                continue
            patience.over()
            if not waits_for:
                break
            if warnings.due(worker_id):
                about = {"sink": self._sink, "epoch": self._epoch, "worker": worker_id}
                reason = f"no room to stage: the tasks' queues are full. {NEEDS_A_SLOT}"
                logger.warning("sink.waits", extra={**about, "reason": reason, "waits_for": waits_for})
            time.sleep(backoff.next())
        piece.messages += sum(map(len, piece.groups))
        piece.pieces += 1
        piece.groups, piece.size_bytes = [], 0
