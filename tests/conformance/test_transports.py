"""The shipped conformance kit on every transport of ours."""

from __future__ import annotations

from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import RelayConformance


class TestLocal(RelayConformance):
    """Within one process."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "local"})


class TestGrpc(RelayConformance):
    """Over real sockets."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "grpc"})
