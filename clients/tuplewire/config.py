"""Frozen, validated settings of a session, shared by the client and the gRPC transport."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tuplewire.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1

ENVIRONMENT_PREFIX = "TUPLEWIRE_"
"""How the names of our variables begin."""


class AckMode(enum.StrEnum):
    """When a message counts as acknowledged."""

    QUEUED = "queued"
    """Once the worker has it in a queue."""
    PROCESSED = "processed"
    """Once its consumer has acknowledged it."""


class Overflow(enum.StrEnum):
    """What `send` does when the bound on pending messages is reached."""

    BLOCK = "block"
    """Wait for room, at most for the timeout."""
    FAIL = "fail"
    """Raise BufferFullError at once."""
    DROP_OLDEST = "drop_oldest"
    """Give up the oldest messages that were never sent, no more than needed. What was sent may have arrived
    and stays; where it alone leaves no room, wait for room as with `block`."""


def declared(default: Any, effect: str, *, storm: str = "", key: str = "") -> Any:
    """Declare a field of settings: its default, what it does, and Storm's key for the same, if any.

    key: where it has one of its own in a configuration. service/SETTINGS.md is made of these.
    """
    return field(default=default, metadata={"help": effect, "storm": storm, "key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session behaves: each field says what it does. Sizes are in bytes, times in seconds."""

    ack_mode: AckMode = declared(
        AckMode.QUEUED,
        "when a message counts as acknowledged: once a worker has it in a queue (queued), or once its "
        "consumer has acknowledged it (processed)",
    )
    overflow: Overflow = declared(
        Overflow.BLOCK,
        "what send does at a bound of max_pending: wait for room (block), raise BufferFullError (fail), or "
        "give up the oldest messages that were never sent (drop_oldest)",
    )
    max_pending_messages: int = declared(262_144, "the bound on what is accepted and not acknowledged")
    max_pending_bytes: int = declared(
        64 * MIB, "the same bound in payload bytes", storm="storm.messaging.netty.buffer.high.watermark"
    )
    max_pending_task_messages: int = declared(
        131_072, "the bound for one task, so that a stopped task leaves room for the others"
    )
    max_block_seconds: float = declared(
        60.0, "how long a send waits for room that is given no timeout of its own"
    )
    max_message_bytes: int = declared(1 * MIB, "the largest payload of one message")
    max_frame_bytes: int = declared(
        1 * MIB,
        "a frame is closed once it holds this much",
        storm="storm.messaging.netty.transfer.batch.size",
    )
    keepalive_seconds: float = declared(2.0, "a connection is checked after this much silence")
    keepalive_timeout_seconds: float = declared(
        2.0, "and given up when the check is not answered in this time"
    )
    backoff_initial_seconds: float = declared(
        0.05,
        "the longest wait before the first reconnect; it doubles each time, with full jitter",
        storm="storm.messaging.netty.min_wait_ms",
    )
    backoff_max_seconds: float = declared(
        2.0, "the longest wait between reconnects", storm="storm.messaging.netty.max_wait_ms"
    )
    load_expires_seconds: float = declared(
        10.0, "a task's reported load is forgotten when it is not reported again in this time"
    )
    prefetch_messages: int = declared(
        131_072, "how many messages of a task a consumer takes in before it acknowledges"
    )
    prefetch_bytes: int = declared(16 * MIB, "the same bound in payload bytes")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            kind = type(each.default)
            if issubclass(kind, enum.Enum):
                object.__setattr__(self, each.name, _member(kind, each.name, value))
            elif isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
                raise ConfigError(f"{each.name} must be {_NUMBERS[kind]}, not {value!r}")
            elif not 0 < value < math.inf:
                raise ConfigError(f"{each.name} must be more than 0, not {value!r}")
        if self.max_pending_bytes < self.max_message_bytes:
            raise ConfigError(
                f"max_pending_bytes ({self.max_pending_bytes}) must be at least "
                f"max_message_bytes ({self.max_message_bytes})"
            )

    def patience(self, timeout: float | None) -> float:
        """Return how long a send without room waits, given what its caller allows; None: as configured."""
        if self.overflow is Overflow.FAIL:
            return 0.0
        return self.max_block_seconds if timeout is None else timeout

    @property
    def max_request_bytes(self) -> int:
        """The largest gRPC message of a session: a full frame, one more message, and the columns."""
        return 2 * self.max_frame_bytes + self.max_message_bytes + MIB

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Build from keywords; ConfigError names an unknown one and lists the known ones."""
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                raise ConfigError(f"unknown setting {name!r}; known are: {', '.join(known)}")
        return cls(**settings)


_NUMBERS = {int: "a whole number", float: "a number"}


def _member(kind: type[enum.Enum], name: str, value: Any) -> enum.Enum:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{name} must be one of {known}, not {value!r}") from error
