"""The bound side of the ZeroMQ transport, one ROUTER with a stream for each connection, and the context.

Used through the entry point `zmq`. Owns the ROUTER socket and the streams of its connections.
Call only from the event loop. Exceptions: the methods of connections and contexts are thread-safe.
Design: docs/design/sessions.md (ZeroMQ between workers).
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import ExitStack
from functools import cached_property

import zmq
from zmq.utils.monitor import parse_monitor_message

from tuplewire.connection.loop import report_errors
from tuplewire.connection.stream import StreamBroken, StreamOpener
from tuplewire.errors import (
    BindError,
    DrainingError,
    MalformedError,
    RefusedError,
    ResourceLimitError,
    TuplewireError,
    UnreachableError,
)
from tuplewire_service.messaging.base import ConnectionStatus, IConnectionCallback
from tuplewire_service.messaging.server_stream import code_of, log_refusal
from tuplewire_service.messaging.streamed_transport import StreamedContext, StreamedServer, StreamHandler
from tuplewire_service.messaging.zmq.zmq_sockets import Pump, Sockets, ZmqSettings, claim_ipc_port
from tuplewire_service.messaging.zmq.zmq_stream import (
    HANDSHAKE_FAILURES,
    ZERO,
    Frame,
    FrameKind,
    ZmqServerStream,
    decode,
    encode,
    encode_refusal,
    zmq_stream_opener,
)

_MAX_STREAMS = 20_000
"""Maximum number of open streams of one server."""
_UNBIND_SECONDS = 2.0
_PEER_CLOSE_SECONDS = 1.0
"""Seconds for peers to read the end of their streams and to close their connections."""
_CHECK_SECONDS = 0.05
_CHECK_SECONDS_PER_CONNECTION = 1e-4
"""Delay from a disconnect to the check of all streams; longer with many connections."""


class ZmqServerConnection(StreamedServer["ZmqContext"]):
    """Serves all peers that open a stream. Source: Storm's `ZMQContext.bind`.

    Unknown peers may send anything: the first invalid frame is counted and answered, and later frames of that
    connection are ignored. ZeroMQ cannot close one connection of a ROUTER.
    """

    def __init__(
        self, context: ZmqContext, topology: str, port: int, callback: IConnectionCallback | None
    ) -> None:
        self._settings, self._sockets = context.settings, context.sockets
        self._streams: dict[bytes, ZmqServerStream] = {}
        self._ended_connections: set[bytes] = set()
        """Connections with an ended or invalid stream; their frames are ignored."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._claim = ExitStack()
        """Holds the port in local mode."""
        self._unbound = asyncio.Event()
        self._next_check: asyncio.TimerHandle | None = None
        self._check_done = asyncio.Event()
        super().__init__(context, topology, port, callback)

    async def _bind(self) -> int:
        self._socket = self._sockets.make(zmq.ROUTER)
        # A ROUTER then reports that a peer is disconnected, instead of dropping messages to it.
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._monitor = self._sockets.open_monitor(self._socket)
        try:
            port = self._listen()
        except BaseException:
            # Open sockets would block term(), and delay a fork.
            self._close_sockets(0)
            raise
        self._pump = Pump(self._socket, self._on_message)
        self._monitor_pump = Pump(self._monitor, self._on_monitor_event)
        self._schedule_check(self._settings.session.keepalive_seconds)
        return port

    def _listen(self) -> int:
        host, port, local = self._settings.host, self.port, self._settings.cluster_mode == "local"
        if local:
            port = claim_ipc_port(port, self._claim)
        endpoint = self._settings.endpoint(host, port)
        self._socket.set(zmq.IPV6, int(":" in host))
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise BindError(
                f"cannot listen on {endpoint}: in use, or not of this machine ({error}); choose another"
            ) from error
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if not local:
            port = int(self._endpoint.rpartition(":")[2])
        self.addresses = [self._endpoint if local else f"{host}:{port}"]
        return port

    def _on_message(self, parts: list[zmq.Frame]) -> None:
        connection = parts[0].bytes
        if connection in self._ended_connections:
            return
        stream = self._streams.get(connection)
        try:
            frame = decode([part.bytes for part in parts[1:]])
            if stream is not None:
                stream.on_frame(frame)
            else:
                self._open(connection, frame, _address_of(parts[-1]))
        except TuplewireError as error:
            self._refuse(connection, stream, error)

    def _open(self, routing_id: bytes, frame: Frame, address: str) -> None:
        if frame.kind is not FrameKind.OPEN:
            raise MalformedError(f"a frame of kind {frame.kind.name} before a stream was opened")
        serve = self._handlers.get(frame.body.decode(errors="replace"))
        if serve is None:
            raise MalformedError(f"method {frame.body[:50]!r} is not served; known are: {[*self._handlers]}")
        if self.status is ConnectionStatus.CLOSED:
            raise DrainingError("the worker is stopping; connect again later, or to another one")
        if len(self._streams) >= _MAX_STREAMS:
            raise ResourceLimitError(
                f"{_MAX_STREAMS} streams are open already; close some, or connect to another worker"
            )
        stream = self._make_stream(routing_id, f"zmq:{address}")
        stream.on_open(frame.allowance)
        self._streams[routing_id] = stream
        task = self._thread.loop.create_task(self._serve_stream(routing_id, stream, serve), name="zmq stream")
        self._tasks.add(report_errors(task))
        task.add_done_callback(self._tasks.discard)

    def _make_stream(self, connection: bytes, peer: str) -> ZmqServerStream:
        window = self._settings.stream_window
        return ZmqServerStream(lambda parts: self._pump.send([connection, *parts]), window, peer)

    async def _serve_stream(self, connection: bytes, stream: ZmqServerStream, serve: StreamHandler) -> None:
        try:
            # The ways in which a stream ends:
            # 1. The handler returns: the peer receives DONE.
            # 2. The handler refuses the stream: refuse() has sent the reason, and raises StreamBroken.
            # 3. The peer disconnects, see _check_streams(), or sends an invalid frame: StreamBroken.
            # 4. The handler has a defect: the peer receives a general reason, and the log the exception.
            # 5. The server is unbound: this task is cancelled.
            await serve(stream)
            stream.finish()
        except StreamBroken:
            pass  # refused, or disconnected: nothing more can be sent
        except Exception:
            stream.send_refusal(RefusedError("the receiver has a defect; see its log"))
            raise
        finally:
            stream.disconnect(UnreachableError("the stream was ended on this side"))
            del self._streams[connection]
            self._ended_connections.add(connection)

    def _refuse(self, connection: bytes, stream: ZmqServerStream | None, error: TuplewireError) -> None:
        # An open stream is broken off, so its handler ends as in case 3 of _serve_stream().
        stream = stream or self._make_stream(connection, "zmq:unknown")
        self._refused_streams[code_of(error)] += 1
        log_refusal(stream.peer, error)
        stream.send_refusal(error)
        self._ended_connections.add(connection)

    def _on_monitor_event(self, parts: list[zmq.Frame]) -> None:
        event = parse_monitor_message([part.bytes for part in parts])["event"]
        if event == zmq.EVENT_DISCONNECTED:
            # A check costs time for each connection; see docs/design/sessions.md (ZeroMQ between workers).
            connection_count = len(self._streams) + len(self._ended_connections)
            self._schedule_check(_CHECK_SECONDS + connection_count * _CHECK_SECONDS_PER_CONNECTION)
        elif event == zmq.EVENT_CLOSED:
            self._unbound.set()
        elif event in HANDSHAKE_FAILURES:
            self._refused_streams["MALFORMED"] += 1

    def _schedule_check(self, seconds: float) -> None:
        """Check the streams after `seconds`, or earlier if a check is scheduled."""
        loop = self._thread.loop
        if self._next_check is not None:
            if self._next_check.when() <= loop.time() + seconds:
                return
            self._next_check.cancel()
        self._next_check = loop.call_later(seconds, self._check_streams)

    def _check_streams(self) -> None:
        """Find disconnected peers: ZeroMQ reports a disconnect, but not the connection."""
        self._next_check = None
        # To a disconnected peer, a send fails, which ends its stream.
        for stream in self._streams.values():
            stream.send_grant()
        # A peer ignores this frame if it has a reason already, because only the first one counts.
        refusal = encode(FrameKind.REFUSED, ZERO, encode_refusal("UNSPECIFIED", "the stream has ended"))
        for connection in list(self._ended_connections):
            try:
                self._pump.send([connection, *refusal])
            except zmq.Again:
                pass  # it is connected, but does not read
            except zmq.ZMQError:
                self._ended_connections.discard(connection)
        self._check_done.set()
        self._schedule_check(self._settings.session.keepalive_seconds)

    async def _unbind(self, grace: float | None) -> None:
        if self._tasks and grace is not None:
            await asyncio.wait(self._tasks, timeout=grace)
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        # ZeroMQ may lose a socket's last messages despite its linger time, so peers disconnect first. See
        # docs/design/drain.md (senders during a drain).
        if grace is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PEER_CLOSE_SECONDS):
                    while self._ended_connections:
                        self._check_done.clear()
                        self._schedule_check(_CHECK_SECONDS)
                        await self._check_done.wait()
        if self._next_check is not None:
            self._next_check.cancel()
        linger = 0 if grace is None else round(self._settings.linger_seconds * 1000)
        self._socket.set(zmq.LINGER, linger)
        self._socket.unbind(self._endpoint)
        # unbind() returns before ZeroMQ has closed the port; another server could not bind it yet.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNBIND_SECONDS):
                await self._unbound.wait()
        self._monitor_pump.close()
        self._pump.close()
        self._close_sockets(linger)

    def _close_sockets(self, linger: int) -> None:
        self._socket.disable_monitor()
        self._sockets.close(self._monitor)
        self._sockets.close(self._socket, linger)
        self._claim.close()


def _address_of(part: zmq.Frame) -> str:
    """Return the sender's address. Raises MalformedError for a ZeroMQ version without heartbeats."""
    try:
        return str(part.get("Peer-Address"))
    except zmq.ZMQError:
        raise MalformedError("the peer's ZeroMQ is too old: use libzmq 4.2 or newer") from None


class ZmqContext(StreamedContext):
    """Binds a ROUTER and connects DEALERs to it. Source: Storm's `ZMQContext`.

    In local mode (`storm.cluster.mode`), a port is a Unix socket of this machine for any host.
    """

    settings_class = ZmqSettings
    server_class = ZmqServerConnection
    settings: ZmqSettings

    @cached_property
    def sockets(self) -> Sockets:
        """The sockets, with the settings of prepare()."""
        return Sockets(self.settings)

    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        del topology_id  # the hello contains it
        endpoint = self.settings.endpoint(host, port)
        return zmq_stream_opener(self.sockets, endpoint, f"{host}:{port}", self.settings.stream_window)

    def term(self) -> None:
        super().term()
        self.sockets.term()
