"""The thread-safe interface to a worker on the event loop: bind, status, drain and close.

Used by main.py. Owns the worker, its transports and services, and the watches of its files. Thread-safe.
Design: docs/design/drain.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tuplewire.connection.loop import messaging_thread, report_errors
from tuplewire.errors import MalformedError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import add_brackets, split_host_port
from tuplewire.text.events import event_logger
from tuplewire.values.task_ids import format_tasks
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.control_pb2_grpc import (
    add_ControlServicer_to_server,
    add_SinkServicer_to_server,
    add_SourceServicer_to_server,
)
from tuplewire.wire.health_pb2_grpc import add_HealthServicer_to_server
from tuplewire_service.config.stop import EXIT_DEFECT, Stop, StopRequest
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.control_messages import unique
from tuplewire_service.control.debugging import DebugBundles
from tuplewire_service.control.health_servicer import HealthServicer
from tuplewire_service.control.memory import resident_bytes
from tuplewire_service.control.program_reports import ProgramReports
from tuplewire_service.control.servicers import ControlServicer, ServiceHandlers
from tuplewire_service.control.spark_servicers import SinkServicer, SourceServicer
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import DEFAULT_TRANSPORT, TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.grpc.grpc_transport import GrpcContext, GrpcSettings
from tuplewire_service.messaging.local import OwnProgramContext
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.process.program import Program
from tuplewire_service.process.state_file import StateFile
from tuplewire_service.process.worker_security import Security
from tuplewire_service.worker.assignment import AssignmentFile
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import transport_settings

logger = event_logger(__name__)

_PEERS_CONF = {"zmq.linger.millis": 1000}  # Storm's 5 s exceed the time that a drained worker has to close
_HEALTH_WATCHERS_SECONDS = 1.0
_MAX_BLOCKING_TASKS = 10
LOOP_TIMEOUT_SECONDS = 2.0  # an event loop that does not respond in this time counts as stuck


class WorkerRuntime:
    """One worker, its services, and the watches of its files. Thread-safe, except the coroutines.

    A defect on the loop, which is an unhandled exception, is logged and stops the process with exit code 70.
    """

    def __init__(self, config: WorkerConfig, stop: Stop, debugging: DebugBundles) -> None:
        self._config = config
        self._get_drain_seconds: Callable[[], float] = lambda: config.drain_seconds
        self._stop = stop
        self.loop = messaging_thread()
        self.loop.loop.set_exception_handler(self._on_defect)
        self.security = Security(config)
        self._services = ServiceHandlers(self.security.check_call)
        incarnation = time.time_ns()  # distinguishes the processes of one worker
        common = transport_settings(config, incarnation)
        host = add_brackets(split_host_port(config.listen)[0])
        listen = [f"unix://{config.listen_unix}"] if config.listen_unix else []
        # Programs use gRPC with every transport between the workers.
        options = self.security.grpc_options([self._services], config.socket_mode)
        programs = GrpcContext(GrpcSettings(**common, host=host, listen=listen), options)
        peers = None  # by default, workers use the transport of programs
        self._peers_port = 0
        if config.transport != DEFAULT_TRANSPORT:
            peers_host, self._peers_port = split_host_port(config.listen_peers or f"{host}:0")
            settings = TransportSettings(**common, host=add_brackets(peers_host))
            conf = {TRANSPORT_KEY: config.transport, **settings.conf(), **_PEERS_CONF}
            peers = TransportFactory.make_context(conf)
        own = OwnProgramContext(TransportSettings(**common)) if config.program else None
        self._contexts: list[IContext] = [each for each in (programs, peers, own) if each is not None]
        advertise = config.advertise or ""
        self.worker = self.loop.call(lambda: Worker(config, programs, incarnation, peers, advertise, own))
        self.loop.set_wait_listener(self.worker.timekeeper.record_wait)
        self._health = HealthServicer(self.worker)
        add_HealthServicer_to_server(self._health, self._services)  # type: ignore[no-untyped-call]
        self.program: Program | None = None
        self._reports = ProgramReports()
        admit = self.security.admit
        self.control = ControlServicer(
            self.worker, stop, admit, self._status, debugging, self._reports, self._call_program
        )
        add_ControlServicer_to_server(self.control, self._services)  # type: ignore[no-untyped-call]
        add_SinkServicer_to_server(SinkServicer(self.worker, admit), self._services)  # type: ignore[no-untyped-call]
        add_SourceServicer_to_server(SourceServicer(self.worker, admit), self._services)  # type: ignore[no-untyped-call]
        file = config.assignment_file
        self._assignment_source = AssignmentFile(Path(file), self.worker.update_assignment) if file else None
        if source := self._assignment_source:
            self.worker.get_assignment_problem = lambda: source.problem
        self._watch_tasks: list[asyncio.Task[None]] = []
        state = config.state_file
        self._state = StateFile(Path(state), config.worker_id, incarnation) if state else None
        if self._state is not None:
            self.worker.predecessor_possibly_lost = self._state.predecessor_possibly_lost

    async def bind(self) -> None:
        """Listen on TCP and on the Unix socket. Raise BindError if an address is in use."""
        await self.worker.start(split_host_port(self._config.listen)[1], self._peers_port)
        watches = [("security files", self.security.watch())]
        if self._assignment_source is not None:
            watches.append(("assignment file", self._assignment_source.watch()))
        if self._state is not None:
            router, rows = self.worker.router, self.worker.sinks.publications
            keep = self._state.update_periodically(lambda: router.unretained_messages + rows.waiting_messages)
            watches.append(("state file", keep))
        self._watch_tasks = [report_errors(asyncio.create_task(watch, name=name)) for name, watch in watches]

    def status(self) -> pb.GetStatusResponse:
        """Return the status for the metrics. Raise TimeoutError if the event loop does not respond."""
        return self.loop.call(self.worker.status, LOOP_TIMEOUT_SECONDS)

    async def _status(self, request: pb.GetStatusRequest) -> pb.GetStatusResponse:
        """Return the status for GetStatus, without senders and consumers. Call only from the event loop."""
        tasks: Sequence[int] | None = unique(request.tasks, "tasks") or None
        if tasks is None and request.HasField("max_tasks"):
            tasks = await self.worker.most_relevant_tasks(request.max_tasks)
        status = self.worker.status(tasks)
        del status.blocking[_MAX_BLOCKING_TASKS:]  # only the metrics need all of them
        status.resident_bytes = resident_bytes()
        status.drain_seconds = self._get_drain_seconds()
        status.spouts_inactive = (assignment := self.worker.assignment) is not None and not assignment.active
        if self.program is not None:
            self.program.add_to(status)
        self._reports.add_to(status)
        return status

    def _call_program(self, request: bytes) -> bytes:
        if self.program is None:
            raise MalformedError("this worker runs no program; call another one, or start it with --program")
        return self.program.call(request)

    def reported_metrics(self) -> list[pb.MetricFamily]:
        """Return the metrics reported by programs. Raise TimeoutError if the event loop does not respond."""
        return self.loop.call(self._reports.metrics, LOOP_TIMEOUT_SECONDS)

    def live_problem(self) -> str:
        """Return an empty string if the event loop responds, else the problem."""
        return self._probe(lambda: "")

    def ready_problem(self) -> str:
        """Return an empty string if the worker is ready, else the reason why it is not."""
        return self._probe(lambda: self.worker.not_ready_reason)

    def _probe(self, get_problem: Callable[[], str]) -> str:
        try:
            return self.loop.call(get_problem, LOOP_TIMEOUT_SECONDS)
        except TimeoutError:
            return f"the event loop is stuck: it did not answer within {LOOP_TIMEOUT_SECONDS:g} s"

    def shutdown_step(self) -> str:
        """Return the reason for a slow shutdown: the step that it waits for, or a stuck event loop."""
        return self._probe(lambda: f"the event loop responds; the shutdown waits for {self.worker.waits_for}")

    async def drain(self, deadline_seconds: float) -> LedgerSnapshot:
        """End the taps and the streams of health watchers, then drain the worker; see Worker.drain()."""
        deadline = time.monotonic() + deadline_seconds
        self._get_drain_seconds = lambda: round(max(0.0, deadline - time.monotonic()), 1)
        if queued := self.worker.router.queues.queued_by_task():
            waiting = {"messages": sum(queued.values()), "tasks": format_tasks(queued)}
            logger.info("worker.drain_waits", extra=waiting)
        self.control.end_taps()
        await self._health.end(min(_HEALTH_WATCHERS_SECONDS, deadline_seconds))
        ledger = await self.worker.drain(max(0.0, deadline - time.monotonic()))
        # Only now: a draining worker applies new assignments, and closes the streams of removed tokens.
        for watch in self._watch_tasks:
            watch.cancel()
        if self._state is not None:
            await asyncio.to_thread(self._state.record_shutdown)  # it writes a file
        return ledger

    def close(self) -> None:
        """Close all connections and servers."""
        self.loop.set_wait_listener(None)
        for context in self._contexts:
            context.term()

    def _on_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("worker.failed", extra={"detail": context.get("message", "")}, exc_info=error)
        self._stop.request(StopRequest("internal_error", EXIT_DEFECT))
