"""The settings that only the gRPC transport has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from tuplewire_service.messaging.settings import TransportSettings, keyed


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings(TransportSettings):
    """TransportSettings, and `tuplewire.grpc.listen` and `tuplewire.grpc.services`.

    listen: further addresses to bind (`unix:///path`, `host:port`).
    services: gRPC handlers to serve on the same server.
    """

    listen: Sequence[str] = keyed("tuplewire.grpc.listen", ())
    services: Sequence[grpc.GenericRpcHandler] = keyed("tuplewire.grpc.services", ())
