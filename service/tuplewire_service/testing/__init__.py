"""Shipped for tests: a proxy that makes faults, the conformance kit for transports, waiting."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.fault_proxy import FaultProxy
from tuplewire_service.testing.scenery import eventually

__all__ = ["FaultProxy", "TransportConformance", "eventually"]
