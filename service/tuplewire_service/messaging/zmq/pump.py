"""A ZeroMQ socket on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from tuplewire_service.messaging.zmq.sockets import Socket

_TURN = 100
"""Messages that are taken before the loop goes round to whoever else waits."""


class Pump:
    """Hands on what arrives at a socket, and sends. Belongs to the loop.

    The socket's descriptor only says that something *has changed*, and whatever looks at the socket takes the
    news away, a send included. So whoever has sent looks again for what has arrived. zmq.asyncio does the
    same, with a future for each message, and loses one whose future is cancelled.
    """

    def __init__(self, socket: Socket, take: Callable[[list[zmq.Frame]], None]) -> None:
        self._socket = socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.get(zmq.FD))
        self._looking: asyncio.Handle | None = None
        self._closed = False
        self._loop.add_reader(self._descriptor, self.drain)
        self._look()

    def drain(self) -> None:
        """Hand on what has arrived, the first of it when it is much."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for _ in range(_TURN):
            if self._closed:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(parts)
        self._look()

    def _look(self) -> None:
        if self._looking is None and not self._closed:
            self._looking = self._loop.call_soon(self.drain)

    def send(self, parts: Sequence[bytes]) -> None:
        """Send a message now; zmq.ZMQError when there is nobody to send it to, or no room."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self._socket.get(zmq.EVENTS)  # makes the socket look at what has changed
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        finally:
            self._look()

    def close(self) -> None:
        """Look at the socket no more; before it is closed."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            if self._looking is not None:
                self._looking.cancel()
