"""The control service of a worker, and the gRPC handler of all services except Messaging.

Used by process/worker_runtime.py. Owns no messages; it calls the worker. Call only from the event loop.
Design: docs/design/status.md, docs/design/identity.md (tokens and permissions), docs/design/traces.md (taps).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import grpc

from tuplewire.connection.stream import StreamBroken
from tuplewire.errors import ConfigError, DrainingError, MalformedError, MessageError, RefusedError
from tuplewire.session.ledger import DropReason
from tuplewire.text.events import event_logger
from tuplewire.values.group import check_task
from tuplewire.values.task_ids import format_tasks
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire import control_pb2_grpc
from tuplewire_service.config.stop import Stop, StopRequest
from tuplewire_service.control.control_messages import (
    MAX_CLIENTS,
    add_clients,
    assignment_from_wire,
    assignment_to_wire,
    unique,
)
from tuplewire_service.control.debugging import DebugBundles
from tuplewire_service.control.program_reports import ProgramReports, check_report
from tuplewire_service.messaging.grpc.grpc_transport import AdmitFunction, Call, GrpcServerStream
from tuplewire_service.messaging.server_stream import (
    PendingHandshakes,
    ServerStream,
    check_receiver,
    log_refusal,
    parse,
)
from tuplewire_service.worker.taps import MAX_COPY_BYTES, MAX_MESSAGES_PER_SECOND
from tuplewire_service.worker.worker import Worker

logger = event_logger(__name__)

CallCheck = Callable[[Call, str], None]
"""Raises RefusedError if the caller may not call /SERVICE/METHOD."""
_TASKS_PER_TURN = 500
"""Number of tasks to look up before messages are processed again."""
_CHUNK_BYTES = 1 << 20
"""Limit of one piece: gRPC accepts responses of 4 MiB."""
_TAP_BATCH_SECONDS = 0.05
"""Tapped messages within this time are sent in one response, which limits the wakeups of the client."""


# ruff: noqa: N802 - methods have the wire's names
@dataclass(eq=False)
class ControlServicer(control_pb2_grpc.ControlServicer):
    """Serves tuplewire.v1.Control for one worker; see control.proto. Call only from the event loop.

    Attributes:
        admit: Returns the rights of a caller. The right to call the method is checked before.
        status: Returns the status with the requested tasks, without senders and consumers.
        call_program: Calls the program in the process; it may block.
        reserved_names: The names of the worker's own metrics, which programs must not use.
    """

    worker: Worker
    stop: Stop
    admit: AdmitFunction
    status: Callable[[pb.GetStatusRequest], Awaitable[pb.GetStatusResponse]]
    debugging: DebugBundles
    reports: ProgramReports
    call_program: Callable[[bytes], bytes]
    reserved_names: frozenset[str] = frozenset()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Call) -> pb.GetStatusResponse:
        access = self.admit(context)
        if request.membership_poll_seconds:
            access.check_control("UpdateAssignment")
            self.worker.on_membership_poll(request.membership_poll_seconds)
        status = await self.status(request)
        max_clients, may_list = min(request.max_clients, MAX_CLIENTS), access.may_list
        shown_identities = set(islice(filter(may_list, status.identities), max_clients))
        for identity in set(status.identities) - shown_identities:
            del status.identities[identity]
        if max_clients:
            consumers = self.worker.router.queues.consumer_statuses()
            add_clients(status, self.worker.servers.session_statuses(), consumers, max_clients, may_list)
        return status

    async def GetLoad(self, request: pb.GetLoadRequest, _context: Call) -> pb.GetLoadResponse:
        tasks = unique(request.tasks, "tasks") or list(self.worker.router.table.owner_by_task)
        loads: dict[int, float] = {}
        for start in range(0, len(tasks), _TASKS_PER_TURN):
            loads.update(self.worker.loads(tasks[start : start + _TASKS_PER_TURN]))
            await asyncio.sleep(0)
        return pb.GetLoadResponse(loads=loads)

    async def GetAssignment(
        self, _request: pb.GetAssignmentRequest, _context: Call
    ) -> pb.GetAssignmentResponse:
        found = self.worker.assignment
        return pb.GetAssignmentResponse(
            assignment=None if found is None else assignment_to_wire(found),
            max_message_bytes=self.worker.settings.session.max_message_bytes,
            worker_id=self.worker.settings.worker_id,
        )

    async def UpdateAssignment(
        self, request: pb.UpdateAssignmentRequest, _context: Call
    ) -> pb.UpdateAssignmentResponse:
        try:
            # In a thread: 100,000 tasks would block messages.
            assignment = await asyncio.to_thread(assignment_from_wire, request.assignment)
            changed = self.worker.update_assignment(assignment, force=request.force)
        except ConfigError as error:
            raise MalformedError(str(error)) from error
        return pb.UpdateAssignmentResponse(version=assignment.version, changed=changed)

    async def Tap(self, request: pb.TapRequest, context: Call) -> AsyncGenerator[pb.TapResponse]:
        """See control.proto. Also ends if the right is withdrawn, and with NotReadyError after a defect."""
        if not 0 <= request.sample <= 1:  # also False for NaN
            raise MalformedError(f"a tap's sample is a share, 0 to 1, not {request.sample}")
        wanted = pb.TapRequest(
            tasks=map(check_task, unique(request.tasks, "tasks")),
            sample=request.sample or 1.0,
            max_per_second=min(request.max_per_second or 100, MAX_MESSAGES_PER_SECOND),
            max_bytes=min(request.max_bytes or 4096, MAX_COPY_BYTES),
        )
        access = self.admit(context)
        access.check_tap(self.worker.settings.topology, wanted.tasks)
        woken = asyncio.Event()
        taps = self.worker.router.taps
        tap = taps.open_tap(wanted, woken.set)
        by = {"client": context.peer(), "identity": access.owner, "tasks": format_tasks(wanted.tasks) or "*"}
        logger.info("tap.started", extra={**by, "sample": wanted.sample, "per_second": wanted.max_per_second})
        began = time.monotonic()
        try:
            with access.track_stream(tap.end):
                while True:
                    woken.clear()
                    yield tap.take()
                    await woken.wait()
                    if tap.error is not None:
                        raise tap.error
                    await asyncio.sleep(_TAP_BATCH_SECONDS)
        finally:
            taps.close_tap(tap)
            counts = {name: getattr(tap, f"{name}_messages") for name in ("shown", "omitted", "passed")}
            logger.info("tap.ended", extra={**by, **counts, "seconds": round(time.monotonic() - began, 1)})

    def end_taps(self) -> None:
        """End every tap, because the worker drains."""
        for tap in self.worker.router.taps.open_taps:
            tap.end(DrainingError("the worker is draining, and has closed the tap"))

    async def GetDebug(
        self, _request: pb.GetDebugRequest, context: Call
    ) -> AsyncGenerator[pb.GetDebugResponse]:
        logger.info(
            "debug.requested", extra={"client": context.peer(), "identity": self.admit(context).owner}
        )
        async with contextlib.aclosing(self.debugging.files(self.worker)) as files:
            async for name, text in files:
                content = text.encode(errors="backslashreplace")
                for start in range(0, len(content) or 1, _CHUNK_BYTES):
                    yield pb.GetDebugResponse(name=name, content=content[start : start + _CHUNK_BYTES])

    async def SetLogging(self, request: pb.SetLoggingRequest, context: Call) -> pb.SetLoggingResponse:
        by = {"client": context.peer(), "identity": self.admit(context).owner}
        self.debugging.log.change(request.level, request.interval_seconds, request.duration_seconds, by)
        return pb.SetLoggingResponse()

    async def ReportProgram(
        self, request: pb.ReportProgramRequest, context: Call
    ) -> pb.ReportProgramResponse:
        settings = self.worker.settings
        check_receiver(settings.worker_id, settings.topology, "program", request)
        # In a thread: 10,000 samples would block messages.
        await asyncio.to_thread(check_report, request, self.reserved_names)
        assignment = self.worker.assignment
        version = 0 if assignment is None else assignment.version
        self.reports.store(self.admit(context).owner, request, version)
        return pb.ReportProgramResponse()

    async def CallProgram(self, request: pb.CallProgramRequest, _context: Call) -> pb.CallProgramResponse:
        # In a thread: the program may take a minute to open its tasks.
        response = await asyncio.to_thread(self.call_program, request.request)
        return pb.CallProgramResponse(response=response)

    async def Drain(self, request: pb.DrainRequest, context: Call) -> pb.DrainResponse:
        """Request a drain and the process exit; with `wait`, respond before the drain closes this server."""
        deadline = request.drain_millis / 1000 if request.drain_millis else None
        stop_request = StopRequest("drain_call", drain_seconds=deadline)
        response = pb.DrainResponse(started=not self.stop.is_requested)
        if request.wait:
            self.stop.request(stop_request)
            await self.worker.delivery_finished.wait()
            response.dropped_messages = self.worker.router.ledger().dropped[DropReason.SHUTDOWN]
        else:  # after the response
            context.add_done_callback(lambda _: self.stop.request(stop_request))  # type: ignore[arg-type]  # stub
        return response


class ServiceHandlers(grpc.GenericRpcHandler):
    """The methods that the generated add_..._to_server functions add to a server.

    Each is served as a stream, with the same behavior for clients. For a method with one request, gRPC would
    call the handler only after the request arrived, and wait for it without a limit.

    Guarantee: no method is called that `check` refuses, and its caller gets the refusal before a request is
    read. An invalid request is refused as MALFORMED; by default, gRPC answers UNKNOWN and logs a traceback. A
    RefusedError or MessageError of a method is sent to its caller as well.
    """

    def __init__(self, check: CallCheck) -> None:
        self._methods: dict[str, Any] = {}
        self._check = check
        self.pending_handshakes = PendingHandshakes()

    def add_generic_rpc_handlers(self, _handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """Do nothing: the generated functions also add the same methods by name."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Add the methods of a service."""
        self._methods.update((f"/{service}/{name}", method) for name, method in handlers.items())

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        if (method := self._methods.get(path)) is None:
            return None

        async def answer(_: object, context: Call) -> None:
            stream: ServerStream = GrpcServerStream(context, None)
            with contextlib.suppress(StreamBroken):  # the peer has disconnected, so no status can be sent
                request = await self._read(path, method, context, stream)
                try:
                    if method.response_streaming:
                        async with contextlib.aclosing(method.unary_stream(request, context)) as responses:
                            async for response in responses:
                                if not isinstance(response, bytes):
                                    response = method.response_serializer(response)  # noqa: PLW2901
                                await stream.write(response)
                    else:
                        response = await method.unary_unary(request, context)
                        await stream.write(method.response_serializer(response))
                except (RefusedError, MessageError) as error:
                    await stream.refuse(error)

        return grpc.stream_stream_rpc_method_handler(answer)

    async def _read(self, path: str, method: Any, context: Call, stream: ServerStream) -> Any:
        try:
            self._check(context, path)
            data = await self.pending_handshakes.read_first(stream.read, "request")
            if data is None:
                raise MalformedError("the call has no request")
            return parse(method.request_deserializer, data, "request of this method")
        except (RefusedError, MessageError) as error:
            log_refusal(stream.peer, error)
            await stream.refuse(error)
