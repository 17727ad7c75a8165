"""What a process that runs executors and the one that started it tell each other, over a socket pair.

A message is a kind and values, in the form of a tuple's values (MessagePack), which runs nothing when it is
read: the two may be of different users.
"""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from typing import Any

from tuplewire.errors import MalformedError, UnreachableError
from tuplewire.topology.serial.packing import pack_values
from tuplewire.topology.serial.unpacking import FAULTS, read_value

_MOST_BYTES = 256 * 1024 * 1024


class Channel:
    """One end; used from one thread at a time. Raises UnreachableError once the other end is gone."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, kind: str, *values: Any) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(pack_values([kind, *values]))
        except OSError as error:
            raise UnreachableError("the process at the other end of the channel is gone") from error

    def receive(self, timeout: float | None) -> tuple[str, list[Any]] | None:
        """Return the next message as its kind and values; None when there is none in so many seconds.

        Raises MalformedError for what is no message.
        """
        try:
            if not self._connection.poll(timeout):
                return None
            payload = self._connection.recv_bytes(_MOST_BYTES)
        except (EOFError, OSError) as error:
            raise UnreachableError("the process at the other end of the channel is gone") from error
        try:
            (kind, *values), _ = read_value(payload, 0)
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes on the channel are no message: {error}") from error
        if not isinstance(kind, str):
            raise MalformedError(f"a message on the channel is of the kind {kind!r}")
        return kind, values

    def close(self) -> None:
        """End it; does nothing the second time."""
        self._connection.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """Return one end, and the socket of the other, for a process to inherit."""
    ours, theirs = socket.socketpair()
    return Channel(ours.detach()), theirs
