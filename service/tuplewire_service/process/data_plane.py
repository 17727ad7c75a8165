"""The worker on its event loop, for the threads around it: bind, look, drain, close."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tuplewire.addresses import bracketed, split_host_port
from tuplewire.connection.loop import messaging_loop
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire.control_pb2_grpc import add_ControlServicer_to_server
from tuplewire.wire.health_pb2_grpc import add_HealthServicer_to_server
from tuplewire_service.control.control_servicer import ControlServicer
from tuplewire_service.control.health_servicer import HealthServicer
from tuplewire_service.control.services import Services
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import DEFAULT_TRANSPORT, TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.grpc.grpc_transport import GrpcContext, GrpcSettings
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.process.sockets import file_mode
from tuplewire_service.process.stop import EXIT_DEFECT, Stop, StopRequest
from tuplewire_service.process.worker_config import WorkerConfig
from tuplewire_service.process.worker_security import Security
from tuplewire_service.worker.assignment import AssignmentFile
from tuplewire_service.worker.status import WorkerSnapshot
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import of_transport

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_PEERS_CONF = {"zmq.linger.millis": 1000}
"""Storm's five seconds are longer than a worker may take to close once it is drained."""
_WATCHERS_SECONDS = 1.0
ANSWER_SECONDS = 2.0
"""An event loop that does not answer in this time counts as stuck."""


class DataPlane:
    """One worker, its services and the watch on its assignment file; methods may be called from any thread.

    A defect on the loop (an exception that nobody handled) is logged, and ends the process with code 70.
    """

    def __init__(self, config: WorkerConfig, stop: Stop) -> None:
        self._config = config
        self._stop = stop
        self.loop = messaging_loop()
        self.loop.loop.set_exception_handler(self._on_defect)
        self.security = Security(config)
        self._services = Services(self.security.check_call)
        settings = config.worker_settings()
        incarnation = time.time_ns()
        programs = GrpcContext(
            GrpcSettings(
                **of_transport(settings, incarnation),
                host=_host_of(config),
                listen=[f"unix://{config.listen_unix}"] if config.listen_unix else (),
            ),
            self.security.wiring(self._services.handlers),
        )
        self._contexts: list[IContext] = [programs]
        peers = None
        self._peers_port = 0
        if config.transport != DEFAULT_TRANSPORT:
            host, self._peers_port = split_host_port(config.listen_peers or f"{_host_of(config)}:0")
            common = TransportSettings(**of_transport(settings, incarnation), host=bracketed(host))
            peers = TransportFactory.make_context(
                {TRANSPORT_KEY: config.transport, **common.conf(), **_PEERS_CONF}
            )
            self._contexts.append(peers)
        advertise = config.advertise or ""
        self.worker = self.loop.call(lambda: Worker(settings, programs, incarnation, peers, advertise))
        self.loop.on_wait(self.worker.times.waited)
        self._health: HealthServicer | None = None
        self._source: AssignmentFile | None = None
        self._watches: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> list[str]:
        """The bound addresses: host:port, then unix:///path."""
        return self.worker.servers.addresses

    @property
    def peer_addresses(self) -> list[str]:
        """The bound addresses for other workers, where they have their own."""
        return self.worker.servers.peer_addresses

    @property
    def assignment_errors(self) -> int:
        """How often the assignment file could not be used."""
        return self._source.errors if self._source else 0

    def bind(self) -> None:
        """Listen on TCP and on the Unix socket; BindError when an address is in use."""
        with file_mode(self._config.socket_mode):
            self.loop.run(self._bind())

    async def _bind(self) -> None:
        config, worker = self._config, self.worker
        self._health = HealthServicer(worker)
        add_HealthServicer_to_server(self._health, self._services)  # type: ignore[no-untyped-call]
        control = ControlServicer(worker, self._stop, self.security.admit)
        add_ControlServicer_to_server(control, self._services)  # type: ignore[no-untyped-call]
        await worker.start(split_host_port(config.listen)[1], self._peers_port)
        if config.assignment_file:
            self._source = AssignmentFile(Path(config.assignment_file), self.worker.update_assignment)
            self._begin_watch("assignment file", self._source.watch())
        self._begin_watch("security files", self.security.watch())

    def _begin_watch(self, name: str, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watch, name=name)
        self._watches.append(task)
        task.add_done_callback(self._watch_ended)

    def snapshot(self) -> WorkerSnapshot:
        """Return a snapshot; TimeoutError when the loop does not turn."""
        return self._ask(self.worker.snapshot)

    def live(self) -> str:
        """Return an empty string when the loop turns, else what is wrong."""
        try:
            self._ask(lambda: None)
        except TimeoutError:
            return f"the event loop did not answer within {ANSWER_SECONDS:g} s"
        return ""

    def ready(self) -> str:
        """Return an empty string when the worker is ready, else what it waits for."""
        try:
            return self._ask(lambda: self.worker.not_ready_because)
        except TimeoutError:
            return f"the event loop did not answer within {ANSWER_SECONDS:g} s"

    def why_not_ended(self) -> str:
        """Return what an end that takes too long waits for, if the loop turns."""
        try:
            waits_for = self._ask(lambda: self.worker.waits_for)
        except TimeoutError:
            return f"the event loop is stuck: it did not answer within {ANSWER_SECONDS:g} s"
        return f"the event loop turns, and the end waits for {waits_for}"

    def drain(self, deadline_seconds: float) -> LedgerSnapshot:
        """Pass on what is held, for at most so long; return the balance."""
        return self.loop.run(self._drain(deadline_seconds))

    async def _drain(self, deadline_seconds: float) -> LedgerSnapshot:
        for watch in self._watches:
            watch.cancel()
        deadline = time.monotonic() + deadline_seconds
        if self._health:
            await self._health.end(min(_WATCHERS_SECONDS, deadline_seconds))
        return await self.worker.drain(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close every connection and every server."""
        self.loop.on_wait(None)
        for context in self._contexts:
            context.term()

    def _ask(self, question: Callable[[], _Result]) -> _Result:
        async def answer() -> _Result:
            return question()

        return self.loop.run(answer(), ANSWER_SECONDS)

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()):
            self._on_defect(self.loop.loop, {"message": watch.get_name(), "exception": error})

    def _on_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("worker.defect", extra={"where": context.get("message", "")}, exc_info=error)
        self._stop.request(StopRequest("defect", EXIT_DEFECT))


def _host_of(config: WorkerConfig) -> str:
    return bracketed(split_host_port(config.listen)[0])
