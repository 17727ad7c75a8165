"""A lease, by which one of several programs leads: decisions, without I/O or a clock.

Source: the leader election of Kubernetes' client-go. Clocks of different machines are never compared: a lease
has run out when it was seen unchanged for its whole time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LEASE_SECONDS = 15
RENEW_SECONDS = 9.0
"""A leader that has not renewed for so long leads no more. It notices before others may take the lease: after
a look begun in time, a pause, and two calls that time out."""
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What is kept. holder: who has it; empty: it was given back. renewed, acquired: times, as texts.

    version: of what is kept, to be replaced by nobody who has not seen it; empty: there is none yet.
    """

    holder: str = ""
    seconds: int = LEASE_SECONDS
    renewed: str = ""
    acquired: str = ""
    transitions: int = 0
    version: str = ""


class Candidate:
    """One of those who would lead. identity: unlike any other's. Times are monotonic, in seconds."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    def decide(self, kept: Lease | None, now: float, stamp: str) -> Lease | None:
        """Return what is to be written, or None while somebody else has the lease.

        kept: what is there; None: nothing. stamp: the time, as a text.
        """
        if kept is None:
            return Lease(self._identity, renewed=stamp, acquired=stamp)
        if self._seen is None or kept != self._seen:
            self._seen, self._seen_at = kept, now
        if kept.holder == self._identity:
            return replace(kept, renewed=stamp, seconds=LEASE_SECONDS)
        if kept.holder and now - self._seen_at < kept.seconds:
            return None
        return replace(
            kept,
            holder=self._identity,
            seconds=LEASE_SECONDS,
            renewed=stamp,
            acquired=stamp,
            transitions=kept.transitions + 1,
        )

    def wrote(self, asked_at: float) -> None:
        """Note that what decide returned was written. asked_at: when that was begun."""
        self._renewed_at = asked_at

    def lost(self) -> None:
        """Note that somebody else has the lease."""
        self._renewed_at = None

    def leads(self, now: float) -> bool:
        """Whether it may act as the leader; no other may meanwhile."""
        return self._renewed_at is not None and now - self._renewed_at < RENEW_SECONDS
