"""The connecting side: a thread that connects and writes, and one for each connection that reads."""

from __future__ import annotations

import contextlib
import socket
import threading

from toy_transport.wire import Wire
from tuplewire.config import SessionSettings
from tuplewire_service.messaging.base import ConnectionStatus
from tuplewire_service.messaging.threaded import ThreadedClient

_RETRY_SECONDS = 0.05


class ToyClient(ThreadedClient):
    """Connects by itself, again and again."""

    def __init__(
        self, topology: str, address: tuple[str, int], worker_id: str, settings: SessionSettings
    ) -> None:
        super().__init__(address[1], worker_id, settings)
        self._topology = topology
        self._address = address
        self._wire: Wire | None = None
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self.status is not ConnectionStatus.CLOSED:
            with contextlib.suppress(OSError):
                self._wire = wire = Wire(socket.create_connection(self._address))
                reader = threading.Thread(target=self._read, args=[wire])
                reader.start()
                with contextlib.suppress(OSError):
                    wire.write("hello", self._topology, self.sending)
                    self._write(wire)
                wire.close()
                reader.join()
            self.tell()
            self._due.wait(_RETRY_SECONDS)
        self.tell()

    def _write(self, wire: Wire) -> None:
        while self._wire is wire and self.status is not ConnectionStatus.CLOSED:
            self._due.clear()
            self.tell()
            if follow := self.next_watched():
                wire.write("watch_releases", follow)
            while (frame := self.next_frame()) is not None:
                wire.write("frame", frame.sequence, frame.groups(), self.assignment_version(), frame.closed)
            self._due.wait()
        if self._wire is wire:
            wire.write("goodbye")

    def _read(self, wire: Wire) -> None:
        for kind, *content in wire:
            if kind == "welcome":
                self.opened(*content)
            elif kind == "ack":
                self.update(*content)
            elif kind == "load":
                self.take_load(*content)
            elif kind == "backpressure":
                self.take_status(*content)
            self._due.set()
        self._wire = None
        self.lost()
        self._due.set()

    def _wake(self) -> None:
        self._due.set()

    def _stop(self) -> None:
        self._due.set()
        self._thread.join()
