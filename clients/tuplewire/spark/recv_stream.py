"""Recv as Spark's source uses it: a stretch of each task's sequence, from where the query stands.

All of Spark's readers are one consumer by name, so that the worker lets each go on where another was: a
second attempt of a task, the driver that acknowledges. A consumer by another name is never superseded.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from tuplewire.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.connection.grpc_channel import SERVICE, channel_options, dialler_for, error_of
from tuplewire.errors import ProtocolError, refused
from tuplewire.session.delivery import Delivery
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_recv_response, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name

CONSUMER_ID = "tuplewire-spark"
_INCARNATION = 1
_ROOM_BYTES = 2**62
"""What is read is bounded by sequences, and by what the worker's queue holds."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one task's sequence: what comes is after `received`, up to `end`.

    acknowledged: up to here everything is done with for good; the worker is told so.
    """

    acknowledged: int
    received: int
    end: int


class RecvStream:
    """One Recv stream that gets a stretch of each of some tasks; use it as a context manager.

    worker: the incarnation to which the sequences belong.

    Entering raises the RefusedError of the worker (SupersededError: another consumer has a task), or
    UnreachableError; so does reading.
    """

    def __init__(
        self,
        address: str,
        topology: str,
        worker: int,
        stretches: Mapping[int, Stretch],
        settings: SessionSettings,
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
            tasks=[_cursor(task, each, each.received) for task, each in stretches.items()],
        )
        self._stretches = stretches
        self._settings = settings
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        dialler = dialler_for(None)
        metadata = dialler.metadata(self.address)
        self._channel = dialler.blocking_channel(self.address, channel_options(self._settings))
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
        self._progress([_cursor(task, each, self.starts[task]) for task, each in self._stretches.items()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        while any(received[task] < each.end for task, each in self._stretches.items()):
            response = self._read()
            if not isinstance(response, OpaqueFrame):
                continue  # load, or a question to which the answer would not matter
            deliveries = [
                Delivery(group.first_sequence, columns)
                for group, columns in zip(response.groups, groups_of(response), strict=True)
            ]
            for each in deliveries:
                received[each.group.task] = each.first_sequence + len(each.group) - 1
            yield deliveries

    def acknowledge(self) -> None:
        """Say that all that was asked for is done with, and wait until the worker has read it."""
        ends = {task: Stretch(each.end, each.end, each.end) for task, each in self._stretches.items()}
        self._progress([_cursor(task, each, each.end) for task, each in ends.items()])
        self._requests.put(pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString())
        self._requests.put(None)
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _progress(self, cursors: Sequence[pb.TaskCursor]) -> None:
        self._requests.put(pb.RecvRequest(progress=pb.Progress(tasks=cursors)).SerializeToString())

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


def _cursor(task: int, stretch: Stretch, received: int) -> pb.TaskCursor:
    return pb.TaskCursor(
        task=task,
        acknowledged=stretch.acknowledged,
        received=received,
        credit=stretch.end,
        credit_bytes=_ROOM_BYTES,
    )


def within(deliveries: Sequence[Delivery], start: int, end: int) -> list[Delivery]:
    """Return those messages that come after start and not after end."""
    found = []
    for each in deliveries:
        first = max(start + 1, each.first_sequence)
        stop = min(end, each.first_sequence + len(each.group) - 1) + 1
        if first < stop:
            begin = first - each.first_sequence
            group = each.group
            if stop - first < len(group):
                group = group.slice(begin, begin + stop - first)
            found.append(Delivery(first, group))
    return found
