"""The ledger: accepted = acknowledged + dropped{reason} + pending, at all times.

Used by SendSession (through PendingMessages) and the worker's router. Clients, metrics and `status` read
snapshots. Owns the counts except `pending`, which is counted where the messages are. Not thread-safe.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tuplewire.text.formatting import html_table


class DropReason(enum.StrEnum):
    """The reasons for which an accepted message is dropped."""

    UNKNOWN_TASK = "unknown_task"
    """No worker of the assignment owns the task."""
    REFUSED = "refused"
    """The peer refused the message for another reason, which is logged."""
    TOO_LARGE = "too_large"
    """The message exceeds the peer's limit, which was unknown when the message was accepted."""
    OVERFLOW = "overflow"
    """The policy `drop_oldest` dropped the unwritten message to make space for newer ones."""
    CLOSED = "closed"
    """The sender was closed or aborted before the message was acknowledged."""
    SHUTDOWN = "shutdown"
    """The drain ended before a worker or consumer accepted the message, or a defect stopped its routing."""
    REJECTED = "rejected"
    """Consumers rejected the message too often, and there is no dead-letter task."""
    DEAD_LETTERED = "dead_lettered"
    """Consumers rejected the message too often, and the dead-letter task got a copy with the reason."""


@dataclass(frozen=True, slots=True)
class SettledMessages:
    """Messages that were acknowledged or dropped."""

    inbound: Any
    """The session that a worker received the messages on; None in a program."""
    task: int
    messages: int
    size_bytes: int
    drop_reason: DropReason | None
    """None if the messages were acknowledged."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The counts of a ledger at one time, in messages."""

    accepted: int = 0
    acknowledged: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """The messages that were dropped, by the value of DropReason."""
    pending: int = 0
    """Counted where the messages are, not derived from other counts."""

    def __add__(self, other: LedgerSnapshot) -> LedgerSnapshot:
        dropped = Counter(self.dropped)
        dropped.update(other.dropped)
        return LedgerSnapshot(
            self.accepted + other.accepted,
            self.acknowledged + other.acknowledged,
            dict(sorted(dropped.items())),
            self.pending + other.pending,
        )

    @property
    def balanced(self) -> bool:
        """True if accepted = acknowledged + dropped + pending."""
        return self.accepted == self.acknowledged + sum(self.dropped.values()) + self.pending

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [("accepted", self.accepted), ("acknowledged", self.acknowledged)]
        rows += [(f"dropped: {reason}", count) for reason, count in self.dropped.items() if count]
        title = "ledger (balanced)" if self.balanced else "ledger (NOT balanced: a defect, please report it)"
        return html_table(title, ("messages", "count"), [*rows, ("pending", self.pending)])

    def __str__(self) -> str:
        dropped = ", ".join(f"{reason} {count}" for reason, count in self.dropped.items() if count) or "0"
        sign = "=" if self.balanced else "!="
        return (
            f"accepted {self.accepted} {sign} acknowledged {self.acknowledged}"
            f" + dropped {dropped} + pending {self.pending}"
        )


@dataclass(slots=True, eq=False)
class Ledger:
    """Counts of accepted messages and of their outcomes. Not thread-safe."""

    accepted: int = 0
    acknowledged: int = 0
    dropped: dict[DropReason, int] = field(default_factory=lambda: dict.fromkeys(DropReason, 0))

    def snapshot(self, pending: int) -> LedgerSnapshot:
        """Return the balance, with `pending` as the number of messages that are held now."""
        return LedgerSnapshot(
            self.accepted,
            self.acknowledged,
            {reason.value: count for reason, count in self.dropped.items()},
            pending,
        )


@dataclass(slots=True)
class SendCounts:
    """Counts of written messages, frames and bytes, including repeated ones, and of connections."""

    messages: int = 0
    frames: int = 0
    bytes: int = 0
    connections: int = 0
