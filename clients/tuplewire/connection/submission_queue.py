"""The queue between callers and the event loop, and the condition on which callers wait.

A caller submits messages in one step: it appends one entry. The loop groups the entries by task. So an
interrupt or a signal handler in the middle of a `send` leaves no work half done, and a message costs its
caller an append and a few comparisons. Used by SendBuffer, Inbox and Asker. Owns the entries and the free
space published for them. Not thread-safe: hold the send buffer's lock, except to append one small message.
Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar, cast

from tuplewire.connection.green_threads import GREEN_THREAD_LIBRARIES, refuse_green_threads
from tuplewire.connection.loop import is_on_messaging_loop
from tuplewire.values.group import TaskGroup

_Result = TypeVar("_Result")
_RECHECK_SECONDS = 0.5

MAX_SMALL_BYTES = 4096
"""A payload of at most this size is appended without the lock; a larger one is counted first."""

Single = tuple[int, int | None, bytes]
"""Task, source and payload of one message."""
Batch = list[TaskGroup]
"""Messages that were submitted together."""


@dataclass(slots=True)
class Offer:
    """Messages that the loop accepts, or not, for lack of space. accepted: None: not decided yet."""

    groups: Sequence[TaskGroup]
    accepted: bool | None = None


class SubmissionQueue:
    """The submitted batches and single messages in order, and the number that may be appended without a lock.

    1. With fewer entries than `any_task_entry_limit`, any thread may append a small message to any task.
    2. With fewer entries than `total_entry_limit`, it may do so if the task is below its own limit.
    3. Everything else is counted first, and needs the send buffer's lock.

    The bounds hold without a lock because each read and each write here is one step. The loop lowers them
    before it removes the entries that were counted. A caller reads the number of entries before the bounds.
    Each thread may be late with one message, and so exceed a bound by one message.
    """

    def __init__(self) -> None:
        self.entries: list[Single | Batch] = []
        self.any_task_entry_limit = self.total_entry_limit = 0
        self.extra_messages = 0
        """A lower bound for the number of messages minus the number of entries."""
        self.max_small_bytes = 0
        """The largest payload of a small message."""
        self.pass_number = 0
        """The number of passes that the loop has started. A pass includes all entries appended before it."""
        self.notified_pass = -1
        """The value of `pass_number` at the last notification of the loop. If equal, no other is needed."""
        self.reset_counts()

    def reset_counts(self) -> None:
        """Reset the counts, because the loop has moved all counted messages to the session."""
        self.extra_messages = 0
        self._counted = self.messages = self.size_bytes = 0
        self.by_flow: dict[int, int] = {}
        """Messages of each flow; like `messages` and `size_bytes`, as of the last update_counts()."""

    def update_counts(self) -> None:
        """Bring the counts up to date. An interrupt in between leaves them too high, never too low."""
        by_flow = self.by_flow
        for entry in self.entries[self._counted :]:
            if isinstance(entry, list):
                messages = size = 0
                for group in entry:
                    messages += group.count
                    size += group.size_bytes
                    by_flow[group.flow_id] = by_flow.get(group.flow_id, 0) + group.count
                self.extra_messages += messages - 1
            else:
                task, _, payload = entry
                messages, size = 1, len(payload)
                by_flow[task] = by_flow.get(task, 0) + 1
            self.messages += messages
            self.size_bytes += size
            self._counted += 1  # last: after an interrupt before this line, the entry is counted again

    def publish_space(self, messages: int, size_bytes: int, task_messages: int, max_bytes: int) -> None:
        """Publish the space after the counted entries. task_messages: of a task. max_bytes: of a message."""
        more = min(messages, size_bytes // MAX_SMALL_BYTES)  # as if every message had the largest small size
        self.max_small_bytes = min(MAX_SMALL_BYTES, max_bytes)
        self.total_entry_limit = self._counted + more
        self.any_task_entry_limit = self._counted + min(more, task_messages)

    def publish_no_space(self) -> None:
        """Publish that there is no free space, or that it is unknown: the next caller must count."""
        self.any_task_entry_limit = self.total_entry_limit = 0

    def add(self, groups: Iterable[TaskGroup]) -> None:
        """Append a batch in one step; with the lock."""
        self.publish_no_space()
        self.entries.append(list(groups))

    @property
    def submitted_messages(self) -> int:
        """The number of messages in the queue, counted without the lock."""
        return sum(sum(map(len, each)) if isinstance(each, list) else 1 for each in list(self.entries))


def batches_of(entries: Sequence[Single | Batch]) -> list[Batch]:
    """Return entries as batches. Consecutive single messages become one group for each task and source."""
    if entries and list not in set(map(type, entries)):  # the usual case, detected without a loop in Python
        return [_groups_of(cast("Sequence[Single]", entries))]
    batches: list[Batch] = []
    for kind, some in groupby(entries, type):
        if kind is list:
            batches += cast("Iterable[Batch]", some)
        else:
            batches.append(_groups_of(list(cast("Iterable[Single]", some))))
    return batches


def _groups_of(singles: Sequence[Single]) -> list[TaskGroup]:
    tasks, sources = set(map(_TASK, singles)), set(map(_SOURCE, singles))
    if len(tasks) == len(sources) == 1:  # the usual case, detected without a loop in Python
        return [TaskGroup.from_checked(tasks.pop(), sources.pop(), list(map(_PAYLOAD, singles)))]
    columns: defaultdict[tuple[int, int | None], list[bytes]] = defaultdict(list)
    for task, source, payload in singles:
        columns[task, source].append(payload)
    return [TaskGroup.from_checked(task, source, payloads) for (task, source), payloads in columns.items()]


_TASK, _SOURCE, _PAYLOAD = itemgetter(0), itemgetter(1), itemgetter(2)


class InterruptSafeCondition(threading.Condition):
    """A condition with a lock that the caller still holds after an interrupt.

    1. In threading.Condition, an interrupt may end a wait without the lock: acquire the lock again.
    2. A signal handler that waits releases the lock, perhaps between this thread's check and its wait. A
       notification in that moment is missed, so a wait checks again after half a second.
    3. A wait on the messaging loop would stop the loop: check only once.
    """

    def __init__(self, lock: threading.Lock | threading.RLock | None = None) -> None:
        super().__init__(lock)
        self._listeners: set[Callable[[], object]] = set()

    def notify_all(self) -> None:
        super().notify_all()
        for listener in self._listeners:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                listener()

    async def wait_for_async(self, predicate: Callable[[], _Result], timeout: float | None = None) -> _Result:
        """Do the same as wait_for, on any event loop. Call it without the lock; it is held for each check.

        A cancelled call has changed nothing: a predicate takes effect only in the check that makes it true.
        """
        # The check and the registration share the lock, so that no notification in between is missed.
        with self:
            if found := predicate():
                return found
            notified = asyncio.Event()
            listener = partial(asyncio.get_running_loop().call_soon_threadsafe, notified.set)
            self._listeners.add(listener)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while not found:
                        await notified.wait()
                        notified.clear()
                        with self:
                            found = predicate()
            return found
        finally:
            with self:
                self._listeners.discard(listener)

    def wait_for(self, predicate: Callable[[], _Result], timeout: float | None = None) -> _Result:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        if any(map(sys.modules.__contains__, GREEN_THREAD_LIBRARIES)):
            refuse_green_threads()
        # 3. This is possible in a logging handler, for example.
        if is_on_messaging_loop():
            deadline = 0.0
        try:
            while not (found := predicate()) and (remaining := deadline - time.monotonic()) > 0:
                # 2. A missed notification delays the caller, but never stops it.
                self.wait(min(remaining, _RECHECK_SECONDS))
        except BaseException:
            # 1. The caller's `with` block releases the lock, which fails if this thread does not hold it.
            if not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()
            raise
        return found
