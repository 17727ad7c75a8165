"""A socket that carries tuples of Python objects."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any


class Wire:
    """Written by any thread, read by one. Pickle trusts whoever connects: do not copy that from a toy."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")
        self._lock = threading.Lock()
        self.due = threading.Event()
        """Set when there may be something to write."""
        self.closed = False

    def write(self, *message: Any) -> None:
        """Send a message; OSError when the connection is broken."""
        data = pickle.dumps(message)
        with self._lock:
            self._socket.sendall(data)

    def __iter__(self) -> Iterator[Any]:
        """Yield what comes, until the connection ends or breaks."""
        with contextlib.suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            while True:
                yield pickle.load(self._file)  # noqa: S301 - a toy

    def end(self) -> None:
        """Write nothing more; the other side reads what is on the way, and then the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wake whoever reads or waits to write, and end."""
        self.closed = True
        self.due.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
