"""A blocking client of a worker's services Control, Source, Sink and Health, and parallel calls to several.

Used by the commands, the membership program, worker processes, the topology programs, and Spark's readers and
writers. A client owns one gRPC channel, and opens a new one when TLS files change. Thread-safe.
Design: docs/design/status.md, docs/design/readers.md, docs/design/sinks.md.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeVar, cast

import grpc

from tuplewire.connection.channels import ChannelFactory
from tuplewire.connection.grpc_channel import BASE_OPTIONS, channel_options, error_from_status, raw_channel
from tuplewire.connection.loop import run_uninterrupted
from tuplewire.errors import ClosedError, DrainingError, TuplewireError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.session.consume import Delivery
from tuplewire.settings.addresses import resolve_address
from tuplewire.settings.config import SessionSettings
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire import health_pb2
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.control_pb2_grpc import ControlStub, SinkStub, SourceStub
from tuplewire.wire.health_pb2_grpc import HealthStub
from tuplewire.wire.messaging_pb2 import RecvResponse

_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 1.0
_MAX_PARALLEL = 32
_Answer = TypeVar("_Answer")


class ControlClient(AbstractContextManager["ControlClient"]):
    """A client of the worker at `address` (host:port, or unix:///path); use it as a context manager.

    address: default: TUPLEWIRE_ADDRESS. timeout: the limit of each call, in seconds. credentials: default:
    the environment (TUPLEWIRE_TLS_CA and so on). keepalive: also detect a worker that hangs in calls without
    a timeout. Thread-safe. Every call raises UnreachableError if the worker does not answer in time, and
    RefusedError (the subclass for its error code) if it refuses the call: see control.proto.
    """

    def __init__(
        self,
        address: str | None = None,
        timeout: float = 5.0,
        *,
        credentials: Credentials | None = None,
        keepalive: bool = False,
    ) -> None:
        self.address = resolve_address(address)
        self.timeout = timeout
        self._options = channel_options(SessionSettings()) if keepalive else BASE_OPTIONS
        self.max_message_bytes = 0
        """The largest payload that the worker accepts, set by get_assignment(); 0: not known yet."""
        self._channel_factory = ChannelFactory(credentials)
        self._lock = threading.RLock()  # a logging handler may call this client in a thread that holds it
        self._connection: _Connection | None = None
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ControlClient {self.address}>"

    def close(self) -> None:
        """Close the channel; does nothing the second time. Takes at most a second."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                # An interrupt in a call can leave a lock of gRPC locked. Its close() then waits forever.
                close_thread = threading.Thread(target=self._connection.channel.close, daemon=True)
                close_thread.start()
                close_thread.join(_CLOSE_SECONDS)

    def _get_connection(self, timeout: float) -> _Connection:
        """Return the connection; open a new one if the files of the credentials have changed."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the control client of {self.address} is closed; make another one")
            tls_state = self._channel_factory.tls_state()
            connection = self._connection
            if connection is None or connection.tls_state is not tls_state:
                channel = self._channel_factory.open_blocking_channel(self.address, self._options, timeout)
                # The old channel is not closed: calls of other threads may still run on it. It is freed with
                # the last of these calls.
                self._connection = connection = _Connection(channel, tls_state)
            return connection

    def status(
        self, max_clients: int = 0, max_tasks: int | None = None, *, membership_poll_seconds: float = 0.0
    ) -> pb.GetStatusResponse:
        """Return identity, state, ledger and counts, as one consistent snapshot.

        max_clients: the maximum number of senders, and of consumers, to list. max_tasks: the maximum number
        of tasks; tasks that block others, wait, or have the most messages are first. None: all.
        membership_poll_seconds: the interval of a membership's calls. A drain waits for the next one.
        """
        request = pb.GetStatusRequest(
            max_clients=max_clients, max_tasks=max_tasks, membership_poll_seconds=membership_poll_seconds
        )
        return cast("pb.GetStatusResponse", self._call("control.GetStatus", request))

    def get_loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """Return the load of each task that the worker knows, 0 (idle) to 1 (full). No tasks: all."""
        return dict(self._call("control.GetLoad", pb.GetLoadRequest(tasks=tasks)).loads)

    def get_assignment(self) -> pb.Assignment | None:
        """Return the current assignment; None if there is none yet."""
        response = self._call("control.GetAssignment", pb.GetAssignmentRequest())
        self.max_message_bytes = response.max_message_bytes
        return response.assignment if response.HasField("assignment") else None

    def update_assignment(self, assignment: pb.Assignment, *, force: bool = False) -> bool:
        """Apply an assignment; return False if the worker already has that version.

        force: accept a version so far ahead that it may be a mistake. Raises StaleAssignmentError for an
        older version, WrongTopologyError, and ProtocolError for an inconsistent assignment; the worker then
        keeps its assignment.
        """
        request = pb.UpdateAssignmentRequest(assignment=assignment, force=force)
        return bool(self._call("control.UpdateAssignment", request).changed)

    def drain(self, drain_seconds: float | None = None) -> bool:
        """Start to drain the worker, and return immediately; False if it was already draining.

        It finishes with the messages it holds, and exits. drain_seconds: the time limit; None: its setting.
        """
        return bool(self._drain(drain_seconds).started)

    def wait_for_drain(self, drain_seconds: float | None = None, *, timeout: float) -> int:
        """Drain (see drain()), wait at most `timeout` seconds, and return the number of dropped messages."""
        return int(self._drain(drain_seconds, timeout).dropped_messages)

    def _drain(self, seconds: float | None, wait_seconds: float | None = None) -> Any:
        millis = 0 if seconds is None else max(1, round(seconds * 1000))
        request = pb.DrainRequest(drain_millis=millis, wait=wait_seconds is not None)
        return self._call("control.Drain", request, wait_seconds)

    def tap(
        self, tasks: Iterable[int] = (), *, sample: float = 1.0, max_per_second: int = 0, max_bytes: int = 0
    ) -> Generator[pb.TapResponse]:
        """Yield copies of messages to tasks, without a time limit; close the generator to stop.

        tasks: empty: all. sample: the share of messages to copy. max_per_second, max_bytes (of a payload):
        0: the worker's default. The first response has no messages; it means that the tap is active.
        """
        request = pb.TapRequest(
            tasks=tasks, sample=sample, max_per_second=max_per_second, max_bytes=max_bytes
        )
        yield from self._stream("control.Tap", request)

    def debug(self, timeout: float = 60.0) -> dict[str, bytes]:
        """Return the worker's debug files by name, without secrets. timeout: for all files, in seconds."""
        files: dict[str, bytearray] = {}
        for piece in self._stream("control.GetDebug", pb.GetDebugRequest(), timeout):
            files.setdefault(piece.name, bytearray()).extend(piece.content)
        return {name: bytes(content) for name, content in files.items()}

    def set_logging(self, level: str = "", *, seconds: float, interval_seconds: float = 0.0) -> None:
        """Change the worker's logging for `seconds`, at most a day; then its settings apply again.

        level: debug, info, warning or error; empty: the configured one. interval_seconds: the minimum time
        between log entries for the same event of a client; 0: a minute. Raises ProtocolError if invalid.
        """
        fields = dict[str, Any](level=level, duration_seconds=seconds, interval_seconds=interval_seconds)
        self._call("control.SetLogging", pb.SetLoggingRequest(**fields))

    def report_program(self, report: pb.ReportProgramRequest) -> None:
        """Replace this program's report on its executors and metrics; at most once a second."""
        self._call("control.ReportProgram", report)

    def call_program(self, request: bytes, timeout: float | None = None) -> bytes:
        """Call the program in the worker's process; return its response. timeout: None: the client's."""
        response = self._call("control.CallProgram", pb.CallProgramRequest(request=request), timeout)
        return bytes(response.response)

    def poll(self, request: pb.PollRequest) -> pb.PollResponse:
        """Return the state of tasks at the worker, after at most the wait time in the request."""
        timeout = self.timeout + request.wait_millis / 1000
        return cast("pb.PollResponse", self._call("source.Poll", request, timeout))

    def poll_future(self, request: pb.PollRequest) -> Any:
        """Start a poll() without waiting for it; return a gRPC future, with the errors of gRPC."""
        connection = self._get_connection(self.timeout)
        metadata = self._channel_factory.metadata(self.address)
        timeout = self.timeout + request.wait_millis / 1000
        return connection.source.Poll.future(request, timeout=timeout, metadata=metadata)

    def read(self, request: pb.ReadRequest) -> Iterator[list[Delivery]]:
        """Yield the messages of a task, frame by frame, until there are no more."""
        # No timeout: a slow reader may take any time.
        with closing(self._stream("source.Read", request)) as answers:
            for data in answers:
                frame: Any = decode(RecvResponse, data)  # ReadResponse also has its frame in field 2
                sequences = [group.first_sequence for group in frame.groups]
                yield list(map(Delivery, sequences, groups_of(frame)))

    def acknowledge(self, topology: str, worker_id: str, incarnation: int, newest: Mapping[int, int]) -> None:
        """Acknowledge messages up to these sequences by task."""
        tasks = [pb.AcknowledgedTask(task=task, sequence=sequence) for task, sequence in newest.items()]
        request = pb.AcknowledgeRequest(
            topology=topology, expected_worker_id=worker_id, worker_incarnation=incarnation, tasks=tasks
        )
        self._call("source.Acknowledge", request)

    def stage(self, request: pb.StageRequest) -> str:
        """Stage a piece of a sink's attempt. Consumers do not see it before the attempt is chosen.

        Returns an empty string if the piece is stored. Otherwise, returns a text: which limit is full. Send
        the piece again later.
        """
        response = self._call("sink.Stage", request)
        return "" if response.accepted else str(response.waits_for or "another piece")

    def discard(self, request: pb.DiscardRequest) -> None:
        """Discard an attempt's staged messages; without an attempt, all staged messages of the epoch."""
        self._call("sink.Discard", request)

    def begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        """Register a run of a sink's query; drop the staged messages of earlier runs."""
        return cast("pb.BeginResponse", self._call("sink.Begin", request))

    def check(self, request: pb.CheckRequest) -> pb.CheckResponse:
        """Return the tasks of attempts that can be published."""
        return cast("pb.CheckResponse", self._call("sink.Check", request))

    def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Choose an epoch's attempts to publish."""
        return cast("pb.PublishResponse", self._call("sink.Publish", request))

    def progress(self, request: pb.GetProgressRequest) -> pb.GetProgressResponse:
        """Return the number of an epoch's messages that wait for free space."""
        return cast("pb.GetProgressResponse", self._call("sink.GetProgress", request))

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until the worker is ready: it has its assignment and every connection that it needs.

        Raises UnreachableError if it is not ready in `timeout` seconds, or fails; DrainingError if it drains.
        """
        deadline, reason = time.monotonic() + timeout, ""
        request, ready = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.SERVING
        while True:
            cause = ""
            remaining = max(_POLL_SECONDS, deadline - time.monotonic())
            try:
                with closing(self._stream("health.Watch", request, remaining)) as answers:
                    for response in answers:
                        if response.status == ready:
                            return
                        cause = f"no assignment or connection: see tuplewire status --address {self.address}"
                # A draining worker ends this stream; see docs/design/drain.md.
                break
            except UnreachableError as error:
                if cause or not reason or remaining > 1:  # the last, short attempt reports only its timeout
                    reason = cause or str(error).removeprefix(f"{self.address}: ")
                if time.monotonic() + _POLL_SECONDS > deadline:
                    text = f"the worker at {self.address}: not ready after {timeout:g} s: {reason}"
                    raise UnreachableError(text) from error
                if cause:
                    raise  # it has answered, and has stopped since
                time.sleep(_POLL_SECONDS)
        raise DrainingError(f"the worker at {self.address} is stopping; it will not become ready")

    def _call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        timeout = timeout or self.timeout
        with self._start(method, request, timeout, f"no answer within {timeout:g} s") as answer:
            return answer

    def _stream(self, method: str, request: Any, timeout: float | None = None) -> Generator[Any]:
        """Yield the answers of a call; closing the generator cancels it."""
        text = f"not all answers within {timeout or math.inf:.3g} s"
        with self._start(method, request, timeout, text) as answers:
            try:
                yield from answers
            except RuntimeError as error:
                # An interrupt while gRPC's wait releases its lock ends in an error of that lock.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise
            finally:
                answers.cancel()

    @contextmanager
    def _start(self, method: str, request: Any, timeout: float | None, timeout_text: str) -> Iterator[Any]:
        """Yield the result of a call; raise Tuplewire's errors for gRPC's. timeout_text: for a timeout."""
        connection = self._get_connection(timeout or self.timeout)
        metadata = self._channel_factory.metadata(self.address)
        call = partial(attrgetter(method)(connection), request, timeout=timeout, metadata=metadata)
        try:
            yield run_uninterrupted(call)
        except ValueError:  # gRPC's, if close() in another thread came first
            self._get_connection(self.timeout)  # raises ClosedError
            raise
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raised: TuplewireError = UnreachableError(f"the worker at {self.address}: {timeout_text}")
            else:
                hint = self._channel_factory.handshake_hint(self.address)
                about = error.code(), error.details() or "", error.trailing_metadata()
                raised = error_from_status(*about, self.address, hint)
            if isinstance(raised, UnreachableError):
                with self._lock:
                    # A new channel connects immediately, and to another certificate. The old one would wait.
                    if self._connection is connection:
                        self._connection = None
            raise raised from error


class _Connection:
    """A channel, the state of the TLS files that it was made with, and the stubs of its services."""

    def __init__(self, channel: grpc.Channel, tls_state: object) -> None:
        self.channel = channel
        self.tls_state = tls_state
        self.control: Any = ControlStub(channel)  # type: ignore[no-untyped-call]
        self.sink: Any = SinkStub(channel)  # type: ignore[no-untyped-call]
        self.source: Any = SourceStub(raw_channel(channel))  # type: ignore[no-untyped-call]
        self.health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]


class ControlClients:
    """One client for each of several workers, by address; `connect` creates one. Not thread-safe."""

    def __init__(self, connect: Callable[[str], ControlClient]) -> None:
        self._connect = connect
        self._clients: dict[str, ControlClient] = {}
        self._pool: ThreadPoolExecutor | None = None  # created by the first call: Spark pickles this

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, address: str) -> ControlClient:
        if address not in self._clients:
            self._clients[address] = self._connect(address)
        return self._clients[address]

    def call_all(
        self, addresses: Iterable[str], call: Callable[[ControlClient], _Answer]
    ) -> dict[str, _Answer | TuplewireError]:
        """Call each worker in parallel; return the results or errors by address."""

        def call_or_error(address: str) -> _Answer | TuplewireError:
            try:
                return call(self[address])
            except TuplewireError as error:
                return error

        wanted = list(addresses)
        self._pool = self._pool or ThreadPoolExecutor(_MAX_PARALLEL, "tuplewire-control")
        return dict(zip(wanted, self._pool.map(call_or_error, wanted), strict=True))

    def close_except(self, addresses: Iterable[str]) -> None:
        """Close the clients of all other workers."""
        for address in self._clients.keys() - addresses:
            self._clients.pop(address).close()

    def close(self) -> None:
        """Close all clients and the threads. Calls in progress end."""
        self.close_except(())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
