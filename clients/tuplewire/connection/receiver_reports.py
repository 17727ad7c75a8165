"""A receiver's reports of refused and lost messages. Not thread-safe. Design: docs/design/sessions.md."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from tuplewire.session.ledger import DropReason, SettledMessages
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.text.formatting import counted
from tuplewire.wire.messaging_pb2 import Refusal
from tuplewire.wire.translate import code_name

logger = event_logger(__name__)

_MAX_TEXTS = 1000


def log_lost(address: str, messages: int) -> None:
    """Log an upper bound on the number of messages that were lost with a receiver."""
    if messages:
        reason = "the receiver failed; `messages` is an upper bound; see ack_mode=processed"
        extra = {"address": address, "messages": messages, "reason": reason}
        logger.warning("messages.possibly_lost", extra=extra)


class RefusedMessages:
    """The refused messages of one session, as text, that no call to flush() has reported.

    Stores at most 1,000 texts, and logs at most one line a minute for each reason. address: the receiver's.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._texts: list[str] = []
        self._to_log: deque[dict[str, object]] = deque()
        self._log_rate = LogRateLimiter()

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Add the receiver's refusals."""
        counts: Counter[int] = Counter()
        examples: dict[int, Refusal] = {}
        for refusal in refusals:
            counts[refusal.code] += refusal.messages
            examples.setdefault(refusal.code, refusal)
            self._store(_text(refusal))
        for code, count in counts.items():
            # Only queued here: the caller holds a lock, which a logging handler that sends would need.
            if messages := self._log_rate.count_event(code, count):
                self._to_log.append({"messages": messages, "reason": _text(examples[code])})

    def log(self) -> None:
        """Write the pending log records. The caller must not hold a lock: a logging handler may send."""
        while self._to_log:
            logger.warning("messages.refused", extra={"address": self._address, **self._to_log.popleft()})

    def add_too_large(self, settled: Iterable[SettledMessages], limit_bytes: int) -> None:
        """Add the settled messages that exceed the receiver's size limit."""
        for each in settled:
            if each.drop_reason is DropReason.TOO_LARGE:
                self._store(
                    f"MESSAGE_TOO_LARGE: {counted(each.messages, 'message')} to task {each.task}, "
                    f"{each.size_bytes} bytes in total: the receiver's limit is {limit_bytes} each"
                )

    def _store(self, text: str) -> None:
        if len(self._texts) < _MAX_TEXTS:
            self._texts.append(text)

    def take_texts(self) -> list[str]:
        """Return and clear the texts added since the last call, at most 1,000."""
        texts, self._texts = self._texts, []
        return texts


def _text(refusal: Refusal) -> str:
    owner = f" (owner: {refusal.owner_address})" if refusal.owner_address else ""
    code = code_name(refusal.code)
    return f"{code}: {counted(refusal.messages, 'message')} to task {refusal.task}: {refusal.detail}{owner}"
