"""Frozen, validated settings of a session, shared by the client and the gRPC transport."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields
from typing import Any, Self

from tuplewire.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session behaves. Sizes are in bytes, times in seconds.

    max_pending_messages, max_pending_bytes: the bound on what is accepted but not acknowledged.
    max_pending_task_messages: the same for one task, so that a stopped task leaves room for the others.
    max_block_seconds: how long a send waits for room that is given no timeout of its own.
    max_message_bytes: the largest payload. max_frame_bytes: a frame is closed once it holds this much.
    keepalive_seconds, keepalive_timeout_seconds: a silent peer is given up after their sum.
    backoff_initial_seconds, backoff_max_seconds: full jitter between reconnects, doubling up to the cap.
    prefetch_messages, prefetch_bytes: what a consumer takes in per task before it acknowledges.
    """

    ack_mode: AckMode = AckMode.QUEUED
    overflow: Overflow = Overflow.BLOCK
    max_pending_messages: int = 262_144
    max_pending_bytes: int = 64 * MIB
    max_pending_task_messages: int = 131_072
    max_block_seconds: float = 60.0
    max_message_bytes: int = 1 * MIB
    max_frame_bytes: int = 1 * MIB
    keepalive_seconds: float = 2.0
    keepalive_timeout_seconds: float = 2.0
    backoff_initial_seconds: float = 0.05
    backoff_max_seconds: float = 2.0
    prefetch_messages: int = 131_072
    prefetch_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = type(field.default)
            if issubclass(kind, enum.Enum):
                object.__setattr__(self, field.name, _member(kind, field.name, value))
            elif isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
                raise ConfigError(f"{field.name} must be {_NUMBERS[kind]}, not {value!r}")
            elif not 0 < value < math.inf:
                raise ConfigError(f"{field.name} must be more than 0, not {value!r}")
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
        known = [field.name for field in fields(cls)]
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
