"""A stream whose messages have faults on purpose; see tuplewire_service.messaging.faults."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from google.protobuf.message import DecodeError

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.faults import Fate, Faults
from tuplewire_service.messaging.streamed.streamed_stream import IAccess, ServerStream
from tuplewire_service.messaging.streamed.streamed_transport import StreamedContext

_SAYS = "a fault on purpose: see tuplewire faults"


class FaultyStream(ServerStream):
    """Stands before a stream of any transport.

    What is lost takes the stream with it, as a broken connection takes what was on its way. What is cut has
    arrived, and then the stream breaks. Only messages of the other side are doubled, and not its first.
    """

    def __init__(self, wire: ServerStream, method: str, faults: Faults) -> None:
        self.peer = wire.peer
        self._wire = wire
        self._faults = faults
        self._method = method
        self._names = [wire.host]
        self._first = True
        self._again: bytes | None = None
        self._cut = False

    @property
    def host(self) -> str:
        return self._wire.host

    def admit(self) -> IAccess:
        return self._wire.admit()

    async def refuse(self, error: TuplewireError) -> NoReturn:
        await self._wire.refuse(error)

    async def read(self) -> bytes | None:
        if self._cut:
            await self._break("cut")
        if self._again is not None:
            data, self._again = self._again, None
            return data
        arrived = await self._wire.read()
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
        await self._wire.write(data)

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
        await self._wire.cut(_SAYS)


def make_faulty(context: IContext, transport: str, faults: Faults) -> None:
    """Put faults into the streams of all servers that a context binds from now on.

    Raises ConfigError where the transport (its name) has no streams.
    """
    if not isinstance(context, StreamedContext):
        raise ConfigError(
            f"allow_faults: the transport {transport!r} has no streams in which faults can be made; use grpc "
            "or zmq between workers, or leave allow_faults out"
        )
    context.wrap = lambda wire, method: FaultyStream(wire, method, faults)


def _ids(method: str, first: bytes) -> list[str]:
    """Return by what ids the other side goes, as it says in its first message: a worker by its own, too."""
    try:
        if method == "Send":
            hello = pb.SendRequest.FromString(first).hello
            worker_id, _, connection = hello.sender_id.rpartition("/")
            is_worker = hello.kind == pb.PEER_KIND_WORKER and connection
            return [hello.sender_id, worker_id] if is_worker else [hello.sender_id]
        if method == "Recv":
            return [pb.RecvRequest.FromString(first).subscribe.consumer_id]
    except DecodeError:
        pass
    return []
