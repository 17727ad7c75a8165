"""Shipped for tests: the conformance kit for transports, waiting."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.relays import RelayConformance
from tuplewire_service.testing.scenery import eventually

__all__ = ["RelayConformance", "TransportConformance", "eventually"]
