"""What a receiver has refused, in words, until whoever sent it asks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.receive import Refusal

logger = logging.getLogger(__name__)

_MOST_KEPT = 1000


class RefusedMessages:
    """Those of one session. Keeps a thousand texts at most; the log has all that a receiver has said.

    Not thread-safe.
    """

    def __init__(self, address: str) -> None:
        """Begin without any. address: the receiver's."""
        self._address = address
        self._texts: list[str] = []

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Note what the receiver has refused."""
        for refusal in refusals:
            owner = f" (owner: {refusal.owner})" if refusal.owner else ""
            text = (
                f"{refusal.code}: {refusal.messages} messages to task {refusal.task}: {refusal.detail}{owner}"
            )
            logger.warning("messages.refused", extra={"peer": self._address, "reason": text})
            self._keep(text)

    def add_too_large(self, settled: Iterable[Settled], limit_bytes: int) -> None:
        """Note those of the settled messages that are larger than the receiver takes."""
        for each in settled:
            if each.dropped is DropReason.TOO_LARGE:
                self._keep(
                    f"MESSAGE_TOO_LARGE: {each.messages} messages to task {each.task}, "
                    f"{each.size_bytes} bytes in all: the receiver takes {limit_bytes} bytes at most"
                )

    def _keep(self, text: str) -> None:
        if len(self._texts) < _MOST_KEPT:
            self._texts.append(text)

    def take(self) -> list[str]:
        """Return what was noted since the last call."""
        texts, self._texts = self._texts, []
        return texts
