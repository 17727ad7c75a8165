"""ZeroMQ's settings, endpoints (`tcp`, and `ipc` in local mode), context and sockets for the event loop.

Used by zmq_stream.py and zmq_transport.py. Owns the context and its open sockets. Call only from the event
loop. Exception: Sockets.term(). Design: docs/design/sessions.md (ZeroMQ between workers).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import zmq

from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import BindError, ConfigError
from tuplewire.settings.config import MIB
from tuplewire.settings.settings import SECONDS_OR_ZERO, choice, integer, storm_setting
from tuplewire_service.messaging.claimed_socket import MAX_SOCKET_PATH_BYTES, claim_socket
from tuplewire_service.messaging.transport_settings import TransportSettings

Socket = zmq.Socket[bytes]

_HANDSHAKE_MILLIS = 5000
_CONTROL_FRAMES = 1000
_EPHEMERAL_PORTS = range(49152, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """The settings of all transports, and of Storm's plug-in under Storm's keys."""

    REFUSED = (*TransportSettings.REFUSED, "tuplewire.zmq.")  # every key of this transport is a key of Storm

    threads: int = storm_setting("zmq.threads", integer(), 1, "number of ZeroMQ's I/O threads")
    linger_seconds: float = storm_setting(
        "zmq.linger.millis", SECONDS_OR_ZERO, 5.0, "maximum time to send the last written data after a close"
    )
    hwm: int = storm_setting(
        "zmq.hwm",
        integer(0),
        1000,
        "maximum number of unread messages of a stream in flight; 0: only the limit in bytes applies",
    )
    cluster_mode: str = storm_setting(
        "storm.cluster.mode",
        choice(["local", "distributed"]),
        "distributed",
        "local: use Unix sockets (ipc) in the user's temporary directory instead of tcp",
    )

    @property
    def stream_window(self) -> tuple[int, int]:
        """The messages and bytes that one side of a stream may send before the other side reads them."""
        return self.hwm or 2**32, 4 * MIB

    def endpoint(self, host: str, port: int) -> str:
        """Return the endpoint of an address. In local mode, it is the port's for any host."""
        return ipc_endpoint(port) if self.cluster_mode == "local" else f"tcp://{host}:{port or '*'}"


def ipc_endpoint(port: int) -> str:
    """Return the endpoint of a port in local mode. Source: Storm's `ZMQContext`, `ipc?`."""
    return f"ipc://{_ipc_path(port)}"


def _ipc_path(port: int) -> Path:
    directory = Path(tempfile.gettempdir()) / f"tuplewire-zmq-{os.getuid()}"
    with contextlib.suppress(FileExistsError):  # also for a dangling link
        directory.mkdir(mode=0o700)
    found = directory.lstat()  # another user could choose a link's target
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{directory} is not a directory of this user alone: remove it, or chmod 700 it if it is yours, "
            "or set TMPDIR to another directory"
        )
    path = directory / f"{port}.ipc"
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
    return path


def claim_ipc_port(port: int, claim: ExitStack) -> int:
    """Claim a port of local mode, or any free one for 0, until `claim` is closed. Raises BindError."""
    # In random order, because several workers may start at the same time.
    for candidate in [port] if port else random.sample(_EPHEMERAL_PORTS, len(_EPHEMERAL_PORTS)):
        with contextlib.suppress(BindError):
            claim.enter_context(claim_socket(_ipc_path(candidate)))
            return candidate
    raise BindError(f"cannot listen on {ipc_endpoint(port)}: it is in use; choose another port, or 0")


class Sockets:
    """Creates and closes sockets. Call only from the event loop, except term().

    ZeroMQ does not survive a fork, and its sockets would stay open in the child. Before a fork (see
    tuplewire.connection.loop), sockets and context are closed. The next socket creates a new context.
    """

    def __init__(self, settings: ZmqSettings) -> None:
        self._settings = settings
        self._context: zmq.Context[Socket] | None = None
        self._pid = 0
        self._open: set[Socket] = set()
        self._socket_closed = asyncio.Event()

    def make(self, kind: int) -> Socket:
        """Return a socket with connections that close with their peer and do not reconnect."""
        if self._context is None or self._pid != os.getpid():
            self._context = zmq.Context(self._settings.threads)
            # Each connecting stream needs two sockets, and ZeroMQ's default limit is about a thousand.
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
            self._pid = os.getpid()
            self._open = set()
            messaging_thread().suspendables.add(self)
        settings, session = self._settings, self._settings.session
        new_socket = self._context.socket(kind)
        self._open.add(new_socket)
        keepalive_millis = int(1000 * session.keepalive_seconds)
        # The window is the effective limit; this adds capacity for frames outside the window.
        high_water_mark = settings.hwm + _CONTROL_FRAMES if settings.hwm else 0
        # A closed socket drops unsent messages, because the session sends them again.
        new_socket.set(zmq.LINGER, 0)
        new_socket.set(zmq.SNDHWM, high_water_mark)
        new_socket.set(zmq.RCVHWM, high_water_mark)
        new_socket.set(zmq.MAXMSGSIZE, session.max_request_bytes)
        # Heartbeats detect a peer that has stopped without closing its connection.
        new_socket.set(zmq.HEARTBEAT_IVL, keepalive_millis)
        new_socket.set(zmq.HEARTBEAT_TIMEOUT, keepalive_millis)
        new_socket.set(zmq.HEARTBEAT_TTL, 2 * keepalive_millis)
        new_socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MILLIS)
        # libzmq would reconnect silently, and messages in flight would be missing from the stream.
        new_socket.set(zmq.RECONNECT_IVL, -1)
        new_socket.set(zmq.IMMEDIATE, 1)
        return new_socket

    def open_monitor(self, socket: Socket) -> Socket:
        """Return the socket that reports events of another socket's connections."""
        monitor = socket.get_monitor_socket()
        self._open.add(monitor)
        return monitor

    def close(self, socket: Socket, linger_millis: int = 0) -> None:
        """Close a socket. ZeroMQ still sends its messages, for at most `linger_millis` milliseconds."""
        if socket in self._open:
            self._open.discard(socket)
            socket.close(linger_millis)
            self._socket_closed.set()

    async def suspend(self) -> None:
        """See Suspendable: wait for the streams to close their sockets, then end ZeroMQ's threads."""
        while self._open:
            self._socket_closed.clear()
            await self._socket_closed.wait()
        self.term()

    def resume(self) -> None:
        """See Suspendable: the next socket creates a new context."""

    def term(self) -> None:
        """End ZeroMQ's threads, once lingering messages are sent or have timed out."""
        context, self._context = self._context, None
        # In the child of a fork, ZeroMQ's threads do not exist, and term() would wait for them.
        if context is not None and self._pid == os.getpid():
            context.term()


_MESSAGES_PER_TURN = 100
"""Maximum number of messages received before other callbacks of the loop run."""


class Pump:
    """Receives and sends the messages of a socket. Call only from the event loop.

    The descriptor only signals a *change*, and any access to the socket, including a send, clears the signal.
    So every send is followed by a check for received messages. zmq.asyncio does the same with a future for
    each message, and loses a message if its future is cancelled.
    """

    def __init__(self, socket: Socket, on_message: Callable[[list[zmq.Frame]], None]) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.get(zmq.FD))
        self._read_handle: asyncio.Handle | None = None
        self._closed = False
        self._loop.add_reader(self._descriptor, self.receive_waiting)
        self._schedule_read()

    def receive_waiting(self) -> None:
        """Receive waiting messages, at most `_MESSAGES_PER_TURN` in one turn of the loop."""
        if self._read_handle is not None:
            self._read_handle.cancel()
            self._read_handle = None
        for _ in range(_MESSAGES_PER_TURN):
            if self._closed:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._on_message(parts)
        # More messages may wait, but the descriptor signals only changes.
        self._schedule_read()

    def _schedule_read(self) -> None:
        if self._read_handle is None and not self._closed:
            self._read_handle = self._loop.call_soon(self.receive_waiting)

    def send(self, parts: Sequence[bytes]) -> None:
        """Send a message immediately. Raises zmq.ZMQError if there is no peer or no space."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self._socket.get(zmq.EVENTS)  # makes the socket process pending changes
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        finally:
            self._schedule_read()

    def close(self) -> None:
        """Stop watching the socket, before it is closed."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            if self._read_handle is not None:
                self._read_handle.cancel()
