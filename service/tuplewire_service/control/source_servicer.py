"""The service Source, for the reads of Spark's queries: checks requests and reads the worker's queues.

Used by process/data_plane.py. Owns no state except the readers. Call only from the event loop.
Design: docs/design/readers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from tuplewire.errors import TaskNotLocalError
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire import control_pb2_grpc
from tuplewire_service.control.control_messages import distinct
from tuplewire_service.messaging.grpc.grpc_transport import Admit, Context
from tuplewire_service.messaging.recv_service import frame_of
from tuplewire_service.messaging.server_stream import check_receiver
from tuplewire_service.worker.departures import lost_with
from tuplewire_service.worker.worker import Worker

_MOST_WAIT_SECONDS = 10.0


# ruff: noqa: N802 - methods have the wire's names
@dataclass(eq=False)
class SourceServicer(control_pb2_grpc.SourceServicer):
    """Serves tuplewire.v1.Source for one worker. Call only from the event loop."""

    worker: Worker
    admit: Admit

    def _check(
        self,
        request: pb.PollRequest | pb.ReadRequest | pb.AcknowledgeRequest,
        context: Context,
        tasks: Iterable[int],
    ) -> None:
        """Raise RefusedError for a reader that expects another worker, or has no right to the tasks."""
        settings = self.worker.settings
        check_receiver(settings.worker_id, settings.topology, "reader", request)
        self.admit(context).receive(request.topology, tasks)

    async def Poll(self, request: pb.PollRequest, context: Context) -> pb.PollResponse:
        """Return the state of tasks; wait for a change if requested."""
        worker, router = self.worker, self.worker.router
        distinct([each.task for each in request.tasks], "tasks")
        wanted = {each.task: each for each in request.tasks}
        incarnations = distinct(request.incarnations, "workers")
        self._check(request, context, wanted)
        if request.wait_millis:
            seen = {task: each.seen_sequence for task, each in wanted.items()}
            seconds = min(request.wait_millis / 1000, _MOST_WAIT_SECONDS)
            await router.queues.wait_for_change(seen, seconds)
        # Read all at one moment; do the rest in a thread, as a queue may have a million groups.
        held = [each for each in map(router.queues.held, wanted) if each is not None]
        response = pb.PollResponse(
            incarnation=worker.incarnation,
            assignment_version=0 if worker.assignment is None else worker.assignment.version,
            leaving=[task for task in wanted if router.queues.is_leaving(task)],
            departed=[
                pb.DepartedWorker(incarnation=each.incarnation, dropped=lost_with(each, wanted))
                for each in router.departures.of(incarnations)
            ],
        )
        congested, number = worker.congested, router.number

        def fill() -> pb.PollResponse:
            for each in held:
                asked, state = wanted[each.state.task], each.state
                state.congested = state.task in congested
                if asked.HasField("entries_to"):
                    state.entries.CopyFrom(each.entries(asked.entries_to, number))
                response.tasks.append(state)
            return response

        in_thread = len(wanted) > 1 or any(each.HasField("entries_to") for each in request.tasks)
        return await asyncio.to_thread(fill) if in_thread else fill()

    async def Read(self, request: pb.ReadRequest, context: Context) -> AsyncIterator[bytes]:
        """Yield messages as encoded ReadResponses; other calls run between two frames."""
        self._check(request, context, [request.task])
        worker = self.worker
        if request.incarnation != worker.incarnation:
            raise TaskNotLocalError(f"worker {worker.settings.worker_id!r} has been restarted")
        position, number = request.after_sequence, 0
        max_bytes = worker.settings.session.max_frame_bytes
        while position < request.last_sequence:
            found = worker.router.queues.read(request.task, position, request.last_sequence, max_bytes)
            if not found:
                return
            position, number = found[-1].last, number + 1
            yield frame_of(number, found, ack_requested=False)

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Context) -> pb.AcknowledgeResponse:
        """Release the messages that a reader has processed."""
        tasks = distinct([each.task for each in request.tasks], "tasks")
        self._check(request, context, tasks)
        if request.incarnation == self.worker.incarnation:
            for each in request.tasks:
                while self.worker.router.queues.acknowledge(each.task, each.sequence):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # let other calls run
                await asyncio.sleep(0)
        return pb.AcknowledgeResponse()
