"""The settings of a worker: its name, topology and limits.

Used by config/ and by most modules of worker/. Owns no state. Thread-safe.
Design: docs/design/rows-and-memory.md (settings).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.settings.addresses import check_text
from tuplewire.settings.config import MIB, AckMode, Overflow, SessionSettings
from tuplewire.settings.settings import (
    REQUIRED,
    SECONDS,
    SIZE,
    Settings,
    integer,
    nested,
    setting,
    setting_like,
    string,
)
from tuplewire.values.task_ids import TASK
from tuplewire_service.messaging.transport_settings import TransportSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(Settings):
    """The settings of a worker's event loop. `session` applies to its connections to other workers."""

    worker_id: str = setting(string("ID"), REQUIRED, "name of this worker, unique in the topology")
    topology: str = setting(string(), "default", "topology to serve", storm="topology.name")
    receive_queue_messages: int = setting(
        integer(),
        131_072,
        "maximum messages in a task's receive queue, or held for a remote task; 64 or more per sender",
        storm="topology.executor.receive.buffer.size",
    )
    receive_queue_bytes: int = setting(
        SIZE, 16 * MIB, "maximum bytes of receive_queue_messages, with keys and headers"
    )
    reject_limit: int = setting(
        integer(), 5, "rejections of a message until it is dropped, or moved to dead_letter_task if set"
    )
    dead_letter_task: int | None = setting(
        TASK, None, "task for messages that were rejected too often (default: they are dropped)"
    )
    staging_memory_bytes: int = setting(
        SIZE, 64 * MIB, "memory for messages of Spark's sinks, for all tasks, until they are in the queues"
    )
    staging_disk_bytes: int = setting(
        SIZE, 4096 * MIB, "disk space for messages above staging_memory_bytes; a micro-batch must fit"
    )
    staging_directory: str | None = setting(
        string("DIRECTORY"), None, "directory for unnamed files of staged messages (default: the system's)"
    )
    staging_expiry_seconds: float = setting(
        SECONDS, 3600.0, "idle time after which a sink's unpublished messages expire"
    )
    resume_seconds: float = setting_like(TransportSettings, "resume_seconds")
    max_connections: int = setting_like(TransportSettings, "max_connections")
    max_connection_age_seconds: float = setting_like(TransportSettings, "max_connection_age_seconds")
    metrics_series: int = setting(
        integer(),
        1000,
        "maximum number of tasks, of workers and of identities with separate series in the metrics; the "
        "others are summed as `other`",
    )
    session: SessionSettings = nested(SessionSettings)

    def _check(self) -> None:
        for name in ("worker_id", "topology"):
            check_text(f"{name} {getattr(self, name)!r}", getattr(self, name))
        if self.receive_queue_bytes < self.session.max_message_bytes:
            raise ConfigError(
                f"receive_queue_bytes ({self.receive_queue_bytes}) must be at least max_message_bytes "
                f"({self.session.max_message_bytes})"
            )


def transport_settings(settings: WorkerSettings, incarnation: int) -> dict[str, Any]:
    """Return the settings that all transports of a worker share, as fields of TransportSettings."""
    return {
        "worker_id": settings.worker_id,
        "incarnation": incarnation,
        "receive_messages": settings.receive_queue_messages,
        "receive_bytes": settings.receive_queue_bytes,
        "resume_seconds": settings.resume_seconds,
        "session": peer_session(settings.session),
        "max_connections": settings.max_connections,
        "max_connection_age_seconds": settings.max_connection_age_seconds,
    }


def peer_session(settings: SessionSettings) -> SessionSettings:
    """Return the settings of a session between workers.

    It has no limit of its own, because all its messages have credit at their entry worker. A limit here would
    let one stalled task block the others. Each message states whether it is kept until it is consumed.
    """
    return replace(
        settings,
        ack_mode=AckMode.QUEUED,
        overflow=Overflow.BLOCK,
        max_pending_messages=sys.maxsize,
        max_pending_task_messages=sys.maxsize,
        max_pending_bytes=sys.maxsize,
    )
