"""Both sides of a transport with sessions over streams, and the base of their contexts.

Used by grpc, local and zmq, and by worker/connections.py. Owns the bound servers and clients of a context.
Thread-safe. Exceptions: methods of the event loop. Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tuplewire.connection.loop import EventLoopThread, messaging_thread
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.connection.stream import StreamOpener
from tuplewire.errors import ClosedError
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.addresses import add_brackets
from tuplewire.values.batch import as_groups
from tuplewire.values.message import TaskMessage
from tuplewire.wire.control_pb2 import GetStatusResponse
from tuplewire_service.messaging.base import (
    BLOCK,
    AcceptedPeers,
    ClientStatistics,
    ConnectionStatus,
    IClientConnection,
    IConnection,
    IConnectionCallback,
    IContext,
    IServerConnection,
)
from tuplewire_service.messaging.reception import Reception
from tuplewire_service.messaging.recv_service import ISubscriptionSource, RecvService
from tuplewire_service.messaging.send_service import SendService
from tuplewire_service.messaging.server_stream import PendingHandshakes, ServerStream
from tuplewire_service.messaging.transport_settings import TransportSettings

_CLOSE_GRACE_SECONDS = 0.5
"""Timeout at a close for calls in progress: a status call or an idle Recv stream."""
_Connection = TypeVar("_Connection", bound=IConnection)
_Context = TypeVar("_Context", bound="StreamedContext")
StreamHandler = Callable[[ServerStream], Awaitable[None]]
"""Serves one stream to its end."""


class StreamedServer(IServerConnection, Generic[_Context]):
    """Serves senders (Send) and consumers (Recv) of one topology over the streams of a transport.

    A transport implements _bind() and _unbind(), and passes each stream to the handler of its method.
    `_context` is the context that bound this server.
    """

    blocks_fork: ClassVar[bool] = True
    """True if the process cannot shut gRPC down for a fork while this server is bound."""
    port = 0
    status = ConnectionStatus.CONNECTING
    addresses: Sequence[str] = ()

    def __init__(
        self, context: _Context, topology: str, port: int, callback: IConnectionCallback | None
    ) -> None:
        """Bind, and start to listen. Raises BindError."""
        settings = context.settings
        self._context = context
        self._thread = context.thread
        self._topology = topology
        self.port = port
        # register_recv() and recv() run in any thread, but the event is not thread-safe.
        self._reception = Reception(lambda: self._thread.call(self.send_service.receiver_ready.set))
        self._pending_handshakes = handshakes = PendingHandshakes()
        self._refused_streams = refused = Counter[str]()
        """Streams that were refused or failed, by error code."""
        self.send_service = SendService(topology, settings, handshakes, refused, self._reception)
        if callback is not None:
            # Before the server listens, because a hello already reads the callback's state.
            self.register_recv(callback)
        self._handlers: dict[str, StreamHandler] = {"Send": self.send_service.serve}
        self._recv_service: RecvService | None = None
        # Only a callback with queues can serve consumers.
        source: object = callback
        if isinstance(source, ISubscriptionSource):
            self._recv_service = RecvService(topology, settings, handshakes, refused, source)
            self._handlers["Recv"] = self._recv_service.serve
        self._thread.run(self._start())

    async def _start(self) -> None:
        self.port = await self._bind()
        # See docs/design/forks-and-interrupts.md (forks).
        self._thread.fork_blocking_servers += self.blocks_fork
        self.status = ConnectionStatus.READY

    @abstractmethod
    async def _bind(self) -> int:
        """Listen, store the addresses, and return the port. Raises BindError."""

    @abstractmethod
    async def _unbind(self, grace: float | None) -> None:
        """Stop listening and end open streams, with `grace` seconds for calls in progress."""

    def register_recv(self, callback: IConnectionCallback) -> None:
        self._reception.register(callback)

    def recv(self, flags: int = BLOCK) -> TaskMessage | None:
        return self._reception.pull(flags)

    def _check_open(self) -> None:
        if self.status is ConnectionStatus.CLOSED:
            raise ClosedError(f"the server on port {self.port} is closed; bind the port again")

    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        self._check_open()
        loads = dict(loads)
        self._thread.call(lambda: self.send_service.send_load(loads))

    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        self._check_open()
        self._thread.call(lambda: self.send_service.send_backpressure(worker_id, congested, relieved))

    def statistics(self) -> GetStatusResponse:
        status = GetStatusResponse()
        self.add_to(status)
        return status

    def add_to(self, status: GetStatusResponse) -> None:
        """Add the counts to a worker's status."""
        self.send_service.sender_sessions.add_to(status)
        self._reception.add_to(status)
        status.silent_streams += len(self._pending_handshakes)
        for code, count in list(self._refused_streams.items()):
            status.refused_streams[code] += count

    def set_accepted_peers(self, intake: AcceptedPeers = AcceptedPeers.OWN_PROGRAM) -> None:
        """See IServerConnection. Ends Send streams; consumers continue."""
        self._thread.run(self.send_service.set_accepted_peers(intake))

    def close(self, timeout: float = 10.0) -> None:
        if self.status is not ConnectionStatus.CLOSED:
            self._thread.run(self.close_async(timeout))

    async def close_async(self, timeout: float) -> None:
        """Do the same as close() on the event loop."""
        if self.status is ConnectionStatus.CLOSED:
            return
        self.status = ConnectionStatus.CLOSED
        if self._recv_service is not None:
            # The close ends every Recv stream, so new consumers connect to another worker.
            self._recv_service.draining = True
        # Acknowledge first, then end the streams: a lost acknowledgement would cause a resend.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.send_service.set_accepted_peers(AcceptedPeers.OWN_PROGRAM)
                await self.send_service.end()
        await self._stop(_CLOSE_GRACE_SECONDS)

    def abort(self) -> None:
        if self.status is not ConnectionStatus.CLOSED:
            self.status = ConnectionStatus.CLOSED
            self._thread.run(self._stop(None))

    async def _stop(self, grace: float | None) -> None:
        self._reception.close()
        await self._unbind(grace)
        self._thread.fork_blocking_servers -= self.blocks_fork


class StreamedClient(IClientConnection):
    """A sending end with the interface of a transport plug-in."""

    def __init__(self, sender: SendingEnd) -> None:
        self.sender = sender
        sender.thread.start_connection(sender)

    @property
    def port(self) -> int:
        return int(self.sender.address.rpartition(":")[2])

    @property
    def status(self) -> ConnectionStatus:
        if self.sender.buffer.ended or self.sender.buffer.failure is not None:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.READY if self.sender.connected else ConnectionStatus.CONNECTING

    @property
    def congested(self) -> frozenset[int]:
        return self.sender.congested_tasks.tasks(time.monotonic())

    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        return self.sender.loads.get(tasks, time.monotonic())

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        buffer = self.sender.buffer
        # A single message takes a shorter way; see docs/design/forks-and-interrupts.md.
        if not buffer.try_send_one(messages, payload):
            buffer.send(as_groups(messages, payload), timeout=timeout)

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        buffer = self.sender.buffer
        return buffer.try_send_one(messages, payload) or buffer.offer(as_groups(messages, payload))

    def statistics(self) -> ClientStatistics:
        counts, ack_handler = self.sender.counts, self.sender.ack_handler
        return ClientStatistics(
            self.sender.buffer.ledger(),
            counts.messages,
            counts.frames,
            counts.bytes,
            max(0, counts.connections - 1),
            ack_handler.assignment_version,
            self.sender.buffer.session.possibly_lost,
        )

    def close(self, timeout: float = 10.0) -> None:
        self.sender.close(timeout)

    def abort(self) -> None:
        self.sender.abort()


class StreamedContext(IContext):
    """Binds and connects; a transport implements _stream_opener(), and sets `server_class`.

    Do not use it on the messaging loop: bind(), close() and term() wait for that loop. Direct users may pass
    settings instead of calling prepare().
    """

    settings_class: ClassVar[type[TransportSettings]] = TransportSettings
    """Defines the keys of prepare()."""
    server_class: ClassVar[type[StreamedServer[Any]]]

    def __init__(self, settings: TransportSettings | None = None) -> None:
        self.settings = settings or self.settings_class.from_conf({})
        self._lock = threading.Lock()
        self._connections: list[IConnection] = []
        self._numbers = itertools.count(1)
        self._instance_id = uuid.uuid4().hex[:16]

    def prepare(self, conf: Mapping[str, Any]) -> None:
        self.settings = self.settings_class.from_conf(conf)

    @property
    def thread(self) -> EventLoopThread:
        """The event loop of its connections."""
        return messaging_thread()

    @abstractmethod
    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        """Return a function that opens streams to a worker; an IPv6 host has brackets."""

    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> StreamedServer[Any]:
        return self._register(self.server_class(self, topology_id, port, callback))

    def connect(
        self, topology_id: str, host: str, port: int, expected_id: str = "", events: SendEvents | None = None
    ) -> StreamedClient:
        """See IContext; each connection is a separate session. For the other arguments, see SendingEnd."""
        settings = self.settings
        host = add_brackets(host)
        identity = Identity(
            topology_id,
            # After a restart, the clock may be behind; a new sender id keeps the incarnation valid.
            f"{settings.worker_id or uuid.uuid4()}/{self._instance_id}.{next(self._numbers)}",
            settings.incarnation,
            is_worker=bool(settings.worker_id),
        )
        open_stream = self._stream_opener(topology_id, host, port)
        end = SendingEnd(
            f"{host}:{port}", identity, settings.session, self.thread, open_stream, expected_id, events
        )
        return self._register(StreamedClient(end))

    def _register(self, connection: _Connection) -> _Connection:
        with self._lock:
            closed = ConnectionStatus.CLOSED
            self._connections = [each for each in self._connections if each.status is not closed]
            self._connections.append(connection)
        return connection

    def term(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in reversed(connections):
            connection.close()
