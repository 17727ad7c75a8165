"""Reads a range of a task's messages in a Spark task.

Used by the batch and stream readers. Owns the position of one attempt in its range. Not thread-safe.
Design: docs/design/readers.md.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tuplewire.errors import SupersededError, TaskNotLocalError, UnknownTaskError
from tuplewire.session.consume import Delivery
from tuplewire.spark.entry_runs import EntryRuns, SequenceRange, count_messages, merge
from tuplewire.spark.offsets import DataLossError, PreviousOwner, ReadRange
from tuplewire.spark.options import SourceOptions
from tuplewire.spark.task_workers import POLL_SECONDS, RETRYABLE_ERRORS, RetryDeadline, TaskPoller
from tuplewire.text.events import event_logger
from tuplewire.tracing import get_tracing
from tuplewire.tracing.context import TraceParent, count_contexts
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes

logger = event_logger(__name__)

_RETRYABLE = (*RETRYABLE_ERRORS, SupersededError, TaskNotLocalError, UnknownTaskError)


@dataclass
class _Location:
    """A range's messages: a worker, and the sequences to read. position: the last one read or skipped."""

    address: str
    worker_id: str
    worker: int
    runs: EntryRuns
    unread: list[SequenceRange]
    position: int
    _next: int = 0

    @property
    def end(self) -> int:
        return self.unread[-1][1] if self.unread else self.position

    def take(self, frame: Sequence[Delivery]) -> Iterator[list[TaskGroup]]:
        """Yield the wanted messages of a frame, and advance the position to its end."""
        last = frame[-1].last_sequence
        while self._next < len(self.unread) and self.unread[self._next][0] <= last:
            first, end = self.unread[self._next]
            after = max(self.position, first - 1)
            if groups := [part.group for each in frame if (part := each.clip(after, end))]:
                yield groups
            if end > last:
                break
            self._next += 1
        self.position = max(self.position, last)


class RangeReader:
    """Iterates over the messages of a range as Arrow batches, despite broken connections and moves.

    Any number of attempts may read the same range at the same time. If the task has moved, its messages are
    found by the numbers of their entry workers. Their sequences continue within the range.
    """

    def __init__(self, wanted: ReadRange, options: SourceOptions, others: tuple[str, ...] = ()) -> None:
        """Read nothing yet. others: addresses of more workers, in case the first ones are unreachable."""
        self._range = wanted
        self._options = options
        self._others = others
        self.messages_read = 0
        self._tracing = get_tracing()
        self._traces: Counter[TraceParent] = Counter()
        """With tracing, the number of read messages by trace."""
        self._read_sequences = wanted.after
        self._retry = RetryDeadline(options.timeout)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages. With tracing, make a span `receive`, linked to each trace in the messages.

        Raises DataLossError if messages are lost and failOnDataLoss is set. After the timeout, raises
        UnreachableError if the worker is unreachable, WrongWorkerError if another one is at its address, and
        SupersededError if another consumer has the task.
        """
        start_ns = time.time_ns()
        try:
            yield from self._read()
        finally:
            if self._tracing is not None and self._traces:
                attributes: Attributes = {
                    "messaging.operation.type": "receive",
                    "messaging.batch.message_count": self.messages_read,
                }
                self._tracing.record_receive(self._range.task, self._traces, attributes, start_ns)
                self._tracing.flush()  # Spark may kill a Python process when its task ends

    def _read(self) -> Iterator[pa.RecordBatch]:
        wanted, end = self._range, self._range.end
        location: _Location | None = None
        if wanted.runs is not None:
            unread = wanted.runs.unread_ranges(wanted.start, end.sequence, wanted.after)
            location = _Location(end.address, wanted.worker_id, end.worker, wanted.runs, unread, wanted.start)
        with TaskPoller(self._options, [wanted.task], (end.address, *self._others)) as poller:
            while self.messages_read < end.messages:
                location = location or self._locate(poller)
                if location is None:
                    continue
                try:
                    yield from self._stream(location, poller)
                except _RETRYABLE as error:
                    if not self._has_moved(poller, location):
                        self._retry.wait_or_raise(error)
                        continue
                passed = location.runs.last_sequences(location.position)
                self._read_sequences = merge(self._read_sequences, passed)
                location = None  # continue at the new worker

    def _has_moved(self, poller: TaskPoller, location: _Location) -> bool | None:
        """Return True if the task has moved since, perhaps there and back; None if that is unknown yet."""
        try:
            state = poller.poll_once().get(self._range.task)
        except RETRYABLE_ERRORS:
            return None
        return state is None or (state.worker, state.start) != (location.worker, location.runs.start)

    def _locate(self, poller: TaskPoller) -> _Location | None:
        """Return the current location of the rest of the range; None if that is lost, and loss is allowed.

        Waits until the previous worker has forwarded all of it.
        """
        wanted, end = self._range, self._range.end
        rest = end.messages - self.messages_read
        deadline = time.monotonic() + self._options.timeout
        previous: PreviousOwner | None = None
        while True:
            state = poller.poll_tasks([wanted.task]).get(wanted.task)
            if state is None:
                self._skip_lost(rest, "is no longer assigned")
                return None
            runs = poller.fetch_runs({wanted.task: 0}, {wanted.task: state}).get(wanted.task)
            if runs is None:
                continue
            unread = runs.unread_ranges(0, sys.maxsize, self._read_sequences, end.entries)
            found = count_messages(unread)
            if found >= rest:
                break
            # The missing messages will not arrive any later: skip them, or raise DataLossError.
            if (previous is not None and previous.has_lost) or time.monotonic() > deadline:
                self._skip_lost(rest - found, f"was at {end.address}, and they were lost with the worker")
                break
            if state.worker != end.worker:
                previous = poller.wait_for_previous_owner(wanted.task, end.worker, end.address)
            time.sleep(POLL_SECONDS)
        if not unread:
            return None
        return _Location(state.address, state.worker_id, state.worker, runs, unread, unread[0][0] - 1)

    def _stream(self, location: _Location, poller: TaskPoller) -> Iterator[pa.RecordBatch]:
        from tuplewire.spark.columns import read_batch  # not needed in the driver

        wanted = self._range
        request = pb.ReadRequest(
            topology=self._options.topology,
            expected_worker_id=location.worker_id,
            worker_incarnation=location.worker,
            task=wanted.task,
            after_sequence=location.position,
            last_sequence=location.end,
        )
        with poller.client(location.address, self._options.timeout) as control:
            for frame in control.read(request):
                self._retry.reset()
                self._skip_missing(location, frame[0].first_sequence - 1, poller)
                for groups in location.take(frame):
                    first = wanted.start + self.messages_read + 1
                    self.messages_read += sum(map(len, groups))
                    if self._tracing is not None:
                        count_contexts(groups, self._traces)
                    yield read_batch(groups, first, headers=self._options.include_headers)
        self._skip_missing(location, location.end, poller)

    def _skip_missing(self, location: _Location, last: int, poller: TaskPoller) -> None:
        """Skip the messages of a location up to a sequence, because the worker no longer has them."""
        if last <= location.position:
            return
        # A worker releases the messages of a moved task before all workers know of the move. So this is a
        # loss only if the task has certainly not moved.
        if self._has_moved(poller, location) is not False:
            raise TaskNotLocalError(f"task {self._range.task} has left the worker at {location.address}")
        lost = count_messages(
            (max(first, location.position + 1), min(end, last))
            for first, end in location.unread
            if end > location.position and first <= last
        )
        location.position = last
        self._skip_lost(lost, "has another consumer, which has acknowledged them (a task has one consumer)")

    def _skip_lost(self, count: int, why: str) -> None:
        """Skip this number of lost messages, or raise DataLossError."""
        if not count:
            return
        first = self._range.start + self.messages_read + 1
        text = f"messages {first} to {first + count - 1} of task {self._range.task} are gone: the task {why}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to continue without them")
        logger.warning("spark.data_lost", extra={"reason": text})
        self.messages_read += count
