"""What a receiver has refused, in words, until whoever sent it asks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from tuplewire.connection.log_rate import LogRate
from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.receive import Refusal

logger = logging.getLogger(__name__)

_MOST_KEPT = 1000


class RefusedMessages:
    """Those of one session. Keeps a thousand texts at most; the log has one line a minute for each reason.

    Not thread-safe.
    """

    def __init__(self, address: str) -> None:
        """Begin without any. address: the receiver's."""
        self._address = address
        self._texts: list[str] = []
        self._log_rate = LogRate()

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Note what the receiver has refused."""
        counts: Counter[str] = Counter()
        examples: dict[str, Refusal] = {}
        for refusal in refusals:
            counts[refusal.code] += refusal.messages
            examples.setdefault(refusal.code, refusal)
            self._keep(_text(refusal))
        for code, count in counts.items():
            if messages := self._log_rate.due(code, count):
                extra = {"peer": self._address, "messages": messages, "reason": _text(examples[code])}
                logger.warning("messages.refused", extra=extra)

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


def _text(refusal: Refusal) -> str:
    owner = f" (owner: {refusal.owner})" if refusal.owner else ""
    return f"{refusal.code}: {refusal.messages} messages to task {refusal.task}: {refusal.detail}{owner}"
