"""An in-memory network: streams between processes on a HandLoop, which a test delivers, holds and cuts."""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn

from helpers.hand_loop import HandLoop, HandThread, process_name
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.connection.stream import ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import TuplewireError, UnreachableError, refusal_error
from tuplewire.session.send_events import SendEvents
from tuplewire_service.messaging.server_stream import ServerStream, code_of
from tuplewire_service.messaging.streamed_transport import StreamedClient, StreamedContext, StreamedServer
from tuplewire_service.messaging.transport_settings import TransportSettings

HOST = "127.0.0.1"
_ROOM = 8
"""The maximum number of messages in flight in one direction; further writes wait."""


class _End:
    """The last entry of a pipe: the stream was closed (perhaps with an error), or is broken."""

    def __init__(self, error: TuplewireError | None = None, *, broken: bool = False) -> None:
        self.error = error
        self.broken = broken


class Pipe:
    """One direction of a stream."""

    def __init__(self) -> None:
        self._on_the_way: deque[bytes | _End] = deque()
        self._arrived: deque[bytes | _End] = deque()
        self._moved = asyncio.Event()
        self._closed = False
        self.end: _End | None = None
        """The end of the stream, once the reader has reached it."""

    def __len__(self) -> int:
        return len(self._on_the_way)

    async def write(self, data: bytes) -> None:
        while len(self._on_the_way) >= _ROOM and not self._closed:
            self._moved.clear()
            await self._moved.wait()
        if not self._closed:
            self._on_the_way.append(data)

    def close(self, end: _End) -> None:
        """Close the pipe: only the messages in flight and then the end still arrive."""
        if not self._closed:
            self._closed = True
            self._on_the_way.append(end)
            self._moved.set()

    def cut(self, keep: int) -> None:
        """Break the pipe: only the first `keep` messages in flight still arrive."""
        while len(self._on_the_way) > keep:
            self._on_the_way.pop()
        self._closed = False
        self.close(_End(broken=True))

    def deliver(self, count: int) -> bool:
        """Deliver up to `count` messages. Return True if any were in flight."""
        moved = bool(self._on_the_way)
        for _ in range(min(count, len(self._on_the_way))):
            self._arrived.append(self._on_the_way.popleft())
        self._moved.set()
        return moved

    async def read(self) -> bytes | None:
        while not self._arrived and self.end is None:
            self._moved.clear()
            await self._moved.wait()
        if self._arrived:
            first = self._arrived.popleft()
            if isinstance(first, bytes):
                return first
            self.end = first
        if self.end is not None and self.end.broken:
            raise StreamBroken
        return None


class Link:
    """A stream in both directions. The end of a pipe notifies one side that the other has left."""

    def __init__(self, method: str, client: str, server: str, written: list[bytes]) -> None:
        self.method, self.client, self.server = method, client, server
        self.written = written
        self.up, self.down = Pipe(), Pipe()
        self.client_gone = self.server_gone = False

    def __repr__(self) -> str:
        return f"<{self.method} {self.client} -> {self.server}: {len(self.up)} up, {len(self.down)} down>"

    def cut(self, keep_up: int, keep_down: int) -> None:
        """Break the stream; each side notices the break when it is delivered."""
        self.up.cut(keep_up)
        self.down.cut(keep_down)

    def deliver(self, count: int) -> bool:
        """Deliver up to `count` messages in each direction. Return True if any were in flight."""
        up, down = self.up.deliver(count), self.down.deliver(count)
        return up or down


class _Client(ClientStream):
    def __init__(self, link: Link) -> None:
        self._link = link

    async def write(self, data: bytes) -> None:
        if self._link.down.end is not None:
            raise StreamBroken
        self._link.written.append(data)
        await self._link.up.write(data)

    async def read(self) -> bytes | None:
        return await self._link.down.read()

    async def done_writing(self) -> None:
        self._link.up.close(_End())

    async def end(self) -> TuplewireError:
        end = self._link.down.end
        if end is not None and end.error is not None:
            return refusal_error(code_of(end.error), str(end.error))
        return UnreachableError(f"{self._link.server}: the stream broke")


class _Refused(Exception):  # noqa: N818 - ends a handler, as gRPC's abort does
    """A stream was closed with an error."""


class _Server(ServerStream):
    def __init__(self, link: Link) -> None:
        self._link = link
        self.peer = link.client

    async def write(self, data: bytes) -> None:
        if self._link.up.end is not None and self._link.up.end.broken:
            raise StreamBroken
        await self._link.down.write(data)

    async def read(self) -> bytes | None:
        return await self._link.up.read()

    async def refuse(self, error: TuplewireError) -> NoReturn:
        self._link.down.close(_End(error))
        raise _Refused


_Handlers = Mapping[str, Callable[[ServerStream], Awaitable[None]]]


class Network:
    """Links between named processes. Servers also have addresses."""

    def __init__(self, loop: HandLoop) -> None:
        self.loop = loop
        self.thread = HandThread(loop)
        self.links: list[Link] = []
        self.written: defaultdict[str, list[bytes]] = defaultdict(list)
        """All messages of clients, by their process."""
        self._servers: dict[str, tuple[str, _Handlers]] = {}
        self._calls: dict[Link, asyncio.Task[None]] = {}

    def listen(self, address: str, handlers: _Handlers) -> None:
        """Serve streams to an address in the current process."""
        self._servers[address] = process_name.get(), handlers

    async def close(self, address: str, grace: float | None) -> None:
        """Stop serving an address. Open streams get `grace` seconds."""
        process, _ = self._servers.pop(address)
        if calls := [task for link, task in self._calls.items() if link.server == process]:
            await asyncio.wait(calls, timeout=grace or 0)
        for task in calls:
            task.cancel()

    def dial(self, address: str) -> StreamOpener:
        """Return a function that opens streams from the current process to an address."""
        return partial(self._open, process_name.get(), address)

    @asynccontextmanager
    async def _open(self, client: str, address: str, method: str) -> AsyncIterator[ClientStream]:
        if address not in self._servers:
            raise UnreachableError(f"{address}: no server listens")
        process, handlers = self._servers[address]
        link = Link(method, client, process, self.written[client])
        self.links.append(link)
        context = contextvars.copy_context()
        context.run(process_name.set, process)
        self._calls[link] = context.run(self.loop.create_task, self._serve(link, handlers[method]))
        try:
            yield _Client(link)
        finally:
            link.up.close(_End(broken=True))
            link.client_gone = True

    async def _serve(self, link: Link, handle: Callable[[ServerStream], Awaitable[None]]) -> None:
        try:
            await handle(_Server(link))
            link.down.close(_End())
        except (StreamBroken, _Refused):
            pass
        finally:
            link.down.close(_End(broken=True))
            link.server_gone = True
            del self._calls[link]

    def kill(self, process: str) -> None:
        """Stop a process immediately. Data that it has already written may still arrive."""
        for address in [each for each, (server, _) in self._servers.items() if server == process]:
            del self._servers[address]
        self.loop.kill(process)

    def kill_all(self) -> None:
        """Stop every process, and close the loop."""
        for name in self.loop.processes:
            self.kill(name)
        self.loop.close()

    def sweep(self) -> None:
        """Remove the links that both sides have left."""
        self.links = [link for link in self.links if not (link.client_gone and link.server_gone)]

    def deliver(self, which: int, count: int) -> None:
        """Deliver data of one link."""
        self.sweep()
        if self.links:
            self.links[which % len(self.links)].deliver(count)
            self.loop.settle()

    def deliver_all(self) -> bool:
        """Deliver all messages in flight. Return True if there were any."""
        self.sweep()
        moved = [link.deliver(_ROOM) for link in self.links]
        self.loop.settle()
        return any(moved)


class _NetworkServer(StreamedServer["NetworkContext"]):
    """Serves the streams of a Network."""

    async def _bind(self) -> int:
        self.addresses = [f"{HOST}:{self.port}"]
        self._context.network.listen(self.addresses[0], self._handlers)
        return self.port

    async def _unbind(self, grace: float | None) -> None:
        await self._context.network.close(self.addresses[0], grace)


class NetworkContext(StreamedContext):
    """The IContext of one worker, over a Network."""

    server_class = _NetworkServer

    def __init__(self, network: Network, settings: TransportSettings) -> None:
        super().__init__()
        self.network = network
        self.settings = settings

    @property
    def thread(self) -> HandThread:
        """The loop of the network."""
        return self.network.thread

    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        del topology_id  # the hello contains it
        return self.network.dial(f"{host}:{port}")

    def connect(
        self, topology_id: str, host: str, port: int, expected_id: str = "", events: SendEvents | None = None
    ) -> StreamedClient:
        """Connect on the network's loop, with an id that is the same in each run."""
        settings, open_stream = self.settings, self._stream_opener(topology_id, host, port)
        sender_id = f"{settings.worker_id}/{next(self._numbers)}"
        identity = Identity(topology_id, sender_id, settings.incarnation, is_worker=True)
        address = f"{host}:{port}"
        return StreamedClient(
            SendingEnd(address, identity, settings.session, self.thread, open_stream, expected_id, events)
        )

    def term(self) -> None:
        """See IContext. Does nothing: a drain or a kill has already closed everything."""
