"""The settings that only the gRPC transport has, and what its context is wired to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tuplewire.addresses import join_host_port, split_host_port
from tuplewire.connection.dialling import Dialler
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings import Kind, setting, several
from tuplewire_service.messaging.access import IAccess
from tuplewire_service.messaging.transport_settings import TransportSettings

Admit = Callable[[grpc.aio.ServicerContext[Any, Any]], IAccess]
"""Says what the caller of a method may do; raises RefusedError for one who may not even come in."""


def _address(address: str) -> str:
    if address.startswith("unix:"):
        if not address.startswith("unix:///"):
            raise ConfigError(f"{address!r} is no Unix socket; write unix:///absolute/path")
        return address
    return join_host_port(*split_host_port(address))


_ADDRESSES = several(
    Kind("ADDRESS", "host:port", str, _address), "ADDRESSES", "a list of host:port or unix:///path"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings(TransportSettings):
    """Those of every transport, and one of its own."""

    listen: Sequence[str] = setting(_ADDRESSES, (), "further addresses to bind", key="tuplewire.grpc.listen")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcWiring:
    """The objects that a context works with; by default it serves Messaging alone, to everybody.

    services: gRPC handlers to serve on the same server. tls: the server credentials of every TCP address.
    admit: says of each stream what its caller may do. dialler: makes the channels to others.
    """

    services: Sequence[grpc.GenericRpcHandler] = ()
    tls: grpc.ServerCredentials | None = None
    admit: Admit | None = None
    dialler: Dialler = field(default_factory=lambda: Dialler(Credentials()))
