"""Frozen, validated settings of a worker."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from tuplewire.config import MIB, SessionSettings
from tuplewire.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is and how much it holds. Sizes are in bytes, times in seconds.

    worker_id: unique in the topology. topology: the one it serves.
    receive_queue_messages, receive_queue_bytes: the bound of one task's queue, and of what this worker
    holds for one remote task.
    metrics_tasks: how many tasks have numbers of their own in metrics; see Blocking.
    session: how its connections to other workers behave.
    """

    worker_id: str
    topology: str
    receive_queue_messages: int = 131_072
    receive_queue_bytes: int = 16 * MIB
    metrics_tasks: int = 1000
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        if not self.worker_id:
            raise ConfigError("worker_id must not be empty")
        if not self.topology:
            raise ConfigError("topology must not be empty")
        if self.receive_queue_messages <= 0 or self.receive_queue_bytes < self.session.max_message_bytes:
            raise ConfigError(
                "receive_queue_messages must be more than 0, and receive_queue_bytes at least "
                f"max_message_bytes ({self.session.max_message_bytes})"
            )


def peer_session(settings: SessionSettings) -> SessionSettings:
    """Return the settings of a session between workers.

    It needs no bound of its own: all that goes through it was granted to a sender, whose window is the bound,
    and a bound here would let one stopped task hold up the others.
    """
    return replace(
        settings,
        max_pending_messages=sys.maxsize,
        max_pending_task_messages=sys.maxsize,
        max_pending_bytes=sys.maxsize,
    )
