"""A Recv stream of Spark's readers: it gets what it has asked for, and ends."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import grpc

from tuplewire.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.connection.grpc_channel import ANY_SIZE, SERVICE, channel_options, dialler_for, error_of
from tuplewire.errors import ProtocolError, refused
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_recv_response, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name, cursor_to_wire

CONSUMER_ID = "tuplewire-spark"
"""All of Spark's readers are one consumer by name, so that the worker lets each go on where another was: a
second attempt of a task, the driver that acknowledges. A consumer by another name is never superseded."""
_SESSION = SessionSettings()
"""The defaults: the format has no options for a session."""
_INCARNATION = 1
_ROOM_BYTES = 2**62
"""What is read is bounded by sequences, and by what the worker's queue holds."""


def cursor_to(task: int, acknowledged: int, received: int, end: int) -> Cursor:
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
            max_response_bytes=ANY_SIZE,
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
        self._progress(cursor_to(each.task, each.credit, each.credit, each.credit) for each in self._cursors)
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
