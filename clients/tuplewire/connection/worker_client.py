"""A blocking client of what readers and writers call at a worker: the services Source and Sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuplewire.connection.control_client import ControlClient, mapped_errors
from tuplewire.connection.grpc_channel import channel_options
from tuplewire.session.delivery import Delivery
from tuplewire.settings.config import SessionSettings
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.codec import decode_recv_response, groups_of


class WorkerClient(ControlClient):
    """Talks to a worker as Spark's queries do; see ControlClient. It notices a worker that hangs."""

    channel_options = channel_options(SessionSettings())

    def poll(self, request: pb.PollRequest) -> pb.PollResponse:
        """Return the state of some tasks at the worker, after the wait that the request names.

        Raises WrongWorkerError, WrongTopologyError and PermissionDeniedError.
        """
        timeout = self.timeout + request.wait_millis / 1000
        response: pb.PollResponse = self._call("Poll", request, timeout, "source")
        return response

    def begin_poll(self, request: pb.PollRequest) -> Any:
        """Do the same without waiting for the answer; return a gRPC future."""
        connection = self._connected(self.timeout)
        metadata = self._dialler.metadata(self.address)
        timeout = self.timeout + request.wait_millis / 1000
        return connection.source.Poll.future(request, timeout=timeout, metadata=metadata)

    def read(self, request: pb.ReadRequest) -> Iterator[list[Delivery]]:
        """Yield messages of a task, frame by frame; ends where there are no more.

        Raises NotLocalError, SupersededError where the task has a consumer, and what poll() raises.
        """
        connection = self._connected(self.timeout)
        metadata, hint = self._dialler.metadata(self.address), self._dialler.hint(self.address)
        with mapped_errors(self.address, lambda: "it ends the reading", hint):
            call = connection.source.Read(request, metadata=metadata)
            try:
                for data in call:
                    frame: Any = decode_recv_response(data)  # a ReadResponse, too, has its frame as field 2
                    sequences = [group.first_sequence for group in frame.groups]
                    yield list(map(Delivery, sequences, groups_of(frame)))
            finally:
                call.cancel()

    def acknowledge(self, topology: str, worker_id: str, incarnation: int, ends: Mapping[int, int]) -> None:
        """Release messages of tasks, up to these sequences; raises SupersededError and what poll() raises."""
        tasks: Iterable[pb.AcknowledgedTask] = (
            pb.AcknowledgedTask(task=task, sequence=sequence) for task, sequence in ends.items()
        )
        request = pb.AcknowledgeRequest(
            topology=topology, receiver_id=worker_id, incarnation=incarnation, tasks=tasks
        )
        self._call("Acknowledge", request, service="source")

    def stage(self, request: pb.StageRequest) -> str:
        """Hand over a piece of what an attempt of a sink writes; nobody sees it before the attempt is chosen.

        Returns what there is no room for now (send the piece again later), or nothing once it is kept.

        Raises SequenceGapError when pieces before it are not there any more, StaleEpochError,
        EpochTooLargeError when there will never be room, UnknownTaskError and WrongWorkerError.
        """
        response = self._call("Stage", request, service="sinks")
        return "" if response.taken else str(response.waits_for or "another piece")

    def discard(self, request: pb.DiscardRequest) -> None:
        """Throw away what an attempt has staged; without an attempt, what was not chosen of an epoch."""
        self._call("Discard", request, service="sinks")

    def begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        """Make a run of a sink's query known, and drop what earlier ones have staged; raises as check()."""
        response: pb.BeginResponse = self._call("Begin", request, service="sinks")
        return response

    def check(self, request: pb.CheckRequest) -> pb.CheckResponse:
        """Return the tasks of attempts that can be published.

        Raises StageGoneError when an attempt is not there as it was staged, StaleEpochError, also for a task
        that got other messages of the epoch, and WrongWorkerError.
        """
        response: pb.CheckResponse = self._call("Check", request, service="sinks")
        return response

    def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Choose what of an epoch is to be seen; raises UnknownRunError before begin(), and as check()."""
        response: pb.PublishResponse = self._call("Publish", request, service="sinks")
        return response

    def progress(self, request: pb.ProgressRequest) -> pb.ProgressResponse:
        """Return how much of a published epoch waits for room; StageGoneError where none was published."""
        response: pb.ProgressResponse = self._call("Progress", request, service="sinks")
        return response
