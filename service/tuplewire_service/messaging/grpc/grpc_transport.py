"""The gRPC transport: settings, streams, the bound side and the context.

Used by process/, by control/servicers.py, and through the entry point `grpc`. Owns the gRPC server of each
bound port. Call only from the event loop. Exceptions: the methods of connections and contexts are
thread-safe. Design: docs/design/sessions.md (transports), docs/design/identity.md (limits).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import grpc.aio

from tuplewire.connection.channels import ChannelFactory
from tuplewire.connection.grpc_channel import GrpcStream, grpc_stream_opener, refusal_metadata, server_options
from tuplewire.connection.stream import StreamBroken, StreamOpener
from tuplewire.errors import (
    ConfigError,
    DrainingError,
    MessageError,
    NotReadyError,
    PermissionDeniedError,
    ResourceLimitError,
    TuplewireError,
    UnauthenticatedError,
    WrongWorkerError,
)
from tuplewire.identity.credentials import Credentials
from tuplewire.session.backoff import Backoff
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire.settings.settings import Kind, list_of, setting
from tuplewire.wire.control_pb2 import GetStatusResponse
from tuplewire.wire.messaging_pb2_grpc import add_MessagingServicer_to_server
from tuplewire_service.messaging.grpc.restarting_server import RestartingServer
from tuplewire_service.messaging.server_stream import (
    FULL_ACCESS,
    HANDSHAKE_SECONDS,
    AccessRights,
    ServerStream,
    code_of,
    ended_to_wire,
)
from tuplewire_service.messaging.streamed_transport import StreamedContext, StreamedServer
from tuplewire_service.messaging.transport_settings import TransportSettings


def _parse_address(address: str) -> str:
    if address.startswith("unix:"):
        if not address.startswith("unix:///"):
            raise ConfigError(f"{address!r} is not a Unix socket; write unix:///absolute/path")
        return address
    return join_host_port(*split_host_port(address))


_ADDRESSES = list_of(
    Kind("ADDRESS", "host:port", str, _parse_address), "ADDRESSES", "a list of host:port or unix:///path"
)
_MAX_MILLIS = 2**31 - 1
"""gRPC treats this value as no limit."""
_MAX_CONNECTION_STREAMS = 1000
"""Maximum number of open streams on one connection. Tuplewire's clients open one."""
_IDLE_CONNECTION_SECONDS = 300.0
"""A connection without streams or calls is closed after this time."""
_AGE_GRACE_SECONDS = 2.0
"""Seconds from the end of new calls on an aged connection to its close; calls have finished by then."""


def _millis(seconds: float) -> int:
    return max(1, min(_MAX_MILLIS, int(seconds * 1000)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings(TransportSettings):
    """The settings of all transports, and one for gRPC."""

    listen: Sequence[str] = setting(_ADDRESSES, (), "further addresses to bind", key="tuplewire.grpc.listen")


Call = grpc.aio.ServicerContext[Any, Any]
AdmitFunction = Callable[[Call], AccessRights]
"""Returns the rights of a method's caller. Raises RefusedError for a caller that is not admitted."""


class GrpcServerStream(GrpcStream, ServerStream):
    """A gRPC call in progress, as a stream."""

    def __init__(self, context: Call, admit: AdmitFunction | None) -> None:
        super().__init__(context)
        self._context = context
        self.peer = context.peer()
        self._admit = admit

    def admit(self) -> AccessRights:
        return FULL_ACCESS if self._admit is None else self._admit(self._context)

    async def refuse(self, error: TuplewireError) -> NoReturn:
        """See ServerStream: ends with a status that has the error code in its trailing metadata."""
        # Tuplewire's clients read the error code in the metadata. The status is for other clients.
        status = grpc.StatusCode.FAILED_PRECONDITION
        if isinstance(error, MessageError):
            status = grpc.StatusCode.INVALID_ARGUMENT
        elif isinstance(error, DrainingError | NotReadyError | WrongWorkerError):
            status = grpc.StatusCode.UNAVAILABLE
        elif isinstance(error, ResourceLimitError):
            status = grpc.StatusCode.RESOURCE_EXHAUSTED
        elif isinstance(error, UnauthenticatedError):
            status = grpc.StatusCode.UNAUTHENTICATED
        elif isinstance(error, PermissionDeniedError):
            status = grpc.StatusCode.PERMISSION_DENIED
        ended = ended_to_wire(error)
        trailing = refusal_metadata(code_of(error), ended.owner_address, ended.owner_id)
        await self._context.abort(status, ended.detail, trailing)
        raise AssertionError  # abort() raises; this is for the type checker


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """The collaborators of a context; by default it serves only Messaging, to all callers.

    Attributes:
        services: gRPC handlers to serve on the same server.
        tls: The server credentials of every TCP address.
        admit: Returns the rights of each stream's caller.
        channel_factory: Creates the channels to other workers.
        socket_mode: The file mode of Unix sockets; None: as the process's umask sets it.
    """

    services: Sequence[grpc.GenericRpcHandler] = ()
    tls: grpc.ServerCredentials | None = None
    admit: AdmitFunction | None = None
    channel_factory: ChannelFactory = field(default_factory=lambda: ChannelFactory(Credentials()))
    socket_mode: int | None = None


def _raw_registrar(server: grpc.aio.Server) -> Any:
    """Return a server for the generated function. Its streams carry bytes, like streams of raw_channel."""

    def add(service: str, methods: Mapping[str, Any]) -> None:
        handler = grpc.stream_stream_rpc_method_handler
        handlers: Any = {name: handler(method.stream_stream) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    # The generated function registers its handlers in two forms, and one is enough.
    return SimpleNamespace(add_generic_rpc_handlers=lambda _: None, add_registered_method_handlers=add)


class GrpcServerConnection(StreamedServer["GrpcContext"]):
    """Serves senders (Send) and consumers (Recv) of one topology."""

    async def _bind(self) -> int:
        settings, options = self._context.settings, self._context.options
        session = settings.session
        backoff = Backoff(session.backoff_initial_seconds, session.backoff_max_seconds)
        self._server = RestartingServer(self._new_server, options.tls, backoff, options.socket_mode)
        await self._server.start([f"{settings.host}:{self.port}", *settings.listen])
        self.addresses = self._server.addresses
        return int(self.addresses[0].rpartition(":")[2])

    def _new_server(self) -> grpc.aio.Server:
        settings = self._context.settings
        options = [
            *server_options(settings.session),
            # For each address separately.
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_concurrent_streams", _MAX_CONNECTION_STREAMS),
            ("grpc.server_handshake_timeout_ms", _millis(HANDSHAKE_SECONDS)),
            ("grpc.max_connection_idle_ms", _millis(_IDLE_CONNECTION_SECONDS)),
        ]
        # A certificate is checked only at the handshake, so TLS connections have a maximum age.
        if self._context.options.tls is not None:
            options += [
                ("grpc.max_connection_age_ms", _millis(settings.max_connection_age_seconds)),
                ("grpc.max_connection_age_grace_ms", _millis(_AGE_GRACE_SECONDS)),
            ]
        server = grpc.aio.server(options=options)
        servicer = SimpleNamespace(Send=partial(self._serve, "Send"), Recv=partial(self._serve, "Recv"))
        add_MessagingServicer_to_server(servicer, _raw_registrar(server))  # type: ignore[no-untyped-call]
        server.add_generic_rpc_handlers(self._context.options.services)
        return server

    async def _serve(self, method: str, _: object, context: Call) -> None:
        # The ways in which a call ends:
        # 1. The handler returns: gRPC sends the status OK.
        # 2. The handler refuses the stream: refuse() sends a status with the error code.
        # 3. The peer disconnects: gRPC cancels the call, or the handler raises StreamBroken.
        # 4. The server stops: after the grace period, gRPC cancels the call.
        # 5. The handler has a defect: gRPC logs the exception, and sends the status UNKNOWN.
        # A server without queues has no Recv.
        if method not in self._handlers:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here")
        with contextlib.suppress(StreamBroken):  # the peer has disconnected, so no status can be sent
            await self._handlers[method](GrpcServerStream(context, self._context.options.admit))

    async def _unbind(self, grace: float | None) -> None:
        await self._server.stop(grace)

    def add_to(self, status: GetStatusResponse) -> None:
        super().add_to(status)
        status.grpc_server_restarts += self._server.restarts


class GrpcContext(StreamedContext):
    """Binds the Messaging service and connects to it. Source: Storm's `messaging.netty.Context`."""

    settings_class = GrpcSettings
    server_class = GrpcServerConnection
    settings: GrpcSettings

    def __init__(self, settings: GrpcSettings | None = None, options: GrpcOptions | None = None) -> None:
        super().__init__(settings)
        self.options = options or GrpcOptions()

    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        del topology_id  # the hello contains it
        return grpc_stream_opener(f"{host}:{port}", self.settings.session, self.options.channel_factory)
