"""Reading a range of a task's messages in a Spark task, and acknowledging ranges in the driver."""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import grpc
import pyarrow as pa

from tuplewire.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.grpc_channel import SERVICE, channel_options, dialler_for, error_of
from tuplewire.errors import (
    DrainingError,
    NotLocalError,
    NotReadyError,
    ProtocolError,
    SequenceGapError,
    SupersededError,
    UnknownTaskError,
    UnreachableError,
    WrongWorkerError,
    refused,
)
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.session.retry import Backoff
from tuplewire.spark.columns import read_batch
from tuplewire.spark.entry_runs import Runs, Span, count, merged
from tuplewire.spark.offsets import DataLossError, Held, Range, Standing, TaskOffset
from tuplewire.spark.options import SourceOptions
from tuplewire.spark.task_workers import HeldTasks
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_recv_response, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name, cursor_to_wire

logger = logging.getLogger(__name__)

CONSUMER_ID = "tuplewire-spark"
"""All of Spark's readers are one consumer by name, so that the worker lets each go on where another was: a
second attempt of a task, the driver that acknowledges. A consumer by another name is never superseded."""
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
_INCARNATION = 1
_ROOM_BYTES = 2**62
"""What is read is bounded by sequences, and by what the worker's queue holds."""


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

        Raises DataLossError when they are gone and failOnDataLoss says so, UnreachableError when the worker
        is, WrongWorkerError when another one is at its address, SupersededError when another consumer has the
        task; all but the first once the timeout has passed.
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

    def _has_moved(self, tasks: HeldTasks, place: _Place) -> bool:
        """Whether the task is elsewhere by now, or has been meanwhile; False where nobody tells."""
        try:
            held = tasks.glance().get(self._wanted.task)
        except (UnreachableError, NotReadyError, WrongWorkerError):
            return False
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
        cursor = _cursor(wanted.task, place.runs.first - 1, place.position, place.end)
        at = place.address, place.worker_id
        with RecvStream(*at, self._options.topology, place.worker, [cursor], only_reads=True) as stream:
            start = stream.starts[wanted.task]
            if stream.worker != place.worker:
                raise NotLocalError(f"the worker at {place.address} has been restarted")
            if start > place.position:
                if self._has_moved(tasks, place):
                    raise NotLocalError(
                        f"task {wanted.task} has left the worker at {place.address}, and come back"
                    )
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
                    yield read_batch(numbered, headers=self._options.include_headers)

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
            cursors.append(_cursor(task, end, end, end))
    for (address, worker_id, worker), cursors in by_worker.items():
        with RecvStream(address, worker_id, topology, worker, cursors) as stream:
            if stream.worker == worker:
                for _ in stream.frames():
                    pass
                stream.acknowledge()


def _cursor(task: int, acknowledged: int, received: int, end: int) -> Cursor:
    """Return the place of a consumer that wants what is after `received`, up to an end, and nothing more."""
    return Cursor(task, acknowledged, received, end, _ROOM_BYTES)


class RecvStream:
    """One Recv stream that gets, of each of some tasks, what its cursor gives credit for; a context manager.

    worker_id: of the worker that is meant. worker: the incarnation to which the sequences belong. only_reads:
    whether nothing is acknowledged, so that a task that moves away does not wait for it.

    Entering raises the RefusedError of the worker (SupersededError: another consumer has a task;
    WrongWorkerError), or UnreachableError; so does reading.
    """

    def __init__(
        self,
        address: str,
        worker_id: str,
        topology: str,
        worker: int,
        cursors: Sequence[Cursor],
        *,
        only_reads: bool = False,
    ) -> None:
        self.address = address
        self.worker = 0
        """The incarnation of the worker that has answered."""
        self.starts: dict[int, int] = {}
        """For each task the sequence before the first message that comes."""
        self._subscribe = pb.Subscribe(
            protocol_version=PROTOCOL_VERSION,
            topology=topology,
            consumer_id=CONSUMER_ID,
            incarnation=_INCARNATION,
            worker_incarnation=worker,
            receiver_id=worker_id,
            tasks=map(cursor_to_wire, cursors),
            only_reads=only_reads,
        )
        self._cursors = cursors
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        dialler = dialler_for(None)
        metadata = dialler.metadata(self.address)
        self._channel = dialler.blocking_channel(self.address, channel_options(_SESSION))
        method: Any = self._channel.stream_stream(f"/{SERVICE}/Recv")
        self._call: Any = method(iter(self._requests.get, None), metadata=metadata)
        try:
            self._requests.put(pb.RecvRequest(subscribe=self._subscribe).SerializeToString())
            subscribed = self._subscribed()
        except BaseException:
            self._end()
            raise
        self.worker = subscribed.worker_incarnation
        self.starts = {cursor.task: cursor.received for cursor in subscribed.tasks}
        # For a newcomer the worker counts credit from what is acknowledged there; this is absolute.
        self._progress(replace(each, received=self.starts[each.task]) for each in self._cursors)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _subscribed(self) -> pb.Subscribed:
        first = self._read()
        if isinstance(first, OpaqueFrame) or not first.HasField("subscribed"):
            raise ProtocolError(f"{self.address} does not answer a subscribe as a Tuplewire worker does")
        return first.subscribed

    def _end(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self._channel.close()

    def frames(self) -> Iterator[list[Delivery]]:
        """Yield what comes, frame by frame, until every task's end has come."""
        received = dict(self.starts)
        while any(received[each.task] < each.credit for each in self._cursors):
            response = self._read()
            if not isinstance(response, OpaqueFrame):
                continue  # load, or a question to which the answer would not matter
            sequences = [group.first_sequence for group in response.groups]
            deliveries = list(map(Delivery, sequences, groups_of(response)))
            for each in deliveries:
                received[each.group.task] = each.first_sequence + len(each.group) - 1
            yield deliveries

    def acknowledge(self) -> None:
        """Say that all that was asked for is done with, and wait until the worker has read it."""
        self._progress(_cursor(each.task, each.credit, each.credit, each.credit) for each in self._cursors)
        self._requests.put(pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString())
        self._requests.put(None)
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _progress(self, cursors: Iterable[Cursor]) -> None:
        progress = pb.Progress(tasks=map(cursor_to_wire, cursors))
        self._requests.put(pb.RecvRequest(progress=progress).SerializeToString())

    def _read(self) -> pb.RecvResponse | OpaqueFrame:
        try:
            response = decode_recv_response(next(self._call))
        except StopIteration:
            raise ProtocolError(f"{self.address} ended a Recv stream without a word") from None
        except grpc.RpcError as error:
            raise self._error(error) from error
        if not isinstance(response, OpaqueFrame) and response.HasField("ended"):
            raise refused(code_name(response.ended.code), response.ended.detail)
        return response

    def _error(self, error: Any) -> Exception:
        return error_of(error.code(), error.details() or "", error.trailing_metadata(), self.address)


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
