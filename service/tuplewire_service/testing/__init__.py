"""Shipped for tests: the conformance kit for transports, a fault proxy, the history checker, waiting."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.history import History
from tuplewire_service.testing.line import Direction
from tuplewire_service.testing.proxy import FaultProxy
from tuplewire_service.testing.waiting import eventually

__all__ = ["Direction", "FaultProxy", "History", "TransportConformance", "eventually"]
