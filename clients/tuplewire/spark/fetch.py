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
from tuplewire.spark.entry_runs import Runs, Span, count, merged
from tuplewire.spark.offsets import DataLossError, PreviousOwner, Range
from tuplewire.spark.options import SourceOptions
from tuplewire.spark.task_workers import POLL_SECONDS, RETRYABLE_ERRORS, HeldTasks, RetryDeadline
from tuplewire.text.events import event_logger
from tuplewire.tracing import active
from tuplewire.tracing.context import TraceParent, count_contexts
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing

logger = event_logger(__name__)

_RETRIED = (*RETRYABLE_ERRORS, SupersededError, TaskNotLocalError, UnknownTaskError)


@dataclass
class _Place:
    """A range's messages: a worker, and the sequences to read. position: the last one read or skipped."""

    address: str
    worker_id: str
    worker: int
    runs: Runs
    spans: list[Span]
    position: int
    _next: int = 0

    @property
    def end(self) -> int:
        return self.spans[-1][1] if self.spans else self.position

    def take(self, frame: Sequence[Delivery]) -> Iterator[list[TaskGroup]]:
        """Yield the wanted messages of a frame, and advance the position to its end."""
        last = frame[-1].last
        while self._next < len(self.spans) and self.spans[self._next][0] <= last:
            span = self.spans[self._next]
            after = max(self.position, span[0] - 1)
            if groups := [part.group for each in frame if (part := each.within(after, span[1]))]:
                yield groups
            if span[1] > last:
                break
            self._next += 1
        self.position = max(self.position, last)


class RangeReader:
    """Iterates over the messages of a range as Arrow batches, despite broken connections and moves.

    Any number of attempts may read the same range at the same time. If the task has moved, its messages are
    found by the numbers of their entry workers. Their sequences continue within the range.
    """

    def __init__(self, wanted: Range, options: SourceOptions, others: tuple[str, ...] = ()) -> None:
        """Read nothing yet. others: addresses of more workers, in case the first ones are unreachable."""
        self._wanted = wanted
        self._options = options
        self._others = others
        self.messages_read = 0
        self._tracing = active()
        self._traces: Counter[TraceParent] = Counter()
        """With tracing, the number of read messages by trace."""
        self._seen = wanted.after
        self._retry = RetryDeadline(options.timeout)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages. With tracing, make a span `receive`, linked to each trace in the messages.

        Raises DataLossError if messages are lost and failOnDataLoss is set. After the timeout, raises
        UnreachableError if the worker is unreachable, WrongWorkerError if another one is at its address, and
        SupersededError if another consumer has the task.
        """
        began_ns = time.time_ns()
        try:
            yield from self._read()
        finally:
            if self._tracing is not None and self._traces:
                self._report(self._tracing, began_ns)

    def _report(self, tracing: Tracing, began_ns: int) -> None:
        about: Attributes = {
            "messaging.operation.type": "receive",
            "messaging.batch.message_count": self.messages_read,
        }
        tracing.receive(self._wanted.task, self._traces, about, began_ns)
        tracing.flush()  # Spark may kill a Python process when its task ends

    def _read(self) -> Iterator[pa.RecordBatch]:
        wanted, end = self._wanted, self._wanted.end
        place: _Place | None = None
        if wanted.runs is not None:
            spans = wanted.runs.spans(wanted.start, end.sequence, wanted.after)
            place = _Place(end.address, wanted.worker_id, end.worker, wanted.runs, spans, wanted.start)
        with HeldTasks(self._options, [wanted.task], (end.address, *self._others)) as tasks:
            while self.messages_read < end.messages:
                place = place or self._find(tasks)
                if place is None:
                    continue
                try:
                    yield from self._stream(place, tasks)
                except _RETRIED as error:
                    if not self._has_moved(tasks, place):
                        self._retry.wait_or_raise(error)
                        continue
                    self._seen = merged(self._seen, place.runs.last_sequences(place.position))
                place = None  # continue at the new worker

    def _has_moved(self, tasks: HeldTasks, place: _Place) -> bool | None:
        """Return True if the task has moved since, perhaps there and back; None if that is unknown yet."""
        try:
            held = tasks.poll_once().get(self._wanted.task)
        except RETRYABLE_ERRORS:
            return None
        return held is None or (held.worker, held.begin) != (place.worker, place.runs.begin)

    def _find(self, tasks: HeldTasks) -> _Place | None:
        """Return the current location of the rest of the range; None if that is lost, and loss is allowed.

        Waits until the previous worker has forwarded all of it.
        """
        wanted, end = self._wanted, self._wanted.end
        left = end.messages - self.messages_read
        deadline = time.monotonic() + self._options.timeout
        former: PreviousOwner | None = None
        while True:
            held = tasks.poll_tasks([wanted.task]).get(wanted.task)
            if held is None:
                self._lost(left, "is no longer assigned")
                return None
            runs = tasks.runs({wanted.task: 0}, {wanted.task: held}).get(wanted.task)
            if runs is None:
                continue
            spans = runs.spans(0, sys.maxsize, self._seen, end.entries)
            there = count(spans)
            # The missing messages will not arrive any later: skip them, or raise DataLossError.
            if (former is not None and former.lost) or time.monotonic() > deadline:
                if there < left:
                    self._lost(left - there, f"was at {end.address}, and they were lost with the worker")
                break
            if there >= left:
                break
            if held.worker != end.worker:
                former = tasks.previous_owner(wanted.task, end.worker, end.address)
            time.sleep(POLL_SECONDS)
        if not spans:
            return None
        return _Place(held.address, held.worker_id, held.worker, runs, spans, spans[0][0] - 1)

    def _stream(self, place: _Place, tasks: HeldTasks) -> Iterator[pa.RecordBatch]:
        from tuplewire.spark.columns import read_batch  # not needed in the driver

        wanted = self._wanted
        request = pb.ReadRequest(
            topology=self._options.topology,
            receiver_id=place.worker_id,
            incarnation=place.worker,
            task=wanted.task,
            after_sequence=place.position,
            last_sequence=place.end,
        )
        with tasks.client(place.address, self._options.timeout) as worker:
            for frame in worker.read(request):
                self._retry.reset()
                self._skip(place, frame[0].first_sequence - 1, tasks)
                for groups in place.take(frame):
                    first = wanted.start + self.messages_read + 1
                    self.messages_read += sum(map(len, groups))
                    if self._tracing is not None:
                        count_contexts(groups, self._traces)
                    yield read_batch(groups, first, headers=self._options.include_headers)
        self._skip(place, place.end, tasks)

    def _skip(self, place: _Place, last: int, tasks: HeldTasks) -> None:
        """Skip the messages of a place up to a sequence, because the worker no longer has them."""
        if last <= place.position:
            return
        # A worker releases the messages of a moved task before all workers know of the move. So this is a
        # loss only if the task has certainly not moved.
        if self._has_moved(tasks, place) is not False:
            raise TaskNotLocalError(f"task {self._wanted.task} has left the worker at {place.address}")
        gone = count(
            (max(first, place.position + 1), min(end, last))
            for first, end in place.spans
            if end > place.position and first <= last
        )
        place.position = last
        self._lost(gone, "has another consumer, which has acknowledged them (a task has one consumer)")

    def _lost(self, messages: int, why: str) -> None:
        """Skip this number of lost messages, or raise DataLossError."""
        if not messages:
            return
        first = self._wanted.start + self.messages_read + 1
        which = f"messages {first} to {first + messages - 1} of task {self._wanted.task} are gone"
        text = f"{which}: the task {why}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to continue without them")
        logger.warning("spark.data_lost", extra={"reason": text})
        self.messages_read += messages
