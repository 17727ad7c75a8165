"""What connections may take up, above all before anybody has said who they are, and how old one may get."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.settings import SECONDS, Settings, count, setting

_MOST = 2**31 - 1
"""What gRPC takes as a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits(Settings):
    """Limits of one bound server. All but the hello's are gRPC's to keep; other transports have their own."""

    PREFIX = "tuplewire.limits."

    max_connections: int = setting(
        count(1, _MOST), 10_000, "connections to one address at once; further ones are closed at once"
    )
    max_connection_streams: int = setting(
        count(1, _MOST), 1000, "streams that one connection may have open at once; clients of ours have one"
    )
    max_silent_streams: int = setting(
        count(),
        1000,
        "streams of all connections that have not said hello yet; with one more, the oldest one is refused",
    )
    hello_seconds: float = setting(
        SECONDS, 10.0, "how long a connection may take for its handshake, and a stream for its hello"
    )
    idle_connection_seconds: float = setting(
        SECONDS, 300.0, "a connection without any stream or call is closed after this time"
    )
    max_connection_seconds: float = setting(
        SECONDS,
        3600.0,
        "with TLS, a connection of this age (give or take a tenth) ends, so that its certificate is checked "
        "again; sessions go on over another one",
    )
