"""Shipped for tests: the conformance kit for transports, faults on the way, waiting."""

from tuplewire_service.testing.conformance import TransportConformance
from tuplewire_service.testing.control_faults import ControlFaults, Fate
from tuplewire_service.testing.relays import RelayConformance
from tuplewire_service.testing.waiting import eventually

__all__ = [
    "ControlFaults",
    "Fate",
    "RelayConformance",
    "TransportConformance",
    "eventually",
]
