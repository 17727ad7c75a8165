"""The settings that only the gRPC transport has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tuplewire.config import declared
from tuplewire.dialling import Dialler
from tuplewire_service.messaging.access import IAccess
from tuplewire_service.messaging.settings import TransportSettings

Admit = Callable[[grpc.aio.ServicerContext[Any, Any]], IAccess]
"""Says what the caller of a method may do; raises RefusedError for one who may not even come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings(TransportSettings):
    """Those of every transport, and some of its own."""

    listen: Sequence[str] = declared(
        (), "further addresses to bind: unix:///path, or host:port", key="tuplewire.grpc.listen"
    )
    services: Sequence[grpc.GenericRpcHandler] = declared(
        (), "gRPC handlers to serve on the same server", key="tuplewire.grpc.services"
    )
    tls: grpc.ServerCredentials | None = declared(
        None, "the server credentials of every TCP address", key="tuplewire.grpc.tls"
    )
    admit: Admit | None = declared(
        None, "says of each stream what its caller may do", key="tuplewire.grpc.admit"
    )
    dialler: Dialler | None = declared(
        None, "makes the channels to others (tuplewire.dialling.Dialler)", key="tuplewire.grpc.dialler"
    )
