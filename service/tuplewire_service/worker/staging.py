"""The messages that attempts of sinks have staged, until one attempt for each partition is chosen.

Staged messages are not visible. Other attempts are dropped at the sink's next epoch, or after a timeout.
Used by publications.py, sinks.py and control/spark_servicers.py. Owns the open epochs. Pure state.
Call only from the event loop. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple
from zlib import adler32

from tuplewire.errors import (
    EpochTooLargeError,
    ResourceLimitError,
    SequenceGapError,
    StagedDataLostError,
    StaleEpochError,
    TuplewireError,
)
from tuplewire.session.pieces import wire_bytes
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker.stage_file import AttemptPart

Sink = tuple[str, str]
"""The owner and the name. Sinks of different owners are separate, even with one name; see AccessRights."""
IDLE_SECONDS = 60.0
"""Seconds without a new piece after which an attempt may be dropped in favor of another of its partition."""
_CHECKSUM_MASK = 0xFFFF
"""The half of Adler-32 that sums the bytes, regardless of their order."""
_ENTRY_BYTES = 200
"""Memory for the entry of a group that is in a file."""
_INDEX_DIVISOR = 4
"""One part in this many of the memory is reserved for entries of groups in files."""


class AttemptName(NamedTuple):
    """An attempt, with the amount that it reports to have staged here."""

    partition: int
    attempt_id: str
    messages: int
    pieces: int


class Placement(enum.Enum):
    """The decision about a piece: where it is stored, or why it is not."""

    MEMORY = "memory"
    DISK = "disk"
    NO_SPACE = "no space"
    STAGED = "staged"


@dataclass(slots=True, eq=False)
class StagedGroup:
    """A group of an attempt: in memory, or at a place in its file."""

    attempt: Attempt
    task: int
    messages: int
    group_bytes: int
    group: TaskGroup | None
    checksum: int
    offset: int = 0
    length: int = 0

    @classmethod
    def of(cls, attempt: Attempt, group: TaskGroup, place: tuple[int, int] | None = None) -> StagedGroup:
        """Describe a group in memory, or at `place`: the offset and the length in the file."""
        checksum = adler32(group.header_data, adler32(group.data, 0) & _CHECKSUM_MASK) & _CHECKSUM_MASK
        in_memory = group if place is None else None
        return cls(attempt, group.task, group.count, group.size_bytes, in_memory, checksum, *(place or ()))


@dataclass(slots=True, eq=False)
class Attempt:
    """The staged messages of one attempt. `is_writing` is True while a piece is written to the file."""

    partition: int
    last_used: float
    groups: list[StagedGroup] = field(default_factory=list)
    pieces: int = 0
    messages: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    file: AttemptPart | None = None
    is_writing: bool = False
    is_dropped: bool = False
    remaining_groups: int = 0
    """Number of its groups that are still needed."""

    def close(self) -> None:
        """Release the file, unless a thread is writing to it."""
        if self.file is not None and not self.is_writing:
            self.file.close()
            self.file = None


@dataclass(slots=True, eq=False)
class _OpenEpoch:
    sink: Sink
    epoch: int
    opened: float
    last_used_at: float
    attempts: dict[str, Attempt] = field(default_factory=dict)
    waits_since: float | None = None


@dataclass(eq=False, repr=False)
class Staging:
    """The open epochs of all sinks. Call only from the event loop; the caller writes the files."""

    max_memory: int
    max_disk: int
    expiry_seconds: float
    """Seconds after its last use when an epoch expires."""
    memory_bytes: int = 0
    """Bytes in memory, including published groups that wait for space."""
    disk_bytes: int = 0
    """The same in files."""
    no_space_count: int = 0
    _epochs: dict[Sink, _OpenEpoch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._epochs)

    def is_open(self, sink: Sink, epoch: int) -> bool:
        """Return True if unchosen messages of an epoch are staged here."""
        found = self._epochs.get(sink)
        return found is not None and found.epoch == epoch

    def reserve(
        self, sink: Sink, epoch: int, name: AttemptName, piece: int, groups: Sequence[TaskGroup], now: float
    ) -> tuple[Placement, Attempt]:
        """Reserve space for a piece, at `now` seconds of any clock. After Placement.DISK, call on_written().

        Raises SequenceGapError if earlier pieces are missing, StaleEpochError if the sink has a later epoch,
        EpochTooLargeError if the piece can never fit, and ResourceLimitError if others wait for space.
        """
        state = self._open(sink, epoch, now)
        try:
            return self._place(state, name, piece, groups, now)
        except TuplewireError:
            attempt = state.attempts.get(name.attempt_id)
            # An epoch without attempts would count as open until it expires.
            self._forget(state, [name.attempt_id] if attempt is not None and not attempt.pieces else [])
            raise

    def _place(
        self, state: _OpenEpoch, name: AttemptName, piece: int, groups: Sequence[TaskGroup], now: float
    ) -> tuple[Placement, Attempt]:
        """Find a place for a piece.

        1. The attempt starts, or starts again: with an empty record.
        2. A thread still writes the previous piece: there is no space now.
        3. The last piece again: it is staged already.
        4. An earlier piece is missing: an error.
        5. There is no space, also without idle attempts: wait, unless waiting cannot help.
        6. There is space in the file or in memory.
        """
        attempt = state.attempts.get(name.attempt_id)
        # 1. Piece 0 restarts an attempt.
        if attempt is None or (not piece and not attempt.is_writing):
            if attempt is not None:
                self._drop(state.attempts.pop(name.attempt_id))
            attempt = state.attempts[name.attempt_id] = Attempt(name.partition, now)
        state.last_used_at = attempt.last_used = now
        # 2. The caller retries, so the pieces of an attempt stay in order.
        if attempt.is_writing:
            return Placement.NO_SPACE, attempt
        # 3. Its response was lost.
        if piece == attempt.pieces - 1:
            return Placement.STAGED, attempt
        # 4. A restarted worker has lost its staged messages.
        if piece != attempt.pieces:
            raise SequenceGapError(
                f"sink {state.sink[1]!r}: piece {piece} of attempt {name.attempt_id} in epoch {state.epoch} "
                "does not follow the last one that is here: this worker has started since, or has dropped "
                "the attempt; run the Spark task again"
            )
        size = sum(map(wire_bytes, groups))
        placement = self._placement(size, len(groups), self.memory_bytes, self.disk_bytes)
        if placement is Placement.NO_SPACE:
            self._drop_idle(now)
            placement = self._placement(size, len(groups), self.memory_bytes, self.disk_bytes)
        # 5. An error here would stop a Spark task that only has to wait; see docs/design/sinks.md.
        if placement is Placement.NO_SPACE:
            self.no_space_count += 1
            state.waits_since = now if state.waits_since is None else state.waits_since
            self._check_feasible(state, attempt, (size, len(groups)))
            return placement, attempt
        state.waits_since = None
        # 6. A piece in the file counts as staged once a thread has written it; see on_written().
        if placement is Placement.DISK:
            attempt.is_writing = True
            self._add_usage(attempt, _ENTRY_BYTES * len(groups), size)
        else:
            self._add_usage(attempt, size, 0)
            self._add_groups(attempt, [StagedGroup.of(attempt, group) for group in groups])
        return placement, attempt

    def on_written(self, attempt: Attempt, groups: Sequence[StagedGroup]) -> bool:
        """Record the places of a piece's groups in the file; return False if the attempt was dropped."""
        attempt.is_writing = False
        # The attempt was dropped while a thread wrote its file.
        if attempt.is_dropped:
            attempt.close()
            return False
        self._add_groups(attempt, groups)
        return True

    def on_write_failed(self, sink: Sink, attempt: Attempt) -> None:
        """Drop an attempt after a failed write."""
        attempt.is_writing = False
        if (state := self._epochs.get(sink)) is not None:
            self._forget(state, [key for key, each in state.attempts.items() if each is attempt])
        attempt.close()

    def find(self, sink: Sink, epoch: int, names: Iterable[AttemptName]) -> list[Attempt]:
        """Return attempts by partition. Raises StagedDataLostError unless all of them are complete."""
        state = self._epochs.get(sink)
        found: list[Attempt] = []
        for name in sorted(names):
            attempt = None if state is None or state.epoch != epoch else state.attempts.get(name.attempt_id)
            if attempt is None or (attempt.messages, attempt.pieces) != (name.messages, name.pieces):
                raise StagedDataLostError(
                    f"sink {sink[1]!r}: {name.messages} messages of partition {name.partition} in epoch "
                    f"{epoch} are not here as they were staged: this worker has started since, or they have "
                    "waited longer than staging_expiry_seconds. Start the query or the write again, to "
                    "compute the epoch again"
                )
            found.append(attempt)
        return found

    def choose(self, sink: Sink, epoch: int, names: Iterable[AttemptName]) -> list[Attempt]:
        """Remove and return attempts as find() does; drop the sink's others. An error changes nothing."""
        chosen = self.find(sink, epoch, names)
        if chosen:
            kept = set(map(id, chosen))
            for attempt in self._epochs.pop(sink).attempts.values():
                if id(attempt) not in kept:
                    self._drop(attempt)
        return chosen

    def free_group(self, staged: StagedGroup) -> None:
        """Free the space of a group that is no longer needed."""
        attempt = staged.attempt
        attempt.remaining_groups -= 1
        self.memory_bytes -= _ENTRY_BYTES if staged.group is None else wire_bytes(staged.group)
        # The space of a file is freed with the last group of the attempt.
        if not attempt.remaining_groups:
            self.disk_bytes -= attempt.disk_bytes
            attempt.close()

    def discard(self, sink: Sink, epoch: int, attempt_id: str) -> None:
        """Drop the staged messages of an attempt; without an attempt, of the whole epoch."""
        state = self._epochs.get(sink)
        if state is not None and state.epoch == epoch:
            self._forget(state, [each for each in state.attempts if attempt_id in {"", each}])

    def keep_only(self, sink: Sink, epoch: int, attempt_ids: Container[str]) -> None:
        """Drop a sink's messages of this and earlier epochs, except for these attempts."""
        state = self._epochs.get(sink)
        if state is not None and state.epoch <= epoch:
            kept = attempt_ids if state.epoch == epoch else ()
            self._forget(state, [each for each in state.attempts if each not in kept])

    def expire(self, now: float) -> list[tuple[Sink, int]]:
        """Drop and return the epochs that were unused for too long."""
        old = [each for each in self._epochs.values() if each.last_used_at < now - self.expiry_seconds]
        for state in old:
            self._forget(state, list(state.attempts))
        return [(state.sink, state.epoch) for state in old]

    def _open(self, sink: Sink, epoch: int, now: float) -> _OpenEpoch:
        state = self._epochs.get(sink)
        if state is not None and epoch < state.epoch:
            raise StaleEpochError(
                f"sink {sink[1]!r} has begun epoch {state.epoch}, which is after epoch {epoch}: another "
                "program uses its name (rename the sink), or this attempt is of an earlier one"
            )
        # Epochs of a sink only grow, so no attempt of the earlier one is chosen after this.
        if state is not None and epoch > state.epoch:
            self._forget(state, list(state.attempts))
            state = None
        if state is None:
            state = self._epochs[sink] = _OpenEpoch(sink, epoch, now, now)
        return state

    def _forget(self, state: _OpenEpoch, attempt_ids: Iterable[str]) -> None:
        for attempt_id in attempt_ids:
            self._drop(state.attempts.pop(attempt_id))
        if not state.attempts:
            del self._epochs[state.sink]

    def _add_usage(self, attempt: Attempt, memory: int, disk: int) -> None:
        attempt.memory_bytes += memory
        attempt.disk_bytes += disk
        self.memory_bytes += memory
        self.disk_bytes += disk

    def _add_groups(self, attempt: Attempt, groups: Sequence[StagedGroup]) -> None:
        attempt.groups += groups
        attempt.remaining_groups += len(groups)
        attempt.messages += sum(each.messages for each in groups)
        attempt.pieces += 1

    def _drop(self, attempt: Attempt) -> None:
        attempt.is_dropped = True
        attempt.groups.clear()
        self.memory_bytes -= attempt.memory_bytes
        self.disk_bytes -= attempt.disk_bytes
        attempt.close()

    def _placement(self, size: int, groups: int, memory: int, disk: int) -> Placement:
        """Return the place for a piece, for the given usage of memory and files."""
        # Messages cannot fill all the memory: the index of the file must be in memory, too.
        if memory + size <= self.max_memory - self.max_memory // _INDEX_DIVISOR:
            return Placement.MEMORY
        fits = disk + size <= self.max_disk and memory + _ENTRY_BYTES * groups <= self.max_memory
        return Placement.DISK if fits else Placement.NO_SPACE

    def _drop_idle(self, now: float) -> None:
        """Drop idle attempts of partitions that have a newer attempt."""
        for state in self._epochs.values():
            # Retried Spark tasks leave several attempts of a partition.
            in_order = sorted(state.attempts.values(), key=attrgetter("last_used"))
            latest = {attempt.partition: attempt for attempt in in_order}
            for attempt_id, attempt in list(state.attempts.items()):
                if attempt is not latest[attempt.partition] and attempt.last_used < now - IDLE_SECONDS:
                    self._drop(state.attempts.pop(attempt_id))

    def _check_feasible(self, state: _OpenEpoch, attempt: Attempt, size: tuple[int, int]) -> None:
        """Raise an error if no action of others can make space for a piece (size and groups)."""
        # Assume that only one attempt for each partition remains.
        attempts = {each.partition: each for each in state.attempts.values()}
        attempts[attempt.partition] = attempt
        memory = sum(each.memory_bytes for each in attempts.values())
        disk = sum(each.disk_bytes for each in attempts.values())
        error: type[TuplewireError] = EpochTooLargeError
        problem = f"an epoch of more than {memory + disk} bytes does not fit"
        # It fits alone, so waiting helps, unless epochs that also wait hold all space.
        if self._placement(*size, memory, disk) is not Placement.NO_SPACE:
            if not self._is_deadlocked(state):
                return
            # The others can continue without this attempt.
            error, problem = ResourceLimitError, "the waiting epochs of this and other sinks do not all fit"
        raise error(
            f"sink {state.sink[1]!r}: {problem} into this worker's staging space, "
            f"{self.max_memory} bytes in memory and {self.max_disk} in files; raise its "
            "staging_disk_bytes and staging_memory_bytes, or write less in a micro-batch. "
            "Options such as maxFilesPerTrigger limit a micro-batch"
        )

    def _is_deadlocked(self, state: _OpenEpoch) -> bool:
        """Return True if epochs that have long waited for space hold all of it, and this is the youngest."""
        attempts = [(each, attempt) for each in self._epochs.values() for attempt in each.attempts.values()]
        staged_bytes = sum(attempt.memory_bytes + attempt.disk_bytes for _, attempt in attempts)
        if staged_bytes < self.memory_bytes + self.disk_bytes:
            return False  # the rest is being published
        holders = [each for each, attempt in attempts if attempt.groups]
        oldest_news = state.last_used_at - IDLE_SECONDS
        return all(
            each.waits_since is not None and each.waits_since <= oldest_news and each.opened <= state.opened
            for each in (*holders, state)
        )
