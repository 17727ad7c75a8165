"""The driver of a consuming session over gRPC: keeps a Recv stream up and the cursor moving.

The loop reads frames into a buffer that the prefetch bounds; any one thread (or coroutine) takes batches out
and acknowledges them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tuplewire.channel import error_of, is_fatal, open_channel
from tuplewire.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.errors import (
    ClosedError,
    MessageError,
    ProtocolError,
    RefusedError,
    TuplewireError,
    UnreachableError,
    refused,
)
from tuplewire.loop import watched
from tuplewire.session.backoff import Backoff
from tuplewire.session.consume import Arrived, ConsumeWindow, Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_recv_response, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name

logger = logging.getLogger(__name__)

RECV_METHOD = "/tuplewire.v1.Messaging/Recv"
_BROKEN = (grpc.RpcError, asyncio.InvalidStateError)


class Receiver:
    """One subscription to tasks of one worker. Thread-safe unless a method belongs to the loop."""

    def __init__(
        self,
        address: str,
        topology: str,
        consumer_id: str,
        incarnation: int,
        tasks: Iterable[int],
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.address = address
        self.connected = False
        self._hello = (topology, consumer_id, incarnation)
        self._settings = settings
        self._loop = loop
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._window = ConsumeWindow(tasks, settings.prefetch_messages, settings.prefetch_bytes)
        self._buffer: deque[Arrived] = deque()
        self._arrival = asyncio.Event()
        self._progress = asyncio.Event()
        self._error: TuplewireError | None = None
        self._last_problem = "not connected yet"
        self._broken_since = time.monotonic()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    # --- for whoever consumes ----------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Arrived | None:
        """Return the next batch, waiting at most so long; None when there is none. Not on the loop.

        Raises ClosedError when closed, UnreachableError when there is none and the worker has been out of
        reach for all of the timeout, or the error for which the subscription has ended.
        """
        with self._lock:
            self._moved.wait_for(self._has_news, timeout)
            return self._next(timeout)

    async def taken(self, timeout: float | None = None) -> Arrived | None:
        """Do the same as take, on the loop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._has_news():
                    self._arrival.clear()
                    await self._arrival.wait()
        with self._lock:
            return self._next(timeout)

    def _has_news(self) -> bool:
        return bool(self._buffer) or self._error is not None or self._closed

    def _next(self, timeout: float | None) -> Arrived | None:
        if self._buffer:
            return self._buffer.popleft()
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ClosedError(f"the subscription at {self.address} is closed")
        if not self.connected and timeout is not None and time.monotonic() - self._broken_since >= timeout:
            raise UnreachableError(f"no worker at {self.address} for {timeout} s: {self._last_problem}")
        return None

    def acknowledge(self, arrived: Arrived) -> None:
        """Say that a batch is done with; a batch of a worker that has died since is ignored."""
        with self._lock:
            if not self._window.acknowledge(arrived) or self._closed:
                return
        self._loop.call_soon_threadsafe(self._progress.set)

    # --- life, on the loop ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; on the loop."""
        self._task = watched(self._loop.create_task(self._run(), name=f"receive from {self.address}"))

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    async def close(self) -> None:
        """End the subscription; acknowledgements that were made are delivered first where possible."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            self._moved.notify_all()
        self._arrival.set()
        self._progress.set()
        if self.connected and self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)
        await self._stop_task()

    async def _stop_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # what it raised, if anything, was reported

    async def suspend(self) -> None:
        """Give the stream up for a fork; see tuplewire.loop."""
        await self._stop_task()

    def resume(self) -> None:
        """Go on after a fork."""
        if not self._closed and self._error is None:
            self.start()

    async def _run(self) -> None:
        settings = self._settings
        backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds, random.random)
        while not self._closed:
            try:
                await self._stream(backoff)
            except RefusedError as error:
                self._disconnected(error)
                if is_fatal(error) or error.code in {"UNKNOWN_TASK", "NOT_LOCAL"}:
                    self._fail(error)
                    return
            except MessageError as error:
                self._fail(error)
                return
            except UnreachableError as error:
                self._disconnected(error)
            except Exception as error:
                self._fail(TuplewireError(f"the subscription at {self.address} has a defect: {error!r}"))
                raise
            finally:
                self.connected = False
            if not self._closed:
                await asyncio.sleep(backoff.next())

    def _disconnected(self, error: TuplewireError) -> None:
        if self._closed:
            return
        if self.connected or str(error) != self._last_problem:
            logger.info("subscription.lost", extra={"peer": self.address, "reason": str(error)})
        if self.connected:
            self._broken_since = time.monotonic()
        self._last_problem = str(error)

    def _fail(self, error: TuplewireError) -> None:
        with self._lock:
            self._error = error
            # It cannot be acknowledged any more, and comes to whoever has the task now.
            self._buffer.clear()
            self._moved.notify_all()
        self._arrival.set()

    async def _stream(self, backoff: Backoff) -> None:
        """Keep one stream up until it ends; raises what ended it, and returns once closed."""
        async with open_channel(self.address, self._settings) as channel:
            call: Any = channel.stream_stream(RECV_METHOD)()
            try:
                await self._open(call)
                backoff.succeeded()
                writer = self._loop.create_task(self._write(call), name=f"progress to {self.address}")
                try:
                    await self._read(call)
                finally:
                    writer.cancel()
                    with contextlib.suppress(asyncio.CancelledError, *_BROKEN):
                        await writer
            except _BROKEN:
                pass  # the status, below, says why
            except DecodeError as error:
                raise ProtocolError(
                    f"{self.address} does not answer as a Tuplewire worker: {error}"
                ) from error
            finally:
                cancelled = call.cancel()
            if self._closed:
                return
            if cancelled:
                raise UnreachableError(f"{self.address}: the stream broke")
            raise error_of(
                await call.code(), await call.details() or "", await call.trailing_metadata(), self.address
            )

    async def _open(self, call: Any) -> None:
        topology, consumer_id, incarnation = self._hello
        with self._lock:
            cursors = self._window.all()
        subscribe = pb.Subscribe(
            protocol_version=PROTOCOL_VERSION,
            topology=topology,
            consumer_id=consumer_id,
            incarnation=incarnation,
            tasks=[_cursor_to_wire(cursor) for cursor in cursors],
            worker_incarnation=self._window.worker_incarnation,
        )
        await call.write(pb.RecvRequest(subscribe=subscribe).SerializeToString())
        data = await call.read()
        if data is grpc.aio.EOF:
            raise asyncio.InvalidStateError
        subscribed = pb.RecvResponse.FromString(data).subscribed
        with self._lock:
            self._window.opened(
                subscribed.worker_incarnation, [(cursor.task, cursor.received) for cursor in subscribed.tasks]
            )
        self._progress.set()
        self.connected = True
        logger.info("subscription.ready", extra={"peer": self.address, "worker": subscribed.worker_id})

    async def _read(self, call: Any) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            response = decode_recv_response(data)
            if not isinstance(response, OpaqueFrame):
                if response.HasField("probe"):
                    with self._lock:
                        self._window.repeat()
                    self._progress.set()
                elif response.HasField("ended"):
                    raise refused(code_name(response.ended.code), response.ended.detail)
                continue
            deliveries = map(
                Delivery, [group.first_sequence for group in response.groups], groups_of(response)
            )
            with self._lock:
                arrived = self._window.arrived(deliveries)
                if arrived.deliveries:
                    self._buffer.append(arrived)
                    self._moved.notify_all()
            self._arrival.set()

    async def _write(self, call: Any) -> None:
        while True:
            await self._progress.wait()
            self._progress.clear()
            with self._lock:
                closed = self._closed  # before the cursors: what is acknowledged by then still goes out
                cursors = self._window.moved()
            if cursors:
                progress = pb.Progress(tasks=[_cursor_to_wire(cursor) for cursor in cursors])
                await call.write(pb.RecvRequest(progress=progress).SerializeToString())
            if closed:
                await call.write(pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString())
                await call.done_writing()
                return


def _cursor_to_wire(cursor: Cursor) -> pb.TaskCursor:
    return pb.TaskCursor(
        task=cursor.task,
        acknowledged=cursor.acknowledged,
        received=cursor.received,
        credit=cursor.credit,
        credit_bytes=cursor.credit_bytes,
    )
