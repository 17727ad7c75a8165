"""The settings that all transports have, read from a `prepare` configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Self

from tuplewire.config import MIB, SessionSettings, declared
from tuplewire.errors import ConfigError
from tuplewire.session.shares import QueueShares, Window

MIN_WINDOW_MESSAGES = 64

PREFIX = "tuplewire.transport."


def key_of(declaration: Field[Any]) -> str:
    """Return the key of a field of settings: one of its own, or its name after `tuplewire.transport.`."""
    key: str = declaration.metadata["key"]
    return key or PREFIX + declaration.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """How a transport listens and connects; the keys are these names after `tuplewire.transport.`."""

    worker_id: str = declared("", "how this side names itself to its peers; empty for a program")
    incarnation: int = declared(0, "differs at every start; 0: the time of it")
    host: str = declared("127.0.0.1", "the address to bind")
    receive_messages: int = declared(131_072, "what all senders together may have outstanding to one task")
    receive_bytes: int = declared(16 * MIB, "the same bound in payload bytes")
    max_sessions: int = declared(10_000, "sessions of senders that are remembered at once")
    session: SessionSettings = declared(SessionSettings(), "the settings of every session: SessionSettings")

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Self:
        """Take our keys out of a configuration; ConfigError names an unknown one of them.

        Ours are those of all transports, and what begins as this transport's own do (`tuplewire.grpc.`).
        """
        names = {key_of(each): each.name for each in fields(cls)}
        ours = {key[: key.rindex(".") + 1] for key in names if key.startswith("tuplewire.")}
        for key in conf:
            if key.startswith(tuple(ours)) and key not in names:
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
