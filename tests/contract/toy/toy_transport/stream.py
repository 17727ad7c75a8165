"""Both sides of a stream. Each stream uses one TCP connection; a kind and a length precede every message."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import NoReturn

from tuplewire.connection.stream import ClientStream, MessageStream, StreamBroken
from tuplewire.errors import TuplewireError, UnreachableError, refusal_error
from tuplewire_service.messaging.server_stream import ServerStream, code_of

DATA, DONE, REFUSED = 0, 1, 2


class ToyStream(MessageStream):
    """One side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._why: TuplewireError = UnreachableError("the connection was lost")

    async def put(self, kind: int, data: bytes = b"") -> None:
        """Write a message, waiting while the other side is slow."""
        try:
            self._writer.write(bytes([kind]) + len(data).to_bytes(4, "big") + data)
            await self._writer.drain()
        except OSError as error:
            raise StreamBroken from error

    async def write(self, data: bytes) -> None:
        await self.put(DATA, data)

    async def read(self) -> bytes | None:
        try:
            kind, *length = await self._reader.readexactly(5)
            data = await self._reader.readexactly(int.from_bytes(bytes(length), "big"))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise StreamBroken from error
        if kind == REFUSED:
            self._why = refusal_error(*json.loads(data))
            raise StreamBroken from self._why
        return data if kind == DATA else None

    def close(self) -> None:
        self._writer.close()


class ToyClientStream(ToyStream, ClientStream):
    """The connecting side."""

    async def done_writing(self) -> None:
        await self.put(DONE)

    async def end(self) -> TuplewireError:
        with contextlib.suppress(StreamBroken, TimeoutError):
            async with asyncio.timeout(1):
                while await self.read() is not None:
                    pass  # the reason may be in flight
        return self._why


class ToyServerStream(ToyStream, ServerStream):
    """The serving side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.peer = "{}:{}".format(*writer.get_extra_info("peername"))

    async def refuse(self, error: TuplewireError) -> NoReturn:
        await self.put(REFUSED, json.dumps([code_of(error), str(error)]).encode())
        raise StreamBroken from error
