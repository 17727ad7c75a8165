"""Who has sent a message, as far as a worker's queues and router see it."""

from __future__ import annotations


class Program:
    """A program that sends, or another worker; it counts what is released.

    wants_releases: whether it waits until its messages are processed.
    """

    source, sender_id = "program", "p"

    def __init__(self, worker_number: int = 0, *, wants_releases: bool = True) -> None:
        self.worker_number = worker_number
        self.wants_releases = wants_releases
        self.released = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Count the messages."""
        del task, size_bytes
        self.released += messages
