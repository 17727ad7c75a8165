"""The settings of a session, wherever it begins: in a client, or between workers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from math import isnan
from numbers import Real
from typing import Any, Literal, TypedDict

from tuplewire.errors import ConfigError
from tuplewire.settings.keywords import naming
from tuplewire.settings.settings import (
    SECONDS,
    SECONDS_OR_EVER,
    SECONDS_OR_ZERO,
    SIZE,
    Settings,
    choice,
    count,
    setting,
    settings_of,
)

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1
_AFTER_ERROR_SECONDS = 10.0


class AckMode(enum.StrEnum):
    """When a message counts as acknowledged; the setting `ack_mode` says what each means."""

    QUEUED = "queued"
    PROCESSED = "processed"


class Overflow(enum.StrEnum):
    """What `send` does when the bound on pending messages is reached."""

    BLOCK = "block"
    """Wait for room, at most for the timeout."""
    FAIL = "fail"
    """Raise BufferFullError at once."""
    DROP_OLDEST = "drop_oldest"
    """Give up the oldest messages that were never sent, no more than needed. Sent messages may have arrived,
    and stay. If they alone leave no room, wait as with `block`."""


class RejectOrder(enum.StrEnum):
    """What a consumer's rejected message means to the other messages of its task."""

    GO_ON = "go_on"
    """They go on, and it comes again behind them."""
    WAIT = "wait"
    """Later ones wait, and come again behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings(Settings):
    """How a session behaves: each field says what it does. Sizes are in bytes, times in seconds."""

    PREFIX = "tuplewire.session."

    ack_mode: AckMode = setting(
        choice(AckMode),
        AckMode.QUEUED,
        "when a message counts as acknowledged: once a worker has it in a queue (queued), or once its "
        "consumer has acknowledged it (processed)",
    )
    overflow: Overflow = setting(
        choice(Overflow),
        Overflow.BLOCK,
        "what send does at a bound of max_pending: wait for room (block), raise BufferFullError (fail), or "
        "give up the oldest messages that were never sent (drop_oldest)",
    )
    max_pending_messages: int = setting(
        count(), 262_144, "the bound on what is accepted and not acknowledged"
    )
    max_pending_bytes: int = setting(
        SIZE, 64 * MIB, "the same bound in payload bytes", storm="storm.messaging.netty.buffer.high.watermark"
    )
    max_pending_task_messages: int = setting(
        count(), 131_072, "the bound for one task, so that a stopped task leaves room for the others"
    )
    max_block_seconds: float = setting(
        SECONDS, 60.0, "how long send waits for room when the caller gives no timeout"
    )
    flush_seconds: float = setting(
        SECONDS_OR_EVER,
        30.0,
        "how long flush, close and the end of a `with` block wait for acknowledgements when the caller gives "
        "no timeout; inf: for ever",
    )
    connect_seconds: float = setting(
        SECONDS_OR_EVER,
        30.0,
        "how long recv waits for a worker that has not let it in yet, when the caller gives no timeout; inf: "
        "for ever",
    )
    max_message_bytes: int = setting(SIZE, 1 * MIB, "the largest message, key and headers included")
    max_frame_bytes: int = setting(
        SIZE,
        1 * MIB,
        "a frame is closed once it holds this much",
        storm="storm.messaging.netty.transfer.batch.size",
    )
    gather_seconds: float = setting(
        SECONDS_OR_ZERO,
        0.001,
        "small frames that go on coming are written so far apart, so that each gathers what comes meanwhile; "
        "what comes alone, or follows an acknowledgement, is written at once; 0: everything is",
        storm="topology.batch.flush.interval.millis",
    )
    keepalive_seconds: float = setting(
        SECONDS,
        2.0,
        "a silent connection is checked after this time, and closed if no answer arrives in the same time",
    )
    backoff_initial_seconds: float = setting(
        SECONDS,
        0.05,
        "the longest wait before the first reconnect; it doubles each time, with full jitter",
        storm="storm.messaging.netty.min_wait_ms",
    )
    backoff_max_seconds: float = setting(
        SECONDS, 2.0, "the longest wait between reconnects", storm="storm.messaging.netty.max_wait_ms"
    )
    load_expires_seconds: float = setting(
        SECONDS, 10.0, "a task's reported load is forgotten when it is not reported again in this time"
    )
    prefetch_messages: int = setting(
        count(), 131_072, "how many messages of a task a consumer takes in before it acknowledges"
    )
    prefetch_bytes: int = setting(SIZE, 16 * MIB, "the same bound in payload bytes")
    reject_order: RejectOrder = setting(
        choice(RejectOrder),
        RejectOrder.GO_ON,
        "what a rejected message means to later ones of its task: they go on, and it comes again behind them "
        "(go_on), or they wait, and come again behind it (wait)",
    )

    def _check(self) -> None:
        if self.max_pending_bytes < self.max_message_bytes:
            raise ConfigError(
                f"max_pending_bytes ({self.max_pending_bytes}) must be at least "
                f"max_message_bytes ({self.max_message_bytes})"
            )

    def patience(self, timeout: float | None) -> float:
        """Return how long a send without room waits, given what its caller allows; None: as configured."""
        given = checked_timeout(timeout)
        if self.overflow is Overflow.FAIL:
            return 0.0
        return self.max_block_seconds if given is None else given

    def flush_patience(self, timeout: float | None) -> float:
        """Return how long to wait for acknowledgements, given what the caller allows; None: as configured."""
        given = checked_timeout(timeout)
        return self.flush_seconds if given is None else given

    @property
    def patience_after_error(self) -> float:
        """How long a client that is left by an error waits for acknowledgements."""
        return min(self.flush_seconds, _AFTER_ERROR_SECONDS)

    @property
    def max_request_bytes(self) -> int:
        """The largest gRPC message of a session: a full frame, one more message, and the columns."""
        return 2 * self.max_frame_bytes + self.max_message_bytes + MIB


def checked_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """Return a timeout in seconds; ConfigError if it is not None or a number."""
    seconds: Any = timeout
    if timeout is None or (isinstance(timeout, Real) and not isnan(timeout)):
        return None if seconds is None else float(seconds)
    hint = "; pass its .total_seconds()" if isinstance(timeout, timedelta) else ""
    raise ConfigError(f"{name} is a number of seconds, not {timeout!r:.100}{hint}")


class SessionKeywords(TypedDict, total=False):
    """The fields of SessionSettings as keyword arguments, for editors and type checkers."""

    ack_mode: AckMode | Literal["queued", "processed"]
    overflow: Overflow | Literal["block", "fail", "drop_oldest"]
    max_pending_messages: int
    max_pending_bytes: int
    max_pending_task_messages: int
    max_block_seconds: float
    flush_seconds: float
    connect_seconds: float
    max_message_bytes: int
    max_frame_bytes: int
    gather_seconds: float
    keepalive_seconds: float
    backoff_initial_seconds: float
    backoff_max_seconds: float
    load_expires_seconds: float
    prefetch_messages: int
    prefetch_bytes: int
    reject_order: RejectOrder | Literal["go_on", "wait"]


naming_settings = naming(
    SessionKeywords,
    {name: each.kind.plain(each.default) for name, each in settings_of(SessionSettings).items()},
)
"""Decorates what takes SessionKeywords."""
