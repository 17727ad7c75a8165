"""Reading a range of a task's messages in a Spark task, and acknowledging ranges in the driver."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tuplewire.config import SessionSettings
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    DrainingError,
    NotLocalError,
    NotReadyError,
    SequenceGapError,
    SupersededError,
    UnknownTaskError,
    UnreachableError,
    WrongWorkerError,
)
from tuplewire.events import event_logger
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.session.retry import Backoff
from tuplewire.spark.entry_runs import Runs, Span, count, merged
from tuplewire.spark.offsets import DataLossError, Held, Range, Standing, TaskOffset
from tuplewire.spark.options import SourceOptions
from tuplewire.spark.recv_stream import RecvStream, cursor_to
from tuplewire.spark.task_workers import HeldTasks

logger = event_logger(__name__)

_SESSION = SessionSettings()
"""The defaults: the format has no options for a session."""
_TWIN_SECONDS = 0.1
_POLL_SECONDS = 0.05
_RETRIED = (
    UnreachableError,
    SupersededError,
    NotReadyError,
    DrainingError,
    WrongWorkerError,
    NotLocalError,
    UnknownTaskError,
)


@dataclass
class _Place:
    """Where messages of a range are: at a worker, the sequences to read of what it has of the task.

    position: the last of these that was read, or passed over.
    """

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

    def take(self, frame: Sequence[Delivery]) -> Iterator[list[Delivery]]:
        """Return what of a frame is to be read, and pass over it."""
        last = frame[-1].first_sequence + len(frame[-1].group) - 1
        while self._next < len(self.spans) and self.spans[self._next][0] <= last:
            span = self.spans[self._next]
            if deliveries := within(frame, max(self.position, span[0] - 1), span[1]):
                yield deliveries
            if span[1] > last:
                break
            self._next += 1
        self.position = max(self.position, last)


class RangeReader:
    """Iterates over the messages of a range, as Arrow batches, through broken connections and moves.

    Any number of attempts may read the same range; the worker serves one at a time, the newest first, and
    the others wait until that one has finished or is gone. Where the task has moved, its messages are found
    by the numbers of their entry workers. They are numbered on within the range.
    """

    def __init__(self, wanted: Range, options: SourceOptions, others: tuple[str, ...] = ()) -> None:
        """Read nothing yet. others: the addresses of more workers, should those two be gone."""
        self._wanted = wanted
        self._options = options
        self._others = wanted.address, *others
        self._read = 0
        self._seen = wanted.after
        self._backoff = Backoff(_SESSION.backoff_initial_seconds, _SESSION.backoff_max_seconds, random.random)
        self._failing_since: float | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages.

        Raises DataLossError when they are gone and failOnDataLoss says so. Once the timeout has passed, it
        raises UnreachableError when the worker is out of reach, WrongWorkerError when another one is at its
        address, and SupersededError when another consumer has the task.
        """
        options, wanted = self._options, self._wanted
        place = self._planned()
        superseded = False
        at = options.address, options.topology, [wanted.task], options.timeout
        with HeldTasks(*at, others=self._others) as tasks:
            while self._read < wanted.messages:
                try:
                    if place is None:
                        place = self._find(tasks)
                        continue
                    if superseded:
                        self._wait_for_twin(place)
                        superseded = False
                    yield from self._stream(place, tasks)
                    if place.position >= place.end:
                        place = None
                except SequenceGapError:
                    superseded = True
                except _RETRIED:
                    assert place is not None  # noqa: S101 - _find() raises none of them
                    if self._has_moved(tasks, place):
                        self._seen = merged(self._seen, place.runs.vector(place.position))
                        place = None
                        continue
                    now = time.monotonic()
                    self._failing_since = self._failing_since or now
                    if now - self._failing_since > options.timeout:
                        raise
                    time.sleep(self._backoff.next())

    def _planned(self) -> _Place | None:
        wanted = self._wanted
        if wanted.runs is None:
            return None
        spans = wanted.runs.spans(wanted.start, wanted.end, wanted.after)
        return _Place(wanted.address, wanted.worker_id, wanted.worker, wanted.runs, spans, wanted.start)

    def _has_moved(self, tasks: HeldTasks, place: _Place) -> bool | None:
        """Whether the task is elsewhere by now, or has been meanwhile; None where nobody can tell yet."""
        try:
            held = tasks.glance().get(self._wanted.task)
        except (UnreachableError, NotReadyError, WrongWorkerError):
            return None
        return held is None or (held.worker, held.begin) != (place.worker, place.runs.begin)

    def _find(self, tasks: HeldTasks) -> _Place | None:
        """Find what is left of the range where the task is now; None if it is lost, and may be.

        Waits until all of it has been handed over.
        """
        wanted = self._wanted
        left = wanted.messages - self._read
        deadline = time.monotonic() + self._options.timeout
        former: Standing | None = None
        while True:
            held = tasks.look_at([wanted.task]).get(wanted.task)
            if held is None:
                self._lost(left, "is in no assignment any more")
                return None
            runs = tasks.runs({wanted.task: 0}, {wanted.task: held}).get(wanted.task)
            if runs is None:
                continue
            spans = runs.spans(0, None, self._seen, wanted.upto)
            there = count(spans)
            if (former is not None and former.lost) or time.monotonic() > deadline:
                if there < left:
                    self._lost(left - there, f"was at {wanted.address}, and they have died with the worker")
                break
            if there >= left:
                break
            if held.worker != wanted.worker:
                former = tasks.standing(wanted.task, wanted.worker, wanted.address)
            time.sleep(_POLL_SECONDS)
        if not spans:
            return None
        first = spans[0][0] - 1
        return _Place(held.address, held.worker_id, held.worker, runs, spans, first)

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        self._failing_since = None

    def _stream(self, place: _Place, tasks: HeldTasks) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        cursor = cursor_to(wanted.task, place.runs.first - 1, place.position, place.end)
        at = place.address, place.worker_id
        with RecvStream(*at, self._options.topology, place.worker, [cursor], only_reads=True) as stream:
            start = stream.starts[wanted.task]
            if stream.worker != place.worker:
                raise NotLocalError(f"the worker at {place.address} has been restarted")
            if start > place.position:
                # What leaves a queue is released there, before all workers know of the move.
                if self._has_moved(tasks, place) is not False:
                    raise NotLocalError(f"task {wanted.task} has left the worker at {place.address}")
                gone = [(max(first, place.position + 1), min(last, start)) for first, last in place.spans]
                place.position = start
                why = "has another consumer, which has acknowledged them (a task has one consumer)"
                self._lost(count(span for span in gone if span[0] <= span[1]), why)
            for frame in stream.frames():
                self._succeeded()
                for deliveries in place.take(frame):
                    first = wanted.start + self._read + 1
                    numbered = []
                    for each in deliveries:
                        numbered.append(Delivery(first, each.group))
                        first += len(each.group)
                    self._read = first - wanted.start - 1
                    yield self._batch(numbered)

    def _batch(self, deliveries: Sequence[Delivery]) -> pa.RecordBatch:
        from tuplewire.spark.columns import read_batch  # which the driver's process has no use for

        return read_batch(deliveries, headers=self._options.include_headers)

    def _lost(self, messages: int, why: str) -> None:
        """Give up so many messages, where that is allowed."""
        if not messages:
            return
        first = self._wanted.start + self._read + 1
        which = f"messages {first} to {first + messages - 1} of task {self._wanted.task} are gone"
        text = f"{which}: the task {why}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to go on without them")
        logger.warning("spark.data_lost", extra={"reason": text})
        self._read += messages

    def _wait_for_twin(self, place: _Place) -> None:
        """Wait until the attempt that has superseded this one has finished; Spark may end this one first."""
        with ControlClient(place.address) as control:
            while any(each.subscribed for each in control.status().tasks if each.task == self._wanted.task):
                time.sleep(_TWIN_SECONDS)
        self._succeeded()


def acknowledge(offsets: Mapping[int, TaskOffset], held: Mapping[int, Held], topology: str) -> None:
    """Tell the workers that a query is done with the messages up to these offsets, for good.

    An offset at a worker that has the task no more is passed over. What was read by this module needs no
    reading again; what the worker has given to others meanwhile is fetched and thrown away.
    """
    by_worker: dict[tuple[str, str, int], list[Cursor]] = {}
    for task, each in held.items():
        offset = offsets[task]
        if offset.worker == each.worker and each.acknowledged < offset.sequence:
            end = offset.sequence
            cursors = by_worker.setdefault((each.address, each.worker_id, each.worker), [])
            cursors.append(cursor_to(task, end, end, end))
    for (address, worker_id, worker), cursors in by_worker.items():
        with RecvStream(address, worker_id, topology, worker, cursors) as stream:
            if stream.worker == worker:
                for _ in stream.frames():
                    pass
                stream.acknowledge()


def within(deliveries: Sequence[Delivery], start: int, end: int) -> list[Delivery]:
    """Return those messages that come after start and not after end."""
    found = []
    for each in deliveries:
        first = max(start + 1, each.first_sequence)
        stop = min(end + 1, each.first_sequence + len(each.group))
        if stop - first == len(each.group):
            found.append(each)
        elif first < stop:
            part = each.group.slice(first - each.first_sequence, stop - each.first_sequence)
            found.append(Delivery(first, part))
    return found
