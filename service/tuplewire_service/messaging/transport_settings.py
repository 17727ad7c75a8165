"""The settings that all transports share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from tuplewire.settings.config import MIB, SessionSettings
from tuplewire.settings.settings import ANY_TEXT, SECONDS, SIZE, Settings, integer, nested, setting, string
from tuplewire_service.messaging.factory import TRANSPORT_KEY

_MAX_INT32 = 2**31 - 1
"""The largest number that gRPC accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings(Settings):
    """The settings of listening and connecting. `session` applies to its sessions."""

    PREFIX = "tuplewire.transport."
    REFUSED: ClassVar[tuple[str, ...]] = ("storm.messaging.", "zmq.")
    PASSED = (TRANSPORT_KEY, "zmq.threads", "zmq.linger.millis", "zmq.hwm")

    worker_id: str = setting(ANY_TEXT, "", "id of this side, as reported to its peers; empty for a program")
    incarnation: int = setting(integer(0, 2**64 - 1), 0, "number, higher at each start; 0: the start time")
    host: str = setting(string("HOST"), "127.0.0.1", "address to bind")
    receive_messages: int = setting(
        integer(), 131_072, "maximum number of outstanding messages of all senders to one task"
    )
    receive_bytes: int = setting(SIZE, 16 * MIB, "maximum bytes of receive_messages, with keys and headers")
    resume_seconds: float = setting(
        SECONDS, 3600.0, "time for which a disconnected sender can resume its session"
    )
    max_connections: int = setting(
        integer(1, _MAX_INT32),
        4000,
        "maximum number of open gRPC connections to one address; further ones are closed immediately",
    )
    max_connection_age_seconds: float = setting(
        SECONDS,
        3600.0,
        "approximate age at which a TLS connection is closed, so that its certificate is checked again; its "
        "sessions continue over a new connection",
    )
    session: SessionSettings = nested(SessionSettings)

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> None:
        # The time grows with every start, and receivers refuse a sender with a lower incarnation as stale.
        values["incarnation"] = values.get("incarnation") or time.time_ns()
