"""The gRPC channels and streams to addresses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from tuplewire.connection.dialling import NOT_TRUSTED, Dialler
from tuplewire.connection.stream import ClientStream, Dial, MessageStream, StreamBroken
from tuplewire.errors import PayloadRefusedError, ProtocolError, TuplewireError, UnreachableError, refused
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings
from tuplewire.wire.messaging_pb2_grpc import MessagingStub

DIRECT = (
    ("grpc.enable_retries", 0),
    # Workers are reached directly; a proxy of the environment would only stand in between.
    ("grpc.enable_http_proxy", 0),
    # How long it may take to connect: each of our attempts makes a channel of its own.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # The worker's limits apply in both directions: Welcome has them for senders, and responses obey them.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
"""The options of every channel."""
ANY_SIZE = 2**63 - 1
"""The response limit that a consumer with these options reports."""
ERROR_KEY = "tuplewire-error"
"""The trailing metadata that names the wire's ErrorCode of a refusal."""
_REFUSED_BY_US = re.compile("CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed")
"""What gRPC says of a server whose certificate this side does not take."""
_NO_CONNECTION = re.compile(
    r"failed to connect to all addresses; last error: \w+: [^ ]+: "
    r"(?:Failed to connect to remote host: )?(.+)",
    re.DOTALL,
)
"""What gRPC says around the one thing that counts."""
_BROKEN_OFF = re.compile("failed to connect.*(Socket closed|reset by peer)", re.DOTALL)
"""What gRPC says of a server that ends a connection during the handshake."""
_TOO_LARGE = re.compile("larger than max|metadata size exceeds")
"""gRPC's errors for a message or metadata over a limit. A retry would fail in the same way."""
BROKEN = (grpc.RpcError, asyncio.InvalidStateError)
"""What gRPC raises on a call that has ended."""


def channel_options(settings: SessionSettings) -> list[tuple[str, Any]]:
    """Return the options of a channel that carries a session.

    Three options together find a hung peer: without the ping timeout gRPC waits a minute for it. gRPC's own
    retries would send a stream's frames again, behind the session's back.
    """
    return [
        *_common_options(settings),
        *DIRECT,
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(settings: SessionSettings) -> list[tuple[str, Any]]:
    """Return the options of a server to which sessions come: it finds a hung client as the client does it."""
    return [
        *_common_options(settings),
        ("grpc.max_send_message_length", settings.max_request_bytes),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.so_reuseport", 0),
        # The clients ping to find a hung server; this is what lets them.
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


def bytes_channel(channel: Any) -> Any:
    """Return a channel for a generated stub whose streams carry bytes: our codec encodes and decodes them."""
    return SimpleNamespace(
        unary_unary=channel.unary_unary,
        unary_stream=lambda path, request_serializer, **_: channel.unary_stream(path, request_serializer),
        stream_stream=lambda path, **_: channel.stream_stream(path),
    )


def dial_grpc(address: str, settings: SessionSettings, dialler: Dialler) -> Dial:
    """Return what opens streams to the worker at an address, each on a connection of its own."""

    @asynccontextmanager
    async def open_stream(method: str) -> AsyncIterator[ClientStream]:
        metadata = dialler.metadata(address)
        async with await dialler.channel(address, channel_options(settings)) as channel:
            stub = MessagingStub(bytes_channel(channel))  # type: ignore[no-untyped-call]
            call = getattr(stub, method)(metadata=metadata)
            stream = _GrpcClientStream(call, address, dialler.hint(address))
            try:
                yield stream
            finally:
                stream.close()

    return open_stream


def dialler_for(credentials: Credentials | None) -> Dialler:
    """Return what makes channels for credentials; None: those of the environment, as it is now."""
    return Dialler(Credentials.from_environment() if credentials is None else credentials)


class GrpcStream(MessageStream):
    """One call of a streaming method, on either side."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, data: bytes) -> None:
        try:
            await self._call.write(data)
        except BROKEN as error:
            raise StreamBroken from error

    async def read(self) -> bytes | None:
        try:
            data = await self._call.read()
        except BROKEN as error:
            raise StreamBroken from error
        return None if data is grpc.aio.EOF else data


class _GrpcClientStream(GrpcStream, ClientStream):
    def __init__(self, call: Any, address: str, hint: str) -> None:
        super().__init__(call)
        self._address = address
        self._hint = hint
        self._cancelled = False

    async def done_writing(self) -> None:
        try:
            await self._call.done_writing()
        except BROKEN as error:
            raise StreamBroken from error

    def close(self) -> None:
        """End the call in gRPC's core, too, where it may have gone on.

        In grpc.aio a call of which a write has failed is done, and cannot be cancelled (grpc/grpc issue
        36066). If messages have arrived that nobody reads, the core keeps the status behind them, and with it
        the call, for ever.
        """
        self._call._cython_call.cancel("the stream is over")

    async def end(self) -> TuplewireError:
        self._cancelled |= self._call.cancel()
        if self._cancelled:
            return UnreachableError(f"{self._address}: the stream broke")
        call = self._call
        return error_of(
            await call.code(),
            await call.details() or "",
            await call.trailing_metadata(),
            self._address,
            self._hint,
        )


def error_of(
    code: grpc.StatusCode, details: str, trailing: Iterable[Any] | None, address: str, hint: str = ""
) -> TuplewireError:
    """Return our error for a status: the named refusal, or that the peer cannot be reached.

    hint: what may be the reason where the peer breaks off before a word is said.
    """
    for key, value in trailing or ():
        if key == ERROR_KEY:
            return refused(str(value), details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE.search(details):
        return PayloadRefusedError(
            f"{address} refused the size of a request: {details}; name fewer tasks, use a shorter token, or "
            "raise the worker's max_message_bytes and max_frame_bytes"
        )
    if code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}:
        return ProtocolError(f"{address} does not answer as a Tuplewire worker: {code.name}: {details}")
    hint = NOT_TRUSTED if _REFUSED_BY_US.search(details) else hint if _BROKEN_OFF.search(details) else ""
    if no_connection := _NO_CONNECTION.fullmatch(details):
        return UnreachableError(f"{address}: no connection: {no_connection[1]}{hint}")
    return UnreachableError(f"{address}: {code.name}: {details}{hint}")
