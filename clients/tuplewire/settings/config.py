"""The settings of a session, from a client or between workers.

Used by clients, sessions, Spark's options, transports and the settings of workers. Owns no state.
Thread-safe. Design: docs/design/rows-and-memory.md (settings), docs/design/sessions.md (waits and timeouts).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from math import isnan
from numbers import Real
from typing import Any, Literal, TypedDict

from tuplewire.errors import ConfigError
from tuplewire.settings.keywords import expand_keywords
from tuplewire.settings.settings import (
    SECONDS,
    SECONDS_OR_INF,
    SECONDS_OR_ZERO,
    SIZE,
    Settings,
    choice,
    integer,
    setting,
    settings_of,
)

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1


class AckMode(enum.StrEnum):
    """The event that acknowledges a message; see the setting `ack_mode`."""

    QUEUED = "queued"
    PROCESSED = "processed"


class Overflow(enum.StrEnum):
    """The behavior of `send` at the limit on pending messages; see the setting `overflow`."""

    BLOCK = "block"
    FAIL = "fail"
    DROP_OLDEST = "drop_oldest"
    """Drop the oldest messages that were never sent, as few as possible. Sent messages may have arrived, so
    they remain. If they alone leave no space, wait as with `block`."""


class RejectOrder(enum.StrEnum):
    """The order of a task's messages after a consumer rejects one; see the setting `reject_order`."""

    CONTINUE = "continue"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings(Settings):
    """The settings of a session. Sizes are in bytes, times in seconds."""

    PREFIX = "tuplewire.session."

    ack_mode: AckMode = setting(
        choice(AckMode),
        AckMode.QUEUED,
        "when a message counts as acknowledged: when a worker has queued it (queued), or when its consumer "
        "has acknowledged it (processed)",
    )
    overflow: Overflow = setting(
        choice(Overflow),
        Overflow.BLOCK,
        "behavior of send at a max_pending limit: wait for space (block), raise BufferFullError (fail), or "
        "drop the oldest messages that were never sent (drop_oldest)",
    )
    max_pending_messages: int = setting(integer(), 262_144, "maximum number of unacknowledged messages")
    max_pending_bytes: int = setting(
        SIZE, 64 * MIB, "maximum pending bytes", storm="storm.messaging.netty.buffer.high.watermark"
    )
    max_pending_task_messages: int = setting(
        integer(), 131_072, "maximum pending messages to one task; if it stalls, others still have space"
    )
    max_block_seconds: float = setting(
        SECONDS, 60.0, "maximum time that send waits for space, unless the caller passes a timeout"
    )
    flush_timeout_seconds: float = setting(
        SECONDS_OR_INF,
        30.0,
        "maximum time that flush, close and the end of a `with` block wait for acknowledgements, unless the "
        "caller passes a timeout; inf: no limit",
    )
    connect_timeout_seconds: float = setting(
        SECONDS_OR_INF,
        30.0,
        "maximum time that recv waits until a worker accepts it, unless the caller passes a timeout; inf: no "
        "limit",
    )
    max_message_bytes: int = setting(SIZE, 1 * MIB, "maximum size of a message, including key and headers")
    max_frame_bytes: int = setting(
        SIZE, 1 * MIB, "size at which a frame is closed", storm="storm.messaging.netty.transfer.batch.size"
    )
    linger_seconds: float = setting(
        SECONDS_OR_ZERO,
        0.001,
        "interval between small frames in a continuous stream, so that each frame collects several messages; "
        "a single frame, or one after an acknowledgement, is not delayed; 0: no delay",
        storm="topology.batch.flush.interval.millis",
    )
    keepalive_seconds: float = setting(
        SECONDS,
        2.0,
        "idle time before a connection is checked; it is closed if no response arrives in the same time",
    )
    backoff_initial_seconds: float = setting(
        SECONDS,
        0.05,
        "maximum wait before the first reconnect; it doubles each time, with full jitter",
        storm="storm.messaging.netty.min_wait_ms",
    )
    backoff_max_seconds: float = setting(
        SECONDS, 2.0, "maximum wait between reconnects", storm="storm.messaging.netty.max_wait_ms"
    )
    load_expiry_seconds: float = setting(
        SECONDS, 10.0, "time after which a task's load expires if it is not reported again"
    )
    prefetch_messages: int = setting(
        integer(), 131_072, "maximum number of a task's unacknowledged messages at a consumer"
    )
    prefetch_bytes: int = setting(SIZE, 16 * MIB, "maximum bytes of the messages of prefetch_messages")
    reject_order: RejectOrder = setting(
        choice(RejectOrder),
        RejectOrder.CONTINUE,
        "order after a rejection: the message is redelivered behind later ones of its task (continue), or "
        "later ones wait, and are redelivered behind it (wait)",
    )

    def _check(self) -> None:
        if self.max_pending_bytes < self.max_message_bytes:
            raise ConfigError(
                f"max_pending_bytes ({self.max_pending_bytes}) must be at least "
                f"max_message_bytes ({self.max_message_bytes})"
            )

    def send_timeout(self, timeout: float | None) -> float:
        """Return the maximum wait of send() in seconds: `timeout`, or as configured; 0 with overflow=fail."""
        caller_timeout = check_timeout(timeout)
        if self.overflow is Overflow.FAIL:
            return 0.0
        return self.max_block_seconds if caller_timeout is None else caller_timeout

    def flush_timeout(self, timeout: float | None) -> float:
        """Return the seconds to wait for acknowledgements. timeout: the caller's; None: as configured."""
        given = check_timeout(timeout)
        return self.flush_timeout_seconds if given is None else given

    @property
    def max_request_bytes(self) -> int:
        """Maximum size of a session's gRPC message: a full frame, one more message, and the columns."""
        return 2 * self.max_frame_bytes + self.max_message_bytes + MIB


def check_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """Return a timeout in seconds. Raises ConfigError if it is neither None nor a number."""
    if timeout is None or (isinstance(timeout, Real) and not isnan(timeout)):
        return None if timeout is None else float(timeout)
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
    flush_timeout_seconds: float
    connect_timeout_seconds: float
    max_message_bytes: int
    max_frame_bytes: int
    linger_seconds: float
    keepalive_seconds: float
    backoff_initial_seconds: float
    backoff_max_seconds: float
    load_expiry_seconds: float
    prefetch_messages: int
    prefetch_bytes: int
    reject_order: RejectOrder | Literal["continue", "wait"]


expand_settings = expand_keywords(
    SessionKeywords,
    {name: each.kind.to_plain(each.default) for name, each in settings_of(SessionSettings).items()},
    [(name, each.help) for name, each in settings_of(SessionSettings).items()],
)
"""Decorates functions that accept SessionKeywords."""
