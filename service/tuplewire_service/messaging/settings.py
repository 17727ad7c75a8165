"""The settings that all transports have, read from a `prepare` configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tuplewire.config import MIB, SessionSettings
from tuplewire.errors import ConfigError
from tuplewire.session.shares import QueueShares, Window

MIN_WINDOW_MESSAGES = 64

PREFIX = "tuplewire.transport."


def keyed(key: str, default: Any) -> Any:
    """Return a dataclass field that is configured by a key of its own."""
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """How a transport listens and connects; the keys are these names after `tuplewire.transport.`.

    worker_id: how this side names itself to peers; empty for a program.
    incarnation: differs at every start (0: the time of it).
    host: the address to bind.
    receive_messages, receive_bytes: what all senders together may have outstanding to one task.
    max_sessions: sender sessions that are remembered at once.
    session: settings of every session.
    """

    worker_id: str = ""
    incarnation: int = 0
    host: str = "127.0.0.1"
    receive_messages: int = 131_072
    receive_bytes: int = 16 * MIB
    max_sessions: int = 10_000
    session: SessionSettings = field(default_factory=SessionSettings)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Self:
        """Take our keys out of a configuration; ConfigError names an unknown one of them."""
        names = {each.metadata.get("key", PREFIX + each.name): each.name for each in fields(cls)}
        for key in conf:
            if key.startswith(PREFIX) and key not in names:
                raise ConfigError(f"unknown setting {key!r}; known are: {', '.join(names)}")
        settings = {name: conf[key] for key, name in names.items() if key in conf}
        settings["incarnation"] = settings.get("incarnation") or time.time_ns()
        return cls(**settings)

    def shares(self) -> QueueShares:
        """Return how a task's queue is shared out between sessions."""
        return QueueShares(
            Window(self.receive_messages, self.receive_bytes),
            Window(MIN_WINDOW_MESSAGES, self.session.max_message_bytes),
        )
