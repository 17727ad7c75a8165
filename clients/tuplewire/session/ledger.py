"""The ledger: accepted = acknowledged + dropped{reason} + pending, always."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tuplewire.text.html_table import html_table


class DropReason(enum.StrEnum):
    """Every reason for which an accepted message is given up."""

    UNKNOWN_TASK = "unknown_task"
    """No worker of the assignment holds the task."""
    REFUSED = "refused"
    """The peer refused it for another reason; the log has it."""
    TOO_LARGE = "too_large"
    """The peer, whose limit was not known yet, takes no message of this size."""
    OVERFLOW = "overflow"
    """It was not sent yet, and gave way to newer ones, as the policy `drop_oldest` says."""
    CLOSED = "closed"
    """The sender was closed or aborted before it was acknowledged."""
    SHUTDOWN = "shutdown"
    """The drain's deadline passed before anybody took it."""
    REJECTED = "rejected"
    """Consumers rejected it too often, and there is no dead-letter task."""
    DEAD_LETTERED = "dead_lettered"
    """The same, and a copy of it, with the reason, went to the dead-letter task."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Settled messages, acknowledged or dropped for a reason, and the token that came with them."""

    token: Any
    task: int
    messages: int
    size_bytes: int
    dropped: DropReason | None


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A balance in messages; `pending` is counted where the messages are, and not derived."""

    accepted: int = 0
    acknowledged: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    pending: int = 0

    def __add__(self, other: LedgerSnapshot) -> LedgerSnapshot:
        """Return the balance of both together."""
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
        """Whether it adds up."""
        return self.accepted == self.acknowledged + sum(self.dropped.values()) + self.pending

    def _repr_html_(self) -> str:
        """Return the balance as a table, for notebooks."""
        rows: list[tuple[str, object]] = [("accepted", self.accepted), ("acknowledged", self.acknowledged)]
        rows += [(f"dropped: {reason}", count) for reason, count in self.dropped.items() if count]
        title = "ledger, which balances" if self.balanced else "ledger, which DOES NOT BALANCE"
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
    """Counts accepted messages and what became of them."""

    accepted: int = 0
    acknowledged: int = 0
    dropped: dict[DropReason, int] = field(default_factory=lambda: dict.fromkeys(DropReason, 0))

    def snapshot(self, pending: int) -> LedgerSnapshot:
        """Return the balance. pending: how many messages are held now."""
        return LedgerSnapshot(
            self.accepted,
            self.acknowledged,
            {reason.value: count for reason, count in self.dropped.items()},
            pending,
        )


@dataclass(slots=True)
class SendCounts:
    """What was given out to be written, including what was written again."""

    messages: int = 0
    frames: int = 0
    bytes: int = 0
    connections: int = 0
