"""Batch and stream readers of the format `tuplewire`.

Used by Spark through data_source.py: the driver plans offsets, and Spark tasks read ranges (range_reader.py).
Owns the query's position and its connections to the workers. Not thread-safe. Design: docs/design/readers.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tuplewire.errors import RefusedError, SupersededError, UnreachableError
from tuplewire.spark.data_source_api import ReadAllAvailable, SupportsTriggerAvailableNow
from tuplewire.spark.entry_runs import EntryRuns
from tuplewire.spark.offsets import (
    LAG_KEY,
    Offset,
    QueueState,
    QueueStates,
    ReadRange,
    TaskOffset,
    add_entry_sequences,
    check_not_consumed,
    check_removed,
    check_still_assigned,
    end_offsets,
    initial_offset,
    loss_error,
    next_offset,
    ranges,
    task_ends,
)
from tuplewire.spark.options import SourceOptions, StartingOffset
from tuplewire.spark.range_reader import RangeReader
from tuplewire.spark.task_workers import TaskPoller
from tuplewire.spark.version_check import VersionChecked
from tuplewire.text.events import event_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

logger = event_logger(__name__)

_IDLE_SECONDS = 0.4
"""The time that one poll waits for messages. Spark polls the sources of a query one after the other."""
_UNLIMITED = 2**62


@dataclass
class RangePartition(InputPartition):
    """A partition of a read, which is sent to the Spark task. addresses: of known workers."""

    message_range: ReadRange
    addresses: tuple[str, ...] = ()


class RangePartitionReader(VersionChecked):
    """The common base of both readers: their options, and the read of a partition in a Spark task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a partition, in order."""
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark plans one empty partition if there are none
        return iter(RangeReader(partition.message_range, self._options, partition.addresses))


class TuplewireBatchReader(RangePartitionReader, DataSourceReader):
    """Reads the queued messages of some tasks without acknowledging them: they stay for the consumer.

    Spark plans it once: a DataFrame has the messages at its first use. After another program acknowledges
    them, another use of the same DataFrame raises DataLossError.
    """

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task with messages. Raises SupersededError if one has a consumer."""
        reader = TuplewireStreamReader(self._options)
        try:
            start = Offset({}).to_json()  # each task starts before its unacknowledged messages
            end = reader.number_end(start)
            for task, each in reader.states.items():
                if each.consumer:
                    raise SupersededError(f"task {task} has a consumer, {each.consumer!r}: stop it first")
            return reader.partitions(start, end)
        finally:
            reader.stop()


class TuplewireStreamReader(RangePartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads tasks for a streaming query, which must be their only consumer.

    Guarantee: while the workers run, each message is in exactly one micro-batch, even if the driver is killed
    at any moment and the query restarts from its checkpoint. A worker retains uncommitted messages within its
    receive queues, so a query that is slower than its senders makes them wait.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._poller = TaskPoller(options)
        self._target: dict[int, TaskOffset] | None = None
        self.states: dict[int, QueueState] = {}
        """The state at the last poll."""
        self._idle_states: dict[int, QueueState] = {}
        """The state at the last poll, if it resulted in no micro-batch."""
        self._end = Offset({})
        """The end of the last planned micro-batch."""
        self._last_batch_at = time.monotonic()
        self._acknowledged_offset: Offset | None = None
        self._runs: dict[int, EntryRuns] = {}
        """The entry sequences of the messages that the last latestOffset() found."""
        self._checked_moves: set[tuple[int, int]] = set()
        """Tasks and their new workers (incarnations) after the check of the previous owner."""
        self._checked_removed: set[int] = set()
        """Tasks that the query no longer reads, after the check for unread messages."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a new query: before all unacknowledged messages, or after them."""
        states = self._poller.poll_all()
        latest = {task for task in states if self._options.starting_offset(task) is StartingOffset.LATEST}
        if skipped := {task: states[task].tail - states[task].acknowledged for task in sorted(latest)}:
            logger.info("spark.messages_skipped", extra={"messages": skipped})
        return initial_offset(states, latest).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit in messages; latestOffset() applies the others, too."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        # Not ReadAllAvailable, which Spark passes to override limits.
        return ReadMaxRows(self._options.max_messages_per_trigger or _UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the current end of the tasks as the end of the query."""
        self._target = end_offsets(self._poller.poll_all())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch, after waiting a moment for messages.

        Acknowledge the messages before start: Spark requests a next offset only after the batch that ends at
        start is in its commit log. Spark calls commit() later, with the next batch. A query would stall if
        uncommitted messages left no free space for senders.

        Raises DataLossError if failOnDataLoss is set, UnreachableError if a worker is unreachable, and
        ConfigError if the query stops reading tasks that still have messages for it.
        """
        position = Offset.from_json(start)
        self._acknowledge(position)
        self._check_removed(position)
        max_messages = getattr(limit, "max_rows", None)
        max_bytes = None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            wait = 0.0 if self._target is not None else max(0.0, deadline - time.monotonic())
            states = self._poller.poll_all(self._idle_states, wait)
            now = time.monotonic()
            begin = position.relocate_to(states)
            self._check_previous_owners(position, states)
            self.states = states
            if self._options.fail_on_data_loss:
                wanted = self._options.tasks
                check_still_assigned((task for task in position.offsets if task in wanted), states)
                check_not_consumed(begin, states)
            end = next_offset(
                begin,
                states,
                target=self._target,
                min_messages=self._min_messages(limit, now),
                max_messages=max_messages,
                max_bytes=max_bytes,
            )
            if end is not begin:
                if (numbered_end := self._number_end(begin, end, states)) is None:
                    continue
                self._last_batch_at, self._end, self._idle_states = now, numbered_end, {}
                return numbered_end.to_json()
            self._idle_states = states
            if self._target is not None or now > deadline:
                self._end = begin
                return start

    def number_end(self, start: dict[str, Any], end: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return an end with the numbers of the messages after `start`. None: of all messages.

        Acknowledges nothing. Spark 4.0 and 4.1 may request an end before they pass its start.
        """
        numbered = None
        while numbered is None:
            self.states = states = self._poller.poll_all()
            begin = Offset.from_json(start).relocate_to(states)
            last = Offset(end_offsets(states)) if end is None else Offset.from_json(end)
            numbered = self._number_end(begin, last, states)
        return numbered.to_json()

    def _min_messages(self, limit: ReadLimit, now: float) -> int:
        least = self._options.min_messages_per_trigger
        overdue = now - self._last_batch_at >= self._options.max_trigger_delay
        if least is None or overdue or self._target is not None or isinstance(limit, ReadAllAvailable):
            return 1
        return least

    def _number_end(self, begin: Offset, end: Offset, states: QueueStates) -> Offset | None:
        """Return the end with numbers that stay valid after a move; None if a task moved since the poll."""
        taken = {
            task: each.sequence if each.worker == states[task].worker else 0
            for task, each in end.offsets.items()
            if task in states and each is not begin.offsets[task]
        }
        self._runs = runs = self._poller.fetch_runs(taken, states)
        return add_entry_sequences(begin, end, runs) if runs.keys() == taken.keys() else None

    def _check_previous_owners(self, position: Offset, states: QueueStates) -> None:
        """With failOnDataLoss, wait until previous owners have forwarded all messages; raise if one fails."""
        for task, offset in position.offsets.items():
            each = states.get(task)
            if each is None or each.worker == offset.worker or (task, each.worker) in self._checked_moves:
                continue
            last = self.states.get(task)
            unread = last.tail - offset.sequence if last and last.worker == offset.worker else 0
            if self._options.fail_on_data_loss:
                previous_owner = self._poller.wait_for_previous_owner(task, offset.worker, offset.address)
                if previous_owner.has_lost:
                    raise loss_error(task, offset, previous_owner, max(0, unread))
            self._checked_moves.add((task, each.worker))
            if self._target is not None:  # without an end at the new worker, the query would never end
                self._target |= end_offsets(self._poller.poll_tasks([task]))

    def _check_removed(self, start: Offset) -> None:
        """With failOnDataLoss, raise if the query stops reading a task with unread messages; once a task."""
        tasks = self._options.tasks
        removed = {task for task in start.offsets if task not in tasks} - self._checked_removed
        if removed and self._options.fail_on_data_loss:
            check_removed(start, self._poller.poll_tasks(removed))
        self._checked_removed |= removed

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the position after all messages at the last poll, for the query's progress.

        `lag` is the number of messages behind the last micro-batch, by task.
        """
        if not self.states:
            return None
        ends = self._end.offsets
        lag = {
            str(task): max(0, each.tail - ends[task].sequence)
            for task, each in self.states.items()
            if task in ends
        }
        return {**Offset(end_offsets(self.states)).to_json(), LAG_KEY: lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a partition for each task with messages in a micro-batch."""
        begin, last = map(Offset.from_json, (start, end))
        states = self.states
        if not states.keys() >= last.offsets.keys():  # after a restart, Spark repeats an older plan
            states = self._poller.poll_tasks(last.offsets.keys())
        wanted = {task: each.sequence for task, each in task_ends(begin, last).items()}
        if self._options.fail_on_data_loss:
            check_still_assigned(wanted, states)
        lacking = [task for task in wanted if task not in self._runs and task in states]
        runs = self._runs | self._poller.fetch_runs({task: wanted[task] for task in lacking}, states)
        return [
            RangePartition(each, self._poller.owners.others) for each in ranges(begin, last, states, runs)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the committed messages."""
        self._acknowledge(Offset.from_json(end))

    def _acknowledge(self, offset: Offset) -> None:
        """Acknowledge up to an offset, once. A failure does no harm: the next request repeats it."""
        if offset == self._acknowledged_offset:
            return
        try:
            self._poller.acknowledge(offset.offsets)
            self._acknowledged_offset = offset
        except (UnreachableError, RefusedError) as error:
            logger.warning("spark.acknowledge_failed", extra={"reason": str(error)})

    def stop(self) -> None:
        self._poller.close()
