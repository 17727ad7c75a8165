"""Counting millions of rows from Spark's sink, at several workers at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from helpers.program import Threads
from tuplewire import Client

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
                with suppress(TimeoutError):
                    while True:
                        self._add(next(batches).groups)
            batches.acknowledge()

    def _add(self, groups: Sequence[Any]) -> None:
        for group in groups:
            for payload in group.payloads():
                assert len(payload) == self._row_bytes
                self.times[int(payload[:_DIGITS])] += 1
            self.count += len(group)
