"""The bound side: a thread that accepts, and one for each connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from toy_transport.wire import Wire
from tuplewire.errors import BindError, RefusedError
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.threaded import ReceivingSession, Sending, ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportSettings


class ToyServer(ThreadedServer):
    """Listens for the senders of one topology."""

    def __init__(
        self,
        topology: str,
        port: int,
        callback: IConnectionCallback | None,
        settings: TransportSettings,
    ) -> None:
        super().__init__(settings)
        self._topology = topology
        self._wires: set[Wire] = set()
        self._telling = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._someone_takes = threading.Event()
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise BindError(f"cannot listen on port {port}: {error}; choose another one") from error
        self._port: int = self._listener.getsockname()[1]
        if callback is not None:
            self.register_recv(callback)
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()

    def _opened(self) -> None:
        self._someone_takes.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                wire = Wire(self._listener.accept()[0])
                self._threads.append(threading.Thread(target=self._serve, args=[wire]))
                self._threads[-1].start()

    def _serve(self, wire: Wire) -> None:
        session: ReceivingSession | None = None
        taking = True
        with contextlib.suppress(RefusedError, OSError):
            for kind, *content in wire:
                if session is None:
                    session = self._hello(wire, *content)
                elif kind == "frame":
                    self._someone_takes.wait()
                    taking = taking and self.take(session, *content)
                    if not taking:
                        wire.end()  # the sender connects again, until it is let in
                elif kind == "watch_releases":
                    session.watch_releases(*content)
                elif kind == "goodbye":
                    self.goodbye(session)
        with self._telling:
            self._wires.discard(wire)
        wire.close()
        if session is not None:
            self.lost(session)

    def _hello(self, wire: Wire, topology: str, sending: Sending) -> ReceivingSession:
        if topology != self._topology:
            raise RefusedError(f"this is topology {self._topology}; connect to one of {topology}")
        session, opened = self.welcome(sending, wire.due.set)
        with self._telling:  # news is in the welcome, or comes after it
            wire.write("welcome", opened, self.loads)
            self._wires.add(wire)
        self._threads.append(threading.Thread(target=self._acknowledge, args=[wire, session]))
        self._threads[-1].start()
        wire.due.set()
        return session

    @staticmethod
    def _acknowledge(wire: Wire, session: ReceivingSession) -> None:
        """Write what there is to say, in a thread of its own: whoever wakes it must not wait for a reader."""
        with contextlib.suppress(OSError):  # the next welcome says what this one could not
            while wire.due.wait() and not wire.closed:
                wire.due.clear()
                while (update := session.update()) is not None:
                    wire.write("ack", update)

    @property
    def port(self) -> int:
        return self._port

    @property
    def addresses(self) -> Sequence[str]:
        return [f"toy://127.0.0.1:{self._port}"]

    def _tell(self, *message: object) -> None:
        with self._telling:
            for wire in self._wires:
                with contextlib.suppress(OSError):
                    wire.write(*message)

    def _tell_load(self, loads: dict[int, float]) -> None:
        self._tell("load", loads)

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        self._tell("backpressure", congested, relieved)

    def _end(self, timeout: float) -> None:
        self._someone_takes.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for wire in list(self._wires):
            wire.end()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for wire in list(self._wires):
            wire.close()
