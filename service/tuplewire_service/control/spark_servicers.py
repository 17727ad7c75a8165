"""The gRPC services Sink and Source of control.proto, with which Spark queries write and read.

They call the worker's sinks and read its queues. Used by process/worker_runtime.py. Owns no state.
Call only from the event loop. Design: docs/design/sinks.md and docs/design/readers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from tuplewire.errors import MalformedError, TaskNotLocalError
from tuplewire.values.group import check_sizes
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire import control_pb2_grpc
from tuplewire.wire.codec import groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import contents_from_wire, contents_to_wire
from tuplewire_service.control.control_messages import assigned_worker_to_wire, unique
from tuplewire_service.messaging.grpc.grpc_transport import AdmitFunction, Call
from tuplewire_service.messaging.recv_service import encode_deliveries
from tuplewire_service.messaging.server_stream import check_id, check_receiver, parse
from tuplewire_service.worker.departures import max_lost_messages
from tuplewire_service.worker.staging import AttemptName, Sink
from tuplewire_service.worker.worker import Worker

_SinkRequest = pb.StageRequest | pb.DiscardRequest | pb.GetProgressRequest
_AttemptsRequest = pb.BeginRequest | pb.CheckRequest | pb.PublishRequest
_SourceRequest = pb.PollRequest | pb.ReadRequest | pb.AcknowledgeRequest
_MAX_WAIT_SECONDS = 10.0


# ruff: noqa: N802 - methods have the wire's names
@dataclass(eq=False)
class SinkServicer(control_pb2_grpc.SinkServicer):
    """Serves tuplewire.v1.Sink; publish rights are checked earlier. Call only from the event loop."""

    worker: Worker
    admit: AdmitFunction

    def _sink(self, request: _SinkRequest | _AttemptsRequest, context: Call) -> Sink:
        """Return the sink of a request for this worker; each owner has its own sinks."""
        access = self.admit(context)
        settings = self.worker.settings
        check_id("sink", request.sink)
        check_receiver(settings.worker_id, settings.topology, "sink", request)
        return access.owner, request.sink

    def _checked_attempts(self, request: _AttemptsRequest, context: Call) -> tuple[Sink, list[AttemptName]]:
        names = [
            AttemptName(one.partition, one.attempt, one.messages, one.piece_count) for one in request.attempts
        ]
        sink, names = self._sink(request, context), unique(names, "attempts")
        self.worker.check_sinks(is_continuation=True)
        return sink, names

    async def Stage(self, request: pb.StageRequest, context: Call) -> pb.StageResponse:
        sink = self._sink(request, context)
        check_id("attempt", request.attempt)
        groups = groups_of(parse(OpaqueFrame.FromString, request.frame, "Frame"))
        if not groups:
            raise MalformedError("a piece of an attempt has at least one message")
        if any(group.path or group.entry_sequence for group in groups):
            raise MalformedError("only a worker may forward messages")
        for _, denied in self.admit(context).denied_groups(groups):
            raise denied
        check_sizes(groups, self.worker.settings.session.max_message_bytes)
        name = AttemptName(request.partition, request.attempt, 0, 0)
        # An epoch that has started here may continue while the worker drains.
        sinks = self.worker.sinks
        self.worker.check_sinks(is_continuation=sinks.staging.is_open(sink, request.epoch))
        waits_for = await sinks.stage(sink, request.epoch, name, request.piece, groups)
        return pb.StageResponse(accepted=not waits_for, waits_for=waits_for)

    async def Discard(self, request: pb.DiscardRequest, context: Call) -> pb.DiscardResponse:
        self.worker.sinks.staging.discard(self._sink(request, context), request.epoch, request.attempt)
        return pb.DiscardResponse()

    async def Begin(self, request: pb.BeginRequest, context: Call) -> pb.BeginResponse:
        sink, names = self._checked_attempts(request, context)
        check_id("run", request.run)
        tasks, previous = self.worker.sinks.begin_run(sink, request.epoch, request.run, names)
        return pb.BeginResponse(
            published_tasks=tasks,
            published_contents=contents_to_wire(tasks),
            previous_workers=map(assigned_worker_to_wire, previous),
            run_continues=self.worker.sinks.publications.has_earlier_epoch(sink, request.epoch, request.run),
        )

    async def Check(self, request: pb.CheckRequest, context: Call) -> pb.CheckResponse:
        sink, names = self._checked_attempts(request, context)
        remote_contents = contents_from_wire(request.published_tasks, request.published_contents)
        tasks = self.worker.sinks.check(sink, request.epoch, names, remote_contents)
        return pb.CheckResponse(tasks=tasks)

    async def Publish(self, request: pb.PublishRequest, context: Call) -> pb.PublishResponse:
        sink, names = self._checked_attempts(request, context)
        if request.run:
            check_id("run", request.run)
        remote_contents = contents_from_wire(request.published_tasks, request.published_contents)
        sinks = self.worker.sinks
        chosen, waiting = await sinks.publish(sink, request.epoch, names, request.run, remote_contents)
        return pb.PublishResponse(chosen_messages=chosen, waiting_messages=waiting)

    async def GetProgress(self, request: pb.GetProgressRequest, context: Call) -> pb.GetProgressResponse:
        sink = self._sink(request, context)
        self.worker.check_sinks(is_continuation=True)
        waiting, tasks = await self.worker.sinks.await_progress(sink, request.epoch)
        return pb.GetProgressResponse(waiting_messages=waiting, waiting_tasks=tasks)


@dataclass(eq=False)
class SourceServicer(control_pb2_grpc.SourceServicer):
    """Serves tuplewire.v1.Source for one worker. Call only from the event loop."""

    worker: Worker
    admit: AdmitFunction

    def _check(self, request: _SourceRequest, context: Call, tasks: Iterable[int]) -> None:
        """Raise RefusedError for a reader that expects another worker, or has no right to the tasks."""
        settings = self.worker.settings
        check_receiver(settings.worker_id, settings.topology, "reader", request)
        self.admit(context).check_receive(request.topology, tasks)

    async def Poll(self, request: pb.PollRequest, context: Call) -> pb.PollResponse:
        worker, router = self.worker, self.worker.router
        unique([each.task for each in request.tasks], "tasks")
        wanted = {each.task: each for each in request.tasks}
        incarnations = unique(request.worker_incarnations, "workers")
        self._check(request, context, wanted)
        if request.wait_millis:
            seen = {task: each.seen_sequence for task, each in wanted.items()}
            await router.queues.wait_for_change(seen, min(request.wait_millis / 1000, _MAX_WAIT_SECONDS))
        # Read all at one moment; do the rest in a thread, as a queue may have a million groups.
        held = [each for each in map(router.queues.snapshot, wanted) if each is not None]
        response = pb.PollResponse(
            worker_incarnation=worker.incarnation,
            assignment_version=0 if worker.assignment is None else worker.assignment.version,
            leaving_tasks=[task for task in wanted if task in router.queues.leaving],
            departed_workers=[
                pb.DepartedWorker(
                    incarnation=each.incarnation, dropped_messages=max_lost_messages(each, wanted)
                )
                for each in router.departures.find(incarnations)
            ],
        )
        congested, own_number = worker.congested_tasks, router.own_number

        def fill() -> pb.PollResponse:
            for each in held:
                polled_task, state = wanted[each.state.task], each.state
                state.congested = state.task in congested
                if polled_task.HasField("entries_to_sequence"):
                    state.entries.CopyFrom(each.entries(polled_task.entries_to_sequence, own_number))
                response.tasks.append(state)
            return response

        in_thread = len(wanted) > 1 or any(each.HasField("entries_to_sequence") for each in request.tasks)
        return await asyncio.to_thread(fill) if in_thread else fill()

    async def Read(self, request: pb.ReadRequest, context: Call) -> AsyncIterator[bytes]:
        """Yield messages as encoded ReadResponses; other calls run between two frames."""
        self._check(request, context, [request.task])
        worker = self.worker
        if request.worker_incarnation != worker.incarnation:
            raise TaskNotLocalError(f"worker {worker.settings.worker_id!r} has been restarted")
        position, number = request.after_sequence, 0
        max_bytes = worker.settings.session.max_frame_bytes
        while position < request.last_sequence:
            found = worker.router.queues.read(request.task, position, request.last_sequence, max_bytes)
            if not found:
                return
            position, number = found[-1].last_sequence, number + 1
            yield encode_deliveries(number, found, ack_requested=False)

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Call) -> pb.AcknowledgeResponse:
        self._check(request, context, unique([each.task for each in request.tasks], "tasks"))
        if request.worker_incarnation == self.worker.incarnation:
            for each in request.tasks:
                while self.worker.router.queues.acknowledge(each.task, each.sequence):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # let other calls run
                await asyncio.sleep(0)
        return pb.AcknowledgeResponse()
