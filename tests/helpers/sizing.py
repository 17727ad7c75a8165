"""The memory of a worker, as docs/how-to/tune.md reckons it."""

from __future__ import annotations

from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.receiving_end import MAX_SESSIONS

MIB = 1 << 20
BASE_BYTES = 64 * MIB
"""A worker that holds nothing."""
PER_MESSAGE_BYTES = 80
"""What is kept for a message besides its payload, be it alone in its group."""
REMEMBERED_BYTES = MAX_SESSIONS * 5 * 1024
"""What is kept of senders that are gone and may resume."""
PIECE_BYTES = 64 * MIB
"""Limits are rounded up to this."""


def task_bytes(config: WorkerConfig, sessions: int) -> int:
    """Return what one task's queue can come to, when so many senders join one after the other.

    The share of each is the queue by the sessions that there are, and at least one largest message.
    """
    payload = sum(
        max(config.receive_queue_bytes // joined, config.max_message_bytes)
        for joined in range(1, sessions + 1)
    )
    return payload + PER_MESSAGE_BYTES * config.receive_queue_messages


def memory_bytes(config: WorkerConfig, *, local_tasks: int, remote_tasks: int, sessions: int) -> int:
    """Return the limit of memory for a worker.

    local_tasks: its own. remote_tasks: those of other workers that its programs send to. sessions: senders,
    which are programs and other workers, at the same time.
    """
    queues = (local_tasks + remote_tasks) * task_bytes(config, sessions)
    # What Spark's sinks publish, and copies of rejected messages.
    more = 2 * local_tasks * config.receive_queue_bytes + config.staging_memory_bytes
    senders = sessions * config.session.max_request_bytes + REMEMBERED_BYTES
    return -(-(BASE_BYTES + queues + more + senders) // PIECE_BYTES) * PIECE_BYTES
