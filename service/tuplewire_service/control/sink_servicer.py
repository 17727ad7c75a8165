"""The service Sinks, for the writes of Spark's sinks: checks requests and calls the worker's sinks.

Used by process/data_plane.py. Owns no state. Call only from the event loop. Design: docs/design/sinks.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tuplewire.errors import MalformedError
from tuplewire.values.group import check_sizes
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire import control_pb2_grpc
from tuplewire.wire.codec import groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import contents_from_wire, contents_to_wire
from tuplewire_service.control.control_messages import assigned_worker_to_wire, distinct
from tuplewire_service.messaging.grpc.grpc_transport import Admit, Context
from tuplewire_service.messaging.server_stream import check_id, check_receiver
from tuplewire_service.worker.staging import AttemptName, Sink
from tuplewire_service.worker.worker import Worker

_Request = pb.StageRequest | pb.DiscardRequest | pb.ProgressRequest
_Choosing = pb.BeginRequest | pb.CheckRequest | pb.PublishRequest


# ruff: noqa: N802 - methods have the wire's names
@dataclass(eq=False)
class SinkServicer(control_pb2_grpc.SinksServicer):
    """Serves tuplewire.v1.Sinks; publish rights are checked earlier. Call only from the event loop."""

    worker: Worker
    admit: Admit

    def _sink(self, request: _Request | _Choosing, context: Context) -> Sink:
        """Return the sink of a request for this worker; each owner has its own sinks."""
        access = self.admit(context)
        settings = self.worker.settings
        check_id("sink", request.sink)
        check_receiver(settings.worker_id, settings.topology, "sink", request)
        return access.owner, request.sink

    def _named(self, request: _Choosing, context: Context) -> tuple[Sink, list[AttemptName]]:
        names = [
            AttemptName(each.partition, each.attempt, each.messages, each.pieces) for each in request.attempts
        ]
        sink, names = self._sink(request, context), distinct(names, "attempts")
        self.worker.check_sinks(goes_on=True)
        return sink, names

    async def Stage(self, request: pb.StageRequest, context: Context) -> pb.StageResponse:
        """Store a piece of an attempt."""
        sink = self._sink(request, context)
        check_id("attempt", request.attempt)
        try:
            groups = groups_of(OpaqueFrame.FromString(request.frame))
        except DecodeError as error:
            raise MalformedError(f"{len(request.frame)} bytes are not a Frame: {error}") from error
        if not groups:
            raise MalformedError("a piece of an attempt has at least one message")
        if any(group.forwarded or group.entry_sequence for group in groups):
            raise MalformedError("only a worker forwards messages")
        for _, denied in self.admit(context).refused(groups):
            raise denied
        check_sizes(groups, self.worker.settings.session.max_message_bytes)
        name = AttemptName(request.partition, request.attempt, 0, 0)
        # An epoch that has started here may continue while the worker drains.
        sinks = self.worker.sinks
        self.worker.check_sinks(goes_on=sinks.staging.has(sink, request.epoch))
        waits_for = await sinks.stage(sink, request.epoch, name, request.piece, groups)
        return pb.StageResponse(accepted=not waits_for, waits_for=waits_for)

    async def Discard(self, request: pb.DiscardRequest, context: Context) -> pb.DiscardResponse:
        """Discard staged messages."""
        self.worker.sinks.staging.discard(self._sink(request, context), request.epoch, request.attempt)
        return pb.DiscardResponse()

    async def Begin(self, request: pb.BeginRequest, context: Context) -> pb.BeginResponse:
        """Register a run of a sink's query."""
        sink, names = self._named(request, context)
        check_id("run", request.run)
        tasks, former = self.worker.sinks.begin(sink, request.epoch, request.run, names)
        return pb.BeginResponse(
            published_tasks=tasks,
            published_contents=contents_to_wire(tasks),
            previous_workers=map(assigned_worker_to_wire, former),
        )

    async def Check(self, request: pb.CheckRequest, context: Context) -> pb.CheckResponse:
        """Return the tasks of attempts that could be published."""
        sink, names = self._named(request, context)
        published = contents_from_wire(request.published_tasks, request.published_contents)
        tasks = self.worker.sinks.check(sink, request.epoch, names, published)
        return pb.CheckResponse(tasks=tasks)

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        """Choose attempts of an epoch."""
        sink, names = self._named(request, context)
        if request.run:
            check_id("run", request.run)
        published = contents_from_wire(request.published_tasks, request.published_contents)
        sinks = self.worker.sinks
        chosen, waiting = await sinks.publish(sink, request.epoch, names, request.run, published)
        return pb.PublishResponse(chosen=chosen, waiting=waiting)

    async def Progress(self, request: pb.ProgressRequest, context: Context) -> pb.ProgressResponse:
        """Return the number of waiting messages of an epoch."""
        sink = self._sink(request, context)
        self.worker.check_sinks(goes_on=True)
        waiting, tasks = await self.worker.sinks.progress(sink, request.epoch)
        return pb.ProgressResponse(waiting=waiting, waiting_tasks=tasks)
