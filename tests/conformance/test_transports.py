"""The shipped conformance kit, and the behaviour of all transports, run on each built-in transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.shared_behaviour import SharedBehaviour

from tuplewire.settings.config import SessionSettings
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import TransportConformance


class TestLocal(TransportConformance, SharedBehaviour):
    """Within one process."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "local"})


class TestGrpc(TransportConformance, SharedBehaviour):
    """Over real sockets."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "grpc"})


class TestZmq(TransportConformance, SharedBehaviour):
    """Over ZeroMQ's TCP."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "zmq"})


class TestZmqIpc(TransportConformance, SharedBehaviour):
    """Over ZeroMQ's Unix sockets, as in Storm's local mode."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "zmq"})

    def conf(self, settings: SessionSettings, worker_id: str) -> Mapping[str, Any]:
        return {**super().conf(settings, worker_id), "storm.cluster.mode": "local"}
