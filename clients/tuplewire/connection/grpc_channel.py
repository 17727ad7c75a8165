"""gRPC channels and streams to addresses, their options, and the errors for gRPC's status codes.

Used by clients, the control client, receivers and the worker's gRPC transport. Owns no state except its open
streams. Call only from the event loop, except error_from_status() and the functions that return options or
channels. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from tuplewire import errors
from tuplewire.connection.channels import NO_WORKER_HINT, TRUST_HINT, ChannelFactory
from tuplewire.connection.stream import ClientStream, MessageStream, StreamBroken, StreamOpener
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.control_pb2_grpc import ControlStub, SourceStub
from tuplewire.wire.messaging_pb2_grpc import MessagingStub

BASE_OPTIONS = (
    ("grpc.enable_retries", 0),
    # Workers are reached directly, not through a proxy from the environment.
    ("grpc.enable_http_proxy", 0),
    # The timeout of a connection: each attempt of a session opens a new channel.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # A new channel connects immediately, also while an older one to the address waits before it tries again.
    ("grpc.use_local_subchannel_pool", 1),
    # The worker's limits apply instead: Welcome contains them for senders, and its responses keep to them.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
"""The options of every channel."""
UNLIMITED_BYTES = 2**63 - 1
"""The response limit that a consumer with these options reports."""
ERROR_KEY = "tuplewire-error"
"""The trailing metadata with the ErrorCode of a refusal."""
OWNER_KEY = "tuplewire-owner"
"""The trailing metadata with the task's owner: its address and its id, percent-encoded, and a space between.
"""
_CONTROL_SECONDS = 2.0
"""The maximum time for a request to the service Control."""
_CERT_REJECTED = re.compile("CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed")
"""gRPC's errors if this side refuses a server's certificate."""
_NO_CONNECTION = re.compile(
    r"(?:failed to connect to all addresses; last error: \w+: [^ ]+: "
    r"(?:Failed to connect to remote host: )?|errors resolving [^ ]+: .*: )(.+?)\]?",
    re.DOTALL,
)
"""gRPC's error for a failed connection; the group is the reason."""
_HANDSHAKE_CUT = re.compile("failed to connect.*(Socket closed|reset by peer|WRONG_VERSION)", re.DOTALL)
"""gRPC's errors if a server ends the handshake, or answers without TLS."""
_TOO_LARGE = re.compile("larger than max|metadata size exceeds")
"""gRPC's errors for a message or metadata over a limit. A retry would fail in the same way."""
_WRONG_PROTOCOL = re.compile("parsing HTTP/2|http1.x server")
"""gRPC's errors if a server answers in another protocol."""
CALL_ENDED_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""gRPC's exceptions for a call that is finished."""


def channel_options(settings: SessionSettings) -> list[tuple[str, Any]]:
    """Return the options of a channel that carries a session.

    Keepalive and the ping timeout detect a hung peer; without the latter, gRPC waits a minute. gRPC's own
    retries are off: they would resend frames without the session's knowledge.
    """
    return [*_common_options(settings), *BASE_OPTIONS, ("grpc.http2.max_pings_without_data", 0)]


def server_options(settings: SessionSettings) -> list[tuple[str, Any]]:
    """Return the options of a server of sessions. It detects a hung client as a client detects a server."""
    return [
        *_common_options(settings),
        ("grpc.max_send_message_length", settings.max_request_bytes),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.so_reuseport", 0),
        # Permit the pings with which clients detect a hung server.
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common_options(settings: SessionSettings) -> list[tuple[str, Any]]:
    milliseconds = int(settings.keepalive_seconds * 1000)
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def raw_channel(channel: Any) -> Any:
    """Return a channel for a generated stub with streams of bytes; wire/codec.py encodes and decodes them."""
    return SimpleNamespace(
        unary_unary=channel.unary_unary,
        unary_stream=lambda path, request_serializer, **_: channel.unary_stream(path, request_serializer),
        stream_stream=lambda path, **_: channel.stream_stream(path),
    )


def grpc_stream_opener(address: str, settings: SessionSettings, factory: ChannelFactory) -> StreamOpener:
    """Return a function that opens streams to the worker at an address, each on a separate connection."""

    @asynccontextmanager
    async def open_stream(method: str) -> AsyncIterator[ClientStream]:
        metadata = factory.metadata(address)
        async with await factory.open_channel(address, channel_options(settings)) as channel:
            stub = MessagingStub(raw_channel(channel))  # type: ignore[no-untyped-call]
            call = getattr(stub, method)(metadata=metadata)
            stream = _GrpcClientStream(call, address, factory.handshake_hint(address))
            try:
                yield stream
            finally:
                stream.close()

    return open_stream


class WorkerConnections:
    """Connects to workers at any addresses, with the files of a client's credentials."""

    def __init__(self, settings: SessionSettings, credentials: Credentials | None) -> None:
        """Read the files of the credentials at the first connection."""
        self._settings = settings
        self._channels = ChannelFactory(credentials)
        self._poll_channels: dict[str, grpc.aio.Channel] = {}
        """The channels for polls, by address; kept until a request fails, because polls repeat."""
        self._polls_ended = False

    def stream_opener(self, address: str) -> StreamOpener:
        """Return a function that opens streams to the worker at an address."""
        return grpc_stream_opener(address, self._settings, self._channels)

    async def assignment(self, address: str) -> pb.GetAssignmentResponse:
        """Request the assignment from the worker at an address. Raises UnreachableError, RefusedError."""
        async with await self._channels.open_channel(address, BASE_OPTIONS) as channel:
            stub = ControlStub(channel)  # type: ignore[no-untyped-call]
            request = pb.GetAssignmentRequest()
            return cast("pb.GetAssignmentResponse", await self._call(stub.GetAssignment, request, address))

    async def status(self, address: str, tasks: Iterable[int]) -> pb.GetStatusResponse:
        """Request the status of a worker with only these tasks. Raises UnreachableError, RefusedError."""
        channel = await self._polled_channel(address)  # this reference keeps it open during the call
        stub = ControlStub(channel)  # type: ignore[no-untyped-call]
        request = pb.GetStatusRequest(tasks=tasks)
        return cast("pb.GetStatusResponse", await self._call(stub.GetStatus, request, address))

    async def poll(self, address: str, topology: str, tasks: Iterable[int]) -> pb.PollResponse:
        """Request the states of tasks with the ids of their consumers. Raises the errors of status()."""
        channel = await self._polled_channel(address)
        stub = SourceStub(channel)  # type: ignore[no-untyped-call]
        request = pb.PollRequest(topology=topology, tasks=[pb.PolledTask(task=each) for each in tasks])
        return cast("pb.PollResponse", await self._call(stub.Poll, request, address))

    async def _polled_channel(self, address: str) -> grpc.aio.Channel:
        if self._polls_ended:
            raise errors.ClosedError("the subscription is closed")
        channels = self._poll_channels  # after close_polls(), a poll in progress uses the old dict
        if address not in channels:
            channels[address] = await self._channels.open_channel(address, BASE_OPTIONS)
        return channels[address]

    async def _call(self, method: Any, request: Any, address: str) -> Any:
        metadata = self._channels.metadata(address)
        try:
            return await method(request, timeout=_CONTROL_SECONDS, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self._poll_channels.pop(address, None)  # a new channel tries to connect immediately
            trailing, details = error.trailing_metadata(), error.details() or ""
            raise error_from_status(error.code(), details, trailing, address) from None

    def close_polls(self, *, final: bool) -> None:
        """Close the channels for polls after the calls in progress.

        final: later polls raise ClosedError; otherwise, they open new channels.
        """
        self._poll_channels, self._polls_ended = {}, final


class GrpcStream(MessageStream):
    """One call of a streaming method, on either side."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, data: bytes) -> None:
        try:
            await self._call.write(data)
        except CALL_ENDED_ERRORS as error:
            raise StreamBroken from error

    async def read(self) -> bytes | None:
        try:
            data = await self._call.read()
        except CALL_ENDED_ERRORS as error:
            raise StreamBroken from error
        return None if data is grpc.aio.EOF else data


class _GrpcClientStream(GrpcStream, ClientStream):
    def __init__(self, call: Any, address: str, hint: str) -> None:
        super().__init__(call)
        self._address = address
        self._hint = hint

    async def write(self, data: bytes) -> None:
        try:
            await self._call.wait_for_connection()
            # If this fails, call.write() ends the call, and the last messages and the status cannot be read.
            await self._call._cython_call.send_serialized_message(data)
        except CALL_ENDED_ERRORS as error:
            raise StreamBroken from error

    async def done_writing(self) -> None:
        try:
            await self._call.done_writing()
        except CALL_ENDED_ERRORS as error:
            raise StreamBroken from error

    def close(self) -> None:
        """Cancel the call in gRPC's core too, where it may still be open.

        After a failed write, grpc.aio treats a call as done and cannot cancel it (grpc/grpc issue 36066). If
        messages have arrived and are not read, the core keeps the status, and so the call, indefinitely.
        """
        self._call._cython_call.cancel("the stream has finished")

    async def end(self) -> errors.TuplewireError:
        # A call that this side cancels has no status from the worker.
        call = self._call
        if call.cancel():
            return errors.UnreachableError(f"{self._address}: the stream broke")
        status = await call.code(), await call.details() or "", await call.trailing_metadata()
        return error_from_status(*status, self._address, self._hint)


def refusal_metadata(code: str, owner: str, worker_id: str) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a refusal, for error_from_status(). owner, worker_id: may be empty."""
    owner_metadata = ((OWNER_KEY, f"{quote(owner)} {quote(worker_id)}"),) if owner else ()
    return (ERROR_KEY, code), *owner_metadata


def error_from_status(
    code: grpc.StatusCode, details: str, trailing: Iterable[Any] | None, address: str, hint: str = ""
) -> errors.TuplewireError:
    """Return the error for a status.

    1. The worker refused the call: the metadata contains the reason.
    2. gRPC refused the size of the request.
    3. The peer is not a gRPC server.
    4. The peer is not a Tuplewire worker, or has a defect.
    5. The peer is unreachable.

    hint: added if the peer closes the connection during the handshake; see ChannelFactory.handshake_hint().
    """
    # 1. The status code is ignored: the worker's own code is more precise.
    metadata = {key: str(value) for key, value in trailing or ()}
    if ERROR_KEY in metadata:
        owner = map(unquote, metadata.get(OWNER_KEY, "").split(" ", 1))
        return errors.refusal_error(metadata[ERROR_KEY], details, *owner)
    # 2. A retry would fail in the same way. Any other RESOURCE_EXHAUSTED is temporary, as in 5.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE.search(details):
        return errors.PayloadTooLargeError(
            f"{address} refused the size of a request: {details}; name fewer tasks, use a shorter token, or "
            "raise the worker's max_message_bytes and max_frame_bytes"
        )
    # 3. Another process may listen there temporarily, so sessions try again.
    if _WRONG_PROTOCOL.search(details):
        text = "does not answer in gRPC's protocol; if it is the admin port of a worker, use the address"
        return errors.UnreachableError(f"{address} {text} of its setting `listen` (by default port 6700)")
    # 4. A worker reports its refusals as in 1.
    if code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}:
        text = f"{address} does not answer as a Tuplewire worker: {code.name}: {details}"
        return errors.ProtocolError(text)
    # 5. The hint names TLS settings, because gRPC's own text does not.
    hint = TRUST_HINT if _CERT_REJECTED.search(details) else hint if _HANDSHAKE_CUT.search(details) else ""
    if no_connection := _NO_CONNECTION.fullmatch(details):
        text = f"no connection: {no_connection[1]}{hint or NO_WORKER_HINT}"
        return errors.UnreachableError(f"{address}: {text}")
    return errors.UnreachableError(f"{address}: {code.name}: {details}{hint}")
