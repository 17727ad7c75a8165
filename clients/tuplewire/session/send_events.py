"""The callbacks of a sending end (connection/sending_end.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuplewire.session.ledger import SettledMessages
from tuplewire.session.pressure import OutboundPressure
from tuplewire.wire.messaging_pb2 import Departure


@dataclass(frozen=True, slots=True)
class SendEvents:
    """The callbacks of a sending end, which calls them on the messaging loop."""

    on_settled: Callable[[Sequence[SettledMessages]], None] = lambda _: None
    """Called with messages that were acknowledged or dropped, and their inbound sessions."""
    on_released: Callable[[Sequence[SettledMessages]], None] = lambda _: None
    """Called with messages that the receiver has released, and their inbound sessions."""
    on_disconnected: Callable[[], object] = lambda: None
    """Called after the connection breaks."""
    on_departed: Callable[[Sequence[Departure]], None] = lambda _: None
    """Called with workers that have shut down cleanly, as reported by the receiver."""
    get_departures: Callable[[], Sequence[Departure]] = tuple
    """Returns the workers to report to the receiver at the end of the session."""
    get_assignment_version: Callable[[], int] = int
    """Returns the version of the assignment that messages are routed by; 0: none."""
    is_draining: Callable[[], bool] = lambda: False
    """Returns True if this worker drains. The receiver then accepts its messages longer."""
    pressure: OutboundPressure | None = None
    """Counts blocked flows and frame times. A worker has one for all its connections."""
