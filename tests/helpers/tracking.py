"""Consumers that follow their tasks from worker to worker, as a membership moves them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Self

from helpers.program import Threads
from helpers.streams import Sequences, Stream
from helpers.topology import TOPOLOGY
from tuplewire import Client
from tuplewire.errors import TaskNotLocalError, UnknownTaskError, UnreachableError
from tuplewire.membership import Membership
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

_SILENCE_SECONDS = 0.5


class Trackers:
    """A consumer of each task at its current worker; with `once`, it allows no marked duplicates."""

    def __init__(self, membership: Membership, tasks: Iterable[int], *, once: bool = True) -> None:
        self.membership = membership
        self._tasks = list(tasks)
        self._once = once
        self._lock = threading.Lock()
        self._seen = Sequences()
        self._threads = Threads()

    def __enter__(self) -> Self:
        for task in self._tasks:
            self._threads.start(self._follow, task)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.end()

    def _follow(self, task: int) -> None:
        while not self._threads.stop.wait(0.02):
            address = next(
                (each.address for each in self.membership.status().workers if task in each.tasks), None
            )
            if address is None:
                continue
            try:
                with (
                    Client(address, topology=TOPOLOGY) as client,
                    client.recv([task], timeout=_SILENCE_SECONDS, follow=False) as subscription,
                ):
                    self._read(subscription)
            except (TaskNotLocalError, UnknownTaskError, UnreachableError, TimeoutError):
                continue

    def _read(self, subscription: Subscription) -> None:
        while not self._threads.stop.is_set():
            batch = next(subscription)
            with self._lock:
                for group in batch.groups:
                    (self._seen.take if self._once else self._seen.take_new)(group)
            subscription.acknowledge()

    @property
    def received(self) -> dict[Stream, int]:
        """The number of received messages of each stream."""
        with self._lock:
            return dict(self._seen.next)

    @property
    def problems(self) -> list[str]:
        """Lost, duplicated or reordered messages, and errors of the threads."""
        return [*self._seen.problems, *map(repr, self._threads.errors)]

    def goes_on(self, messages: int = 200) -> None:
        """Wait until `messages` more have arrived for every task."""
        before = self._by_task()
        eventually(
            lambda: all(self._by_task()[task] >= before[task] + messages for task in self._tasks),
            60,
            f"{messages} more for each task",
        )

    def _by_task(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for (_, task), count in self.received.items():
            counts[task] += count
        return counts

    def has(self, sent: dict[Stream, int]) -> None:
        """Wait until exactly these messages have arrived."""
        eventually(lambda: self.received == sent, 60, f"all that was sent; of that {self.problems}")
