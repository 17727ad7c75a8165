"""What callers have handed over and the loop has not taken in yet: one step, whoever interrupts it.

A caller appends; the loop does the rest, in columns. So an interrupt or a signal handler in the middle of a
`send` leaves nothing half done, and a message costs its caller an append and a few comparisons.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tuplewire.group import TaskGroup

_Found = TypeVar("_Found")
_LOOK_AGAIN_SECONDS = 0.5

Batch = tuple[Sequence[TaskGroup], Any, bool]
"""Groups, their token, and whether they are retained."""
Single = tuple[int, int | None, bytes]
"""Task, source and payload of one message."""


@dataclass(slots=True)
class Offer:
    """Messages of which the loop is to say whether there is room for them."""

    groups: Sequence[TaskGroup]
    token: Any
    retain: bool
    accepted: bool | None = None


class HandOver:
    """Batches and single messages in the order in which they came; used with the lock of a sending end."""

    def __init__(self) -> None:
        self._entries: list[Batch | Single] = []
        self._forget()

    def _forget(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.of_flow: dict[int, int] = {}
        """How many messages of each flow there are."""

    def __bool__(self) -> bool:
        return bool(self._entries or self.messages)  # an interrupted caller has counted alone

    def add_one(self, task: int, source: int | None, payload: bytes) -> None:
        """Append a message. Interrupted before that, it counts too much until take(), and is not sent."""
        self.messages += 1
        self.size_bytes += len(payload)
        self.of_flow[task] = self.of_flow.get(task, 0) + 1
        self._entries.append((task, source, payload))

    def add(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool) -> None:
        """Append a batch; interrupted, as add_one. One message that is plain becomes one."""
        group = groups[0]
        if len(groups) == len(group) == 1 and token is None and not retain and group.plain:
            self.add_one(group.task, group.source, group.data)
            return
        for group in groups:
            self.messages += len(group)
            self.size_bytes += group.size_bytes
            self.of_flow[group.flow] = self.of_flow.get(group.flow, 0) + len(group)
        self._entries.append((groups, token, retain))

    def take(self) -> Iterator[Batch]:
        """Take everything out; single messages in a row become a group for each task."""
        entries, self._entries = self._entries, []
        self._forget()
        columns: dict[tuple[int, int | None], list[bytes]] = {}
        for entry in entries:
            first, second, third = entry
            if isinstance(first, int):
                columns.setdefault((first, second), []).append(third)  # type: ignore[arg-type]
                continue
            if columns:
                yield _groups_of(columns)
                columns = {}
            yield entry  # type: ignore[misc]
        if columns:
            yield _groups_of(columns)

    def count(self) -> int:
        """Return how many messages there are, entry by entry."""
        return sum(
            1 if isinstance(entry[0], int) else sum(map(len, entry[0])) for entry in list(self._entries)
        )


def _groups_of(columns: dict[tuple[int, int | None], list[bytes]]) -> Batch:
    groups = [TaskGroup.of(task, payloads, source) for (task, source), payloads in columns.items()]
    return groups, None, False


class HandOverCondition(threading.Condition):
    """Waits with a lock that its caller still has after an interrupt, which may end a wait without it.

    A signal handler that waits lets the lock go, maybe when this thread has looked and does not wait yet:
    what was told then is seen at the next look.
    """

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self._listeners: set[Callable[[], object]] = set()

    def notify_all(self) -> None:
        super().notify_all()
        for told in self._listeners:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                told()

    async def wait_for_async(self, predicate: Callable[[], _Found], timeout: float | None = None) -> _Found:
        """Do as wait_for, on any event loop, and with the lock only while it looks; called without it.

        A cancelled call has looked, and no more: what a predicate does when it holds is done once.
        """
        with self:
            if found := predicate():
                return found
            news = asyncio.Event()
            told = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
            self._listeners.add(told)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while not found:
                        await news.wait()
                        news.clear()
                        with self:
                            found = predicate()
            return found
        finally:
            with self:
                self._listeners.discard(told)

    def wait_for(self, predicate: Callable[[], _Found], timeout: float | None = None) -> _Found:
        until = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while not (found := predicate()) and (left := until - time.monotonic()) > 0:
                self.wait(min(left, _LOOK_AGAIN_SECONDS))
        except BaseException:
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise
        return found
