"""The settings that only the gRPC transport has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from tuplewire.config import declared
from tuplewire_service.messaging.settings import TransportSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings(TransportSettings):
    """Those of every transport, and two of its own."""

    listen: Sequence[str] = declared(
        (), "further addresses to bind: unix:///path, or host:port", key="tuplewire.grpc.listen"
    )
    services: Sequence[grpc.GenericRpcHandler] = declared(
        (), "gRPC handlers to serve on the same server", key="tuplewire.grpc.services"
    )
