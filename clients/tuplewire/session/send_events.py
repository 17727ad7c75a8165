"""The callbacks of a sending end (connection/sending_end.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuplewire.session.ledger import Settled
from tuplewire.session.pressure import OutboundPressure
from tuplewire.wire.messaging_pb2 import Departure


@dataclass(frozen=True, slots=True)
class SendEvents:
    """The callbacks of a sending end, which calls them on the messaging loop."""

    settled: Callable[[Sequence[Settled]], None] = lambda _: None
    """Called with messages that were acknowledged or dropped, and their inbound sessions."""
    released: Callable[[Sequence[Settled]], None] = lambda _: None
    """Called with messages that the receiver has processed."""
    lost: Callable[[], object] = lambda: None
    """Called after the connection breaks."""
    departed: Callable[[Sequence[Departure]], None] = lambda _: None
    """Called with workers that have shut down cleanly, as reported by the receiver."""
    departures: Callable[[], Sequence[Departure]] = tuple
    """Returns the workers to report to the receiver at the end of the session."""
    assignment_version: Callable[[], int] = int
    """Returns the version of the assignment that messages are routed by; 0: none."""
    draining: Callable[[], bool] = lambda: False
    """Returns True if this worker drains. The receiver then accepts its messages longer."""
    pressure: OutboundPressure | None = None
    """Counts blocked time and frame times. A worker has one for all its connections."""
