"""Shipped for tests: the conformance kit for transports, faults on the way, waiting."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.control_faults import ControlFaults, Fate
from tuplewire_service.testing.line import Direction
from tuplewire_service.testing.proxy import FaultProxy
from tuplewire_service.testing.relays import RelayConformance
from tuplewire_service.testing.waiting import eventually

__all__ = [
    "ControlFaults",
    "Direction",
    "Fate",
    "FaultProxy",
    "RelayConformance",
    "TransportConformance",
    "eventually",
]
