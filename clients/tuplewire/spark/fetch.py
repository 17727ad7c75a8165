"""Reading a range of a task's messages in a Spark task, and acknowledging ranges in the driver."""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from tuplewire.spark.data_source import read_batch
from tuplewire.spark.offsets import DataLossError, Held, Range, TaskOffset
from tuplewire.spark.options import SourceOptions
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
_POLL_SECONDS = 0.1
_INCARNATION = 1
_ROOM_BYTES = 2**62
"""What is read is bounded by sequences, and by what the worker's queue holds."""


class RangeReader:
    """Iterates over the messages of a range, as Arrow batches, through broken connections.

    Any number of attempts may read the same range; the worker serves one at a time, the newest first, and
    the others wait until that one has finished or is gone.
    """

    def __init__(self, wanted: Range, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options
        self._position = wanted.start
        self._backoff = Backoff(_SESSION.backoff_initial_seconds, _SESSION.backoff_max_seconds, random.random)
        self._failing_since: float | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages.

        Raises DataLossError when they are gone and failOnDataLoss says so, UnreachableError when the worker
        is, WrongWorkerError when another one is at its address, SupersededError when another consumer has the
        task; all but the first once the timeout has passed.
        """
        wanted = self._wanted
        superseded = False
        while self._position < wanted.end:
            try:
                if superseded:
                    self._wait_for_twin()
                    superseded = False
                yield from self._stream()
            except SequenceGapError:
                superseded = True
            except (UnreachableError, SupersededError, NotReadyError, DrainingError, WrongWorkerError):
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                if now - self._failing_since > self._options.timeout:
                    raise
                time.sleep(self._backoff.next())
            except (NotLocalError, UnknownTaskError) as error:
                self._lost(wanted.end, f"has left the worker at {wanted.address}: {error}")

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        self._failing_since = None

    def _stream(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        cursor = _cursor(wanted.task, wanted.start, self._position, wanted.end)
        at = wanted.address, wanted.worker_id
        with RecvStream(*at, self._options.topology, wanted.worker, [cursor]) as stream:
            if stream.worker != wanted.worker:
                self._lost(wanted.end, f"was at a worker at {wanted.address} that has been restarted")
            elif stream.starts[wanted.task] > self._position:
                self._lost(stream.starts[wanted.task], "has another consumer, which has acknowledged them")
            if self._position >= wanted.end:
                return
            for frame in stream.frames():
                deliveries = within(frame, self._position, wanted.end)
                self._succeeded()
                if deliveries:
                    self._position = deliveries[-1].first_sequence + len(deliveries[-1].group) - 1
                    yield read_batch(deliveries, headers=self._options.include_headers)

    def _lost(self, sequence: int, why: str) -> None:
        """Give up what comes up to a sequence, where that is allowed."""
        last = min(sequence, self._wanted.end)
        text = f"messages {self._position + 1} to {last} of task {self._wanted.task} are gone: the task {why}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to go on without them")
        logger.warning("spark.data_lost", extra={"reason": text})
        self._position = last

    def _wait_for_twin(self) -> None:
        """Wait until the attempt that has superseded this one has finished; Spark may end this one first."""
        with ControlClient(self._wanted.address) as control:
            while any(each.subscribed for each in control.status().tasks if each.task == self._wanted.task):
                time.sleep(_POLL_SECONDS)
        self._succeeded()


def acknowledge(offsets: Mapping[int, TaskOffset], held: Mapping[int, Held], topology: str) -> None:
    """Tell the workers that a query is done with the messages up to these offsets, for good.

    A offset at a worker that is gone is passed over. What was read by this module needs no reading again;
    what the worker has given to others meanwhile is fetched and thrown away.
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

    worker_id: of the worker that is meant. worker: the incarnation to which the sequences belong.

    Entering raises the RefusedError of the worker (SupersededError: another consumer has a task;
    WrongWorkerError), or UnreachableError; so does reading.
    """

    def __init__(
        self, address: str, worker_id: str, topology: str, worker: int, cursors: Sequence[Cursor]
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
