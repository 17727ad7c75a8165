"""A blocking client of a worker's services Source and Sinks, for readers and writers.

Used by Spark's readers and writers (task_workers.py, publisher.py) and the offsets command. Owns one gRPC
channel, as ControlClient does. Thread-safe. Design: docs/design/readers.md, docs/design/sinks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.grpc_channel import channel_options
from tuplewire.session.delivery import Delivery
from tuplewire.settings.config import SessionSettings
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.messaging_pb2 import RecvResponse


class WorkerClient(ControlClient):
    """A client of one worker for Spark's queries; see ControlClient. Detects a worker that hangs."""

    channel_options = channel_options(SessionSettings())

    def poll(self, request: pb.PollRequest) -> pb.PollResponse:
        """Return the state of tasks at the worker, after at most the wait time in the request.

        Raises WrongWorkerError, WrongTopologyError and PermissionDeniedError.
        """
        timeout = self.timeout + request.wait_millis / 1000
        response: pb.PollResponse = self._call("Poll", request, timeout, "source")
        return response

    def begin_poll(self, request: pb.PollRequest) -> Any:
        """Do the same as poll without waiting for the answer; return a gRPC future."""
        connection = self._connected(self.timeout)
        metadata = self._channel_factory.metadata(self.address)
        timeout = self.timeout + request.wait_millis / 1000
        return connection.source.Poll.future(request, timeout=timeout, metadata=metadata)

    def read(self, request: pb.ReadRequest) -> Iterator[list[Delivery]]:
        """Yield the messages of a task, frame by frame, until there are no more.

        Raises TaskNotLocalError, SupersededError if the task has a consumer, and the errors of poll().
        """
        # No timeout: a slow reader may take any time, and keepalive pings detect a hung worker.
        with closing(self._stream("Read", request, service="source")) as answers:
            for data in answers:
                frame: Any = decode(RecvResponse, data)  # ReadResponse also has its frame in field 2
                sequences = [group.first_sequence for group in frame.groups]
                yield list(map(Delivery, sequences, groups_of(frame)))

    def acknowledge(self, topology: str, worker_id: str, incarnation: int, ends: Mapping[int, int]) -> None:
        """Release messages of tasks, up to these sequences; raises SupersededError and poll()'s errors."""
        tasks: Iterable[pb.AcknowledgedTask] = (
            pb.AcknowledgedTask(task=task, sequence=sequence) for task, sequence in ends.items()
        )
        request = pb.AcknowledgeRequest(
            topology=topology, receiver_id=worker_id, incarnation=incarnation, tasks=tasks
        )
        self._call("Acknowledge", request, service="source")

    def stage(self, request: pb.StageRequest) -> str:
        """Stage a piece of a sink's attempt. Consumers do not see it before the attempt is chosen.

        Returns an empty string if the piece is stored. Otherwise, returns the part without free space: send
        the piece again later. Raises SequenceGapError if earlier pieces are lost, StaleEpochError,
        EpochTooLargeError if the epoch can never fit, UnknownTaskError and WrongWorkerError.
        """
        response = self._call("Stage", request, service="sinks")
        return "" if response.accepted else str(response.waits_for or "another piece")

    def discard(self, request: pb.DiscardRequest) -> None:
        """Discard an attempt's staged messages; without an attempt, all staged messages of the epoch."""
        self._call("Discard", request, service="sinks")

    def begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        """Register a run of a sink's query; drop the staged messages of earlier runs. Raises as check()."""
        response: pb.BeginResponse = self._call("Begin", request, service="sinks")
        return response

    def check(self, request: pb.CheckRequest) -> pb.CheckResponse:
        """Return the tasks of attempts that can be published.

        Raises StagedDataLostError if an attempt is no longer complete as staged, StaleEpochError (also if a
        task received other messages of the epoch), and WrongWorkerError.
        """
        response: pb.CheckResponse = self._call("Check", request, service="sinks")
        return response

    def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Choose an epoch's attempts to publish. Raises UnknownRunError before begin(), and as check()."""
        response: pb.PublishResponse = self._call("Publish", request, service="sinks")
        return response

    def progress(self, request: pb.ProgressRequest) -> pb.ProgressResponse:
        """Return the number of an epoch's messages that wait for free space. Raises StagedDataLostError."""
        response: pb.ProgressResponse = self._call("Progress", request, service="sinks")
        return response
