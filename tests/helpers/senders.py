"""Senders of messages, as seen by a worker's queues and router."""

from __future__ import annotations


class Program:
    """A sender that counts released messages; needs_release_acks: it waits until they are processed."""

    source, sender_id = "program", "p"

    def __init__(self, worker_number: int = 0, *, needs_release_acks: bool = True) -> None:
        self.worker_number = worker_number
        self.needs_release_acks = needs_release_acks
        self.released = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Count the messages."""
        del task, size_bytes
        self.released += messages
