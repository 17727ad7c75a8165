"""What callers have handed over and the loop has not taken in yet: one step, whoever interrupts it.

A caller appends; the loop does the rest, in columns. So an interrupt or a signal handler in the middle of a
`send` leaves nothing half done, and a message costs its caller an append and a few comparisons.
Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from tuplewire.connection.green_threads import refuse_green_threads
from tuplewire.connection.loop import on_messaging_loop
from tuplewire.values.group import TaskGroup

_Found = TypeVar("_Found")
_LOOK_AGAIN_SECONDS = 0.5

SMALL_BYTES = 4096
"""Handing over a payload of at most so many bytes is an append; a larger one is counted first."""

Single = tuple[int, int | None, bytes]
"""Task, source and payload of one message."""


@dataclass(slots=True)
class Batch:
    """Messages that were handed over together. token, retain: see SendingEnd.offer."""

    groups: Sequence[TaskGroup]
    token: Any = None
    retain: bool = False


@dataclass(slots=True)
class Offer(Batch):
    """Messages of which the loop is to say whether there is room for them."""

    accepted: bool | None = None


class HandOver:
    """Batches and single messages in the order in which they came, and how many more may just be appended.

    Any thread may append a small single message while there is room; everything else is done with the lock of
    a sending end. Bounds are kept without a lock on that way, as each read and each write here is one step.
    Room falls before the entries that it was counted with are gone. Whoever appends reads the number of
    entries before the room. A thread may be late with one message, which may be one too many.
    """

    def __init__(self) -> None:
        self.entries: list[Single | Batch] = []
        self.room = 0
        """While there are fewer entries, there is room for a small message to any task."""
        self.room_elsewhere = 0
        """While there are fewer entries, there is room for a small message if its task has room."""
        self.beyond_entries = 0
        """At least how many more messages there are than entries."""
        self.small_bytes = 0
        """The largest payload of a small message."""
        self.look = 0
        """How often the loop has begun to take in; it sees everything that was appended before."""
        self.told = -1
        """What `look` was when somebody told the loop to take in."""
        self.start_count()

    def start_count(self) -> None:
        """Count nothing, for the loop has seen everything that was counted."""
        self._counted = self.messages = self.size_bytes = 0
        self.of_flow: dict[int, int] = {}
        """How many messages of each flow there are; as `messages` and `size_bytes`, see count()."""

    def count(self) -> None:
        """Bring the counts up to date, and keep them too high where an interrupt comes in between."""
        of_flow = self.of_flow
        for entry in self.entries[self._counted :]:
            if isinstance(entry, Batch):
                messages = size = 0
                for group in entry.groups:
                    messages += len(group)
                    size += group.size_bytes
                    of_flow[group.flow] = of_flow.get(group.flow, 0) + len(group)
                self.beyond_entries += messages - 1
            else:
                task, _, payload = entry
                messages, size = 1, len(payload)
                of_flow[task] = of_flow.get(task, 0) + 1
            self.messages += messages
            self.size_bytes += size
            self._counted += 1

    def make_room(self, messages: int, size_bytes: int, task_messages: int, max_message_bytes: int) -> None:
        """Say how much there is room for beside the counted entries. task_messages: for any one task."""
        more = min(messages, size_bytes // SMALL_BYTES)
        self.small_bytes = min(SMALL_BYTES, max_message_bytes)
        self.room_elsewhere = self._counted + more
        self.room = self._counted + min(more, task_messages)

    def shut(self) -> None:
        """Say that there is no room, or that nobody knows: whoever comes next counts."""
        self.room = self.room_elsewhere = 0

    def add(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool) -> None:
        """Append a batch, in one step; with the lock."""
        self.shut()
        self.entries.append(Batch(groups, token, retain))

    def forget(self, entries: int) -> None:
        """Forget the oldest, which count elsewhere by now; room was made without them."""
        self.beyond_entries = 0
        del self.entries[:entries]

    @property
    def pending(self) -> int:
        """How many messages there are, entry by entry."""
        entries = list(self.entries)
        return sum(sum(map(len, each.groups)) if isinstance(each, Batch) else 1 for each in entries)


def batches_of(entries: Sequence[Single | Batch]) -> Iterator[Batch]:
    """Return what was handed over; single messages in a row become a group for each task and source."""
    if Batch not in set(map(type, entries)):
        if entries:
            yield Batch(_groups_of(entries))  # type: ignore[arg-type]
        return
    singles: list[Single] = []
    for entry in entries:
        if isinstance(entry, Batch):
            if singles:
                yield Batch(_groups_of(singles))
                singles = []
            yield entry
        else:
            singles.append(entry)
    if singles:
        yield Batch(_groups_of(singles))


def _groups_of(singles: Sequence[Single]) -> list[TaskGroup]:
    tasks, sources = set(map(_TASK, singles)), set(map(_SOURCE, singles))
    if len(tasks) == len(sources) == 1:  # nearly always, and found out without a loop in Python
        return [TaskGroup.joined(tasks.pop(), sources.pop(), list(map(_PAYLOAD, singles)))]
    columns: defaultdict[tuple[int, int | None], list[bytes]] = defaultdict(list)
    for task, source, payload in singles:
        columns[task, source].append(payload)
    return [TaskGroup.joined(task, source, payloads) for (task, source), payloads in columns.items()]


_TASK, _SOURCE, _PAYLOAD = itemgetter(0), itemgetter(1), itemgetter(2)


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
        refuse_green_threads()
        if on_messaging_loop():  # in a logging handler, say; nothing that it waits for could happen
            until = 0.0
        try:
            while not (found := predicate()) and (left := until - time.monotonic()) > 0:
                self.wait(min(left, _LOOK_AGAIN_SECONDS))
        except BaseException:
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise
        return found
