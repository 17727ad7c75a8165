"""Consumers of numbers, and of the rows of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from helpers.program import Threads
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


_DIGITS = 12
_WAIT_SECONDS = 0.5


class RowCounter:
    """Counts the copies of each row by its number, below `rows`, at the start of its message."""

    def __init__(self, rows: int, row_bytes: int) -> None:
        self.times = bytearray(rows)
        self.count = 0
        self._row_bytes = row_bytes
        self._threads = Threads()

    @contextmanager
    def reading(self, workers: Sequence[Any], tasks: Mapping[int, Sequence[int]]) -> Iterator[None]:
        """Read the messages to tasks of some workers during the block, and then the pending ones."""
        for index in tasks:
            self._threads.start(self._read, workers[index].address, tasks[index])
        try:
            yield
        finally:
            self._threads.end()
        assert not self._threads.errors, self._threads.errors

    def _read(self, address: str, tasks: Sequence[int]) -> None:
        with (
            Client(address, topology="spark") as client,
            client.recv(tasks, timeout=_WAIT_SECONDS) as batches,
        ):
            over = False
            while not over:
                over = self._threads.stop.is_set()
                with suppress(TimeoutError, UnreachableError):
                    while True:
                        self._add(next(batches).groups)
            batches.acknowledge()

    def _add(self, groups: Sequence[Any]) -> None:
        for group in groups:
            for payload in group.payloads():
                assert len(payload) == self._row_bytes
                self.times[int(payload[:_DIGITS])] += 1
            self.count += len(group)
