"""A call whose messages have faults on purpose; see tuplewire_service.messaging.faults."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tuplewire.connection.stream import StreamBroken
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.faults import Fate, Faults
from tuplewire_service.messaging.grpc.grpc_transport import Admit, GrpcServerStream

_SAYS = "a fault on purpose: see tuplewire faults"


class FaultyServerStream(GrpcServerStream):
    """A call in progress.

    What is lost takes the stream with it, as a broken connection takes what was on its way. What is cut has
    arrived, and then the stream breaks. Only messages of the other side are doubled, and not its first.
    """

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        admit: Admit | None,
        method: str,
        faults: Faults,
    ) -> None:
        super().__init__(context, admit)
        self._faults = faults
        self._method = method
        self._names = [unquote(self.peer.partition(":")[2].rpartition(":")[0]).strip("[]") or "unix"]
        self._first = True
        self._again: bytes | None = None
        self._cut = False

    async def read(self) -> bytes | None:
        if self._cut:
            await self._break("cut")
        if self._again is not None:
            data, self._again = self._again, None
            return data
        arrived = await super().read()
        if arrived is None:
            return None
        first, self._first = self._first, False
        if first:
            self._names += _ids(self._method, arrived)
        if self._faults:
            fate = await self._wait(len(arrived))
            if fate.doubled and not first:
                self._faults.counts["doubled"] += 1
                self._again = arrived
        return arrived

    async def write(self, data: bytes) -> None:
        if self._cut:
            await self._break("cut")
        if self._faults:
            await self._wait(len(data))
        await super().write(data)

    async def _wait(self, size_bytes: int) -> Fate:
        fate = self._faults.fate(self._method, self._names, size_bytes)
        if fate.seconds:
            await asyncio.sleep(fate.seconds)
        if fate.lost:
            await self._break("lost")
        self._cut |= fate.cut
        return fate

    async def _break(self, why: str) -> NoReturn:
        self._faults.counts[why] += 1
        with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, _SAYS)
        raise StreamBroken


def _ids(method: str, first: bytes) -> list[str]:
    """Return by what id the other side goes, as it says in its first message."""
    try:
        if method == "Send":
            return [pb.SendRequest.FromString(first).hello.sender_id]
        if method == "Recv":
            return [pb.RecvRequest.FromString(first).subscribe.consumer_id]
    except DecodeError:
        pass
    return []
