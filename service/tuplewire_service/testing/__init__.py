"""Shipped for tests: the conformance kit for transports, and waiting for a condition."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.waiting import eventually

__all__ = ["TransportConformance", "eventually"]
