"""The memory of a worker, estimated as in docs/how-to/tune.md."""

from __future__ import annotations

from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.receiving_end import MAX_SESSIONS

MIB = 1 << 20
BASE_BYTES = 64 * MIB
"""The memory of an idle worker."""
PER_MESSAGE_BYTES = 80
"""The memory for a message in addition to its payload, even if it is alone in its group."""
REMEMBERED_BYTES = MAX_SESSIONS * 5 * 1024
"""The memory for disconnected senders that may resume."""
PIECE_BYTES = 64 * MIB
"""Limits are rounded up to a multiple of this."""


def task_bytes(config: WorkerConfig, sessions: int) -> int:
    """Return the maximum size of one task's queue, if `sessions` senders join one after the other.

    The share of each sender is the queue divided by the current number of sessions, and at least one message
    of the maximum size.
    """
    payload = sum(
        max(config.receive_queue_bytes // joined, config.max_message_bytes)
        for joined in range(1, sessions + 1)
    )
    return payload + PER_MESSAGE_BYTES * config.receive_queue_messages


def memory_bytes(config: WorkerConfig, *, local_tasks: int, remote_tasks: int, sessions: int) -> int:
    """Return the memory limit for a worker.

    local_tasks: the number of its own tasks. remote_tasks: tasks of other workers that its programs send to.
    sessions: senders (programs and other workers) at the same time.
    """
    queues = (local_tasks + remote_tasks) * task_bytes(config, sessions)
    # Epochs of Spark's sinks, and copies of rejected messages.
    more = 2 * local_tasks * config.receive_queue_bytes + config.staging_memory_bytes
    senders = sessions * config.session.max_request_bytes + REMEMBERED_BYTES
    return -(-(BASE_BYTES + queues + more + senders) // PIECE_BYTES) * PIECE_BYTES
