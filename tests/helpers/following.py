"""A consumer that follows a task to its current owner."""

from __future__ import annotations

import threading
from collections.abc import Callable

from helpers.topology import TOPOLOGY
from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import RefusedError, UnreachableError


class FollowingConsumer(threading.Thread):
    """Consumes the numbers sent to a task, until stop(). owner() raises KeyError if the task has no owner."""

    def __init__(self, task: int, owner: Callable[[], str], topology: str = TOPOLOGY) -> None:
        super().__init__()
        self.got: list[int] = []
        self._task = task
        self._owner = owner
        self._topology = topology
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        """Consume until stop() is called."""
        while not self._done.is_set():
            try:
                with Client(self._owner(), topology=self._topology) as client:
                    for batch in client.recv([self._task], timeout=1):
                        self.take(batch)
            except (RefusedError, UnreachableError, TimeoutError, KeyError):
                continue  # the task has moved, or no message arrived

    def take(self, batch: TaskMessageBatch) -> None:
        """Record the numbers of a batch."""
        self.got += [int(payload) for group in batch.groups for payload in group.payloads()]

    def stop(self) -> None:
        """Stop consuming, once no message has arrived for a while."""
        self._done.set()
        self.join()
