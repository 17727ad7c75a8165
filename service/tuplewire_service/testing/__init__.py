"""Test helpers: a proxy that injects faults, conformance tests for transports, and waiting for conditions."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.fault_proxy import FaultProxy
from tuplewire_service.testing.harness import eventually

__all__ = ["FaultProxy", "TransportConformance", "eventually"]
