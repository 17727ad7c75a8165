"""The control service: thin, from the wire to the worker and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tuplewire.errors import ConfigError, MalformedError, MessageError, RefusedError, WrongTopologyError
from tuplewire.group import check_sizes
from tuplewire.wire import control_pb2
from tuplewire.wire.codec import groups_of
from tuplewire.wire.control_pb2_grpc import ControlServicer as Servicer
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire_service.control.status_messages import assignment_from_wire, assignment_to_wire, status_to_wire
from tuplewire_service.messaging.grpc.grpc_stream import refuse
from tuplewire_service.messaging.streamed.streamed_stream import IAccess, check_id
from tuplewire_service.process.stop import Stop, StopRequest
from tuplewire_service.worker.worker import Worker

Context = grpc.aio.ServicerContext[Any, Any]


class ControlServicer(Servicer):
    """Serves tuplewire.v1.Control for one worker; all methods run on its event loop."""

    def __init__(self, worker: Worker, stop: Stop, admit: Callable[[Context], IAccess]) -> None:
        """Serve it. admit: what the caller of Publish may send; who may call what is checked before."""
        self._worker = worker
        self._admit = admit
        self._stop = stop

    async def GetStatus(  # noqa: N802 - the wire's name
        self, _request: control_pb2.GetStatusRequest, _context: Context
    ) -> control_pb2.GetStatusResponse:
        """Return a snapshot."""
        return status_to_wire(self._worker.snapshot())

    async def GetLoad(  # noqa: N802 - the wire's name
        self, request: control_pb2.GetLoadRequest, _context: Context
    ) -> control_pb2.GetLoadResponse:
        """Return the load of the named tasks."""
        return control_pb2.GetLoadResponse(loads=self._worker.loads(request.tasks))

    async def GetAssignment(  # noqa: N802 - the wire's name
        self, _request: control_pb2.GetAssignmentRequest, _context: Context
    ) -> control_pb2.GetAssignmentResponse:
        """Return the assignment in force, if any."""
        assignment = self._worker.assignment
        return control_pb2.GetAssignmentResponse(
            assignment=None if assignment is None else assignment_to_wire(assignment)
        )

    async def UpdateAssignment(  # noqa: N802 - the wire's name
        self, request: control_pb2.UpdateAssignmentRequest, context: Context
    ) -> control_pb2.UpdateAssignmentResponse:
        """Put a newer assignment in force."""
        topology = self._worker.snapshot().topology
        try:
            assignment = assignment_from_wire(request.assignment)
            if assignment.topology != topology:
                raise WrongTopologyError(
                    f"the assignment is for topology {assignment.topology!r}, this worker serves {topology!r}"
                )
            changed = self._worker.update_assignment(assignment, force=request.force)
        except (RefusedError, MessageError) as error:
            await refuse(context, error)
        except ConfigError as error:
            await refuse(context, MalformedError(str(error)))
        return control_pb2.UpdateAssignmentResponse(version=assignment.version, changed=changed)

    async def Publish(  # noqa: N802 - the wire's name
        self, request: control_pb2.PublishRequest, context: Context
    ) -> control_pb2.PublishResponse:
        """Take a piece of an epoch."""
        try:
            published = self._publish(request, self._admit(context))
        except (RefusedError, MessageError) as error:
            await refuse(context, error)
        return control_pb2.PublishResponse(published=published)

    def _publish(self, request: control_pb2.PublishRequest, access: IAccess) -> int:
        settings = self._worker.settings
        check_id("sink", request.sink)
        if request.topology != settings.topology:
            raise WrongTopologyError(
                f"this worker serves topology {settings.topology!r}, the sink writes to {request.topology!r}"
            )
        try:
            groups = groups_of(OpaqueFrame.FromString(request.frame))
        except DecodeError as error:
            raise MalformedError(f"{len(request.frame)} bytes are not a Frame: {error}") from error
        if not groups:
            raise MalformedError("a piece of an epoch has at least one message")
        if any(group.forwarded or group.entry_sequence for group in groups):
            raise MalformedError("only a worker passes messages on")
        for _, denied in access.refused(groups):
            raise denied
        check_sizes(groups, settings.session.max_message_bytes)
        return self._worker.publish(request.sink, request.epoch, request.piece, groups, last=request.last)

    async def Drain(  # noqa: N802 - the wire's name
        self, request: control_pb2.DrainRequest, context: Context
    ) -> control_pb2.DrainResponse:
        """Ask the process to drain and exit, once the answer is out: the drain closes this server."""
        deadline = request.deadline_millis / 1000 if request.deadline_millis else None
        stop = StopRequest("drain-call", deadline_seconds=deadline)
        context.add_done_callback(lambda _: self._stop.request(stop))  # type: ignore[arg-type]  # stub
        return control_pb2.DrainResponse(started=not self._stop.requested)
