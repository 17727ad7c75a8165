"""A stream over a ZeroMQ connection: what both of its sides have in common, and the serving side."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

import zmq

from tuplewire.connection.stream import MessageStream, StreamBroken
from tuplewire.errors import MalformedError, TuplewireError, UnreachableError
from tuplewire_service.messaging.streamed.streamed_stream import MAX_DETAIL_LENGTH, ServerStream, code_of
from tuplewire_service.messaging.zmq.frames import (
    Allowance,
    Frame,
    FrameKind,
    ZmqInFlight,
    ZmqWindow,
    encode,
    encode_refusal,
)


class ZmqStream(MessageStream):
    """One side of a stream. What had arrived before it broke can still be read."""

    def __init__(self, send: Callable[[Sequence[bytes]], None], window: ZmqWindow) -> None:
        self._send = send
        self._flow = ZmqInFlight(window)
        self._arrived: deque[bytes] = deque()
        self._done = False
        self._why: TuplewireError | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """See MessageStream: waits while the other side has no room, which bounds one go."""
        while self._why is None and not self._flow.open:
            self._room.clear()
            await self._room.wait()
        self._put(FrameKind.DATA, data)
        self._flow.on_sent(len(data))

    async def read(self) -> bytes | None:
        while not self._arrived:
            if self._done:
                return None
            if self._why is not None:
                raise StreamBroken from self._why
            self._news.clear()
            await self._news.wait()
        data = self._arrived.popleft()
        self._flow.on_read(len(data))
        if self._flow.due and self._why is None:
            with contextlib.suppress(StreamBroken):  # what has arrived is read to its end
                self._put(FrameKind.GRANT)
        return data

    def take(self, frame: Frame) -> None:
        """Take in a frame of the other side; MalformedError when it does not fit."""
        self._flow.on_allowance(frame.allowance)
        self._room.set()
        if frame.kind is FrameKind.DATA:
            if self._done:
                raise MalformedError("a message came after the end of its stream")
            self._flow.on_arrival(len(frame.body))
            self._arrived.append(frame.body)
            self._news.set()
        elif frame.kind is FrameKind.DONE:
            self._done = True
            self._news.set()
        elif frame.kind is not FrameKind.GRANT:
            raise MalformedError(f"a frame of kind {frame.kind.name} within a stream")

    def break_off(self, why: TuplewireError) -> None:
        """Take note that the stream is over; only the first reason counts."""
        if self._why is None:
            self._why = why
        self._news.set()
        self._room.set()

    def greet(self) -> None:
        """Tell the other side what it may send; StreamBroken when it is gone."""
        self._put(FrameKind.GRANT)

    def _put(self, kind: FrameKind, body: bytes = b"") -> None:
        if self._why is not None:
            raise StreamBroken from self._why
        try:
            self._send(encode(kind, self._flow.tell(), body))
        except zmq.ZMQError as error:
            self.break_off(UnreachableError(f"the connection is gone: {error}"))
            raise StreamBroken from error


class ZmqServerStream(ZmqStream, ServerStream):
    """The serving side of a stream."""

    def __init__(self, send: Callable[[Sequence[bytes]], None], window: ZmqWindow, peer: str) -> None:
        super().__init__(send, window)
        self.peer = peer

    def opened(self, allowance: Allowance) -> None:
        """Take in what the other side allows, and answer."""
        self._flow.on_allowance(allowance)
        with contextlib.suppress(StreamBroken):  # whoever reads will see
            self.greet()

    async def refuse(self, error: TuplewireError) -> NoReturn:
        self.reject(error)
        raise StreamBroken from error

    def reject(self, error: TuplewireError) -> None:
        """Tell the other side why the stream is over, unless it is already."""
        self._last(FrameKind.REFUSED, encode_refusal(code_of(error), str(error)[:MAX_DETAIL_LENGTH]))

    def finish(self) -> None:
        """Tell the other side that the stream is over in good order, unless it is already."""
        self._last(FrameKind.DONE)

    def _last(self, kind: FrameKind, body: bytes = b"") -> None:
        with contextlib.suppress(StreamBroken):
            self._put(kind, body)
        self.break_off(UnreachableError("the stream was ended on this side"))
