"""The settings of the gRPC transport, read from a `prepare` configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from tuplewire.config import MIB, SessionSettings
from tuplewire.errors import ConfigError
from tuplewire.session.credit import Window

MIN_WINDOW_MESSAGES = 64

_PREFIX = "tuplewire.grpc."


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """How the transport listens and connects; the keys are these names after `tuplewire.grpc.`.

    worker_id: how this side names itself to peers; empty for a program.
    incarnation: differs at every start (0: the time of it).
    host: the address to bind. listen: further addresses to bind (`unix:///path`, `host:port`).
    services: gRPC handlers to serve on the same server.
    receive_messages, receive_bytes: what all senders together may have outstanding to one task.
    max_sessions: sender sessions that are remembered at once.
    session: settings of every session.
    """

    worker_id: str = ""
    incarnation: int = 0
    host: str = "127.0.0.1"
    listen: Sequence[str] = ()
    services: Sequence[grpc.GenericRpcHandler] = ()
    receive_messages: int = 131_072
    receive_bytes: int = 16 * MIB
    max_sessions: int = 10_000
    session: SessionSettings = field(default_factory=SessionSettings)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> GrpcSettings:
        """Take our keys out of a configuration; ConfigError names an unknown one of them."""
        known = list(cls.__slots__)
        settings = {}
        for key, value in conf.items():
            if not key.startswith(_PREFIX):
                continue
            name = key.removeprefix(_PREFIX)
            if name not in known:
                raise ConfigError(
                    f"unknown setting {key!r}; known are: {', '.join(_PREFIX + each for each in known)}"
                )
            settings[name] = value
        settings["incarnation"] = settings.get("incarnation") or time.time_ns()
        return cls(**settings)

    def window(self, sessions: int) -> Window:
        """Return the share of each of so many sessions in one task's receive queue."""
        sessions = max(1, sessions)
        return Window(
            max(MIN_WINDOW_MESSAGES, self.receive_messages // sessions),
            max(self.session.max_message_bytes, self.receive_bytes // sessions),
        )
