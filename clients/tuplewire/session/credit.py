"""What a receiver grants: permission to send, per task, as absolute offsets.

The grant for a task is what the session's messages to it have already been done with (released) plus a
window. It is a count from the session's start and never falls, so that a lost or repeated grant changes
nothing: the next one says everything again. Source: TCP's receive window; Flink's credits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuplewire.errors import CreditExceededError, RefusedError, ResourceLimitError
from tuplewire.group import TaskGroup
from tuplewire.session.pressure import Exhausted
from tuplewire.session.shares import QueueShares, Window

MAX_TASKS = 65_536
"""Tasks that one session may send to; bounds what a hostile sender makes us remember."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Absolute permission to send to a task, and how far its messages are processed.

    lane: see tuplewire.group.lane_of; what is passed on needs no permission, and is only counted.
    messages: may have been sent in total. size_bytes: a message may start while fewer payload bytes were
    sent in total. processed: messages done with, in total.
    """

    lane: int
    messages: int
    size_bytes: int
    processed: int


class _Account:
    __slots__ = (
        "granted_bytes",
        "granted_messages",
        "received_bytes",
        "received_messages",
        "released_bytes",
        "released_messages",
    )

    def __init__(self, window: Window) -> None:
        self.granted_messages, self.granted_bytes = window.messages, window.size_bytes
        self.received_messages = self.received_bytes = 0
        self.released_messages = self.released_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether another message may start."""
        return self.received_messages < self.granted_messages and self.received_bytes < self.granted_bytes


class CreditBook:
    """One session's credit at the receiver."""

    __slots__ = (
        "_accounts",
        "_changed",
        "_eager",
        "_exhausted",
        "_followed",
        "_max_message_bytes",
        "_shares",
        "_used_up",
        "initial",
    )

    def __init__(
        self,
        shares: QueueShares,
        *,
        max_message_bytes: int,
        eager: bool,
        exhausted: Exhausted | None = None,
    ) -> None:
        """Start with a window for every task.

        shares: asked at every grant, so that the window may change while the session runs.
        eager: tell every release, since the sender waits for it (ack mode `processed`); otherwise a grant
        is worth a message only once a quarter of the window is free again, or everything is released: a
        sender that passes on what others sent may have a smaller window of its own to give back.
        exhausted: told the tasks for which the window is used up.
        """
        self.initial = shares.initial
        """The grant for every task without one of its own."""
        self._shares = shares
        self._max_message_bytes = max_message_bytes
        self._eager = eager
        self._followed: set[int] = set()
        self._accounts = {task: _Account(shares.window(task)) for task in shares.crowded}
        self._changed: dict[int, None] = {}
        self._exhausted = exhausted or Exhausted()
        self._used_up: set[int] = set()

    def received(self, groups: Iterable[TaskGroup]) -> None:
        """Take account of a frame; CreditExceededError or ResourceLimitError: nothing of it is counted."""
        counted: list[TaskGroup] = []
        try:
            for group in groups:
                account = self._account(group.lane)
                account.received_messages += len(group)
                account.received_bytes += len(group.data)
                counted.append(group)
                self._check(group.lane, account)
        except RefusedError:
            for group in counted:
                account = self._accounts[group.lane]
                account.received_messages -= len(group)
                account.received_bytes -= len(group.data)
                self._take_stock(group.lane, account)
            raise

    def _account(self, lane: int) -> _Account:
        account = self._accounts.get(lane)
        if account is None:
            if lane >= 0 and len(self._accounts) >= MAX_TASKS:
                raise ResourceLimitError(f"one session sends to at most {MAX_TASKS} tasks")
            account = self._accounts[lane] = _Account(self.initial)
        return account

    def _check(self, lane: int, account: _Account) -> None:
        if lane < 0 or (
            account.received_messages < account.granted_messages
            and account.received_bytes < account.granted_bytes
        ):
            return
        self._take_stock(lane, account)
        if (
            account.received_messages > account.granted_messages
            or account.received_bytes >= account.granted_bytes + self._max_message_bytes
        ):
            raise CreditExceededError(
                f"task {lane}: {account.received_messages} messages of {account.received_bytes} bytes "
                f"were sent, {account.granted_messages} of {account.granted_bytes} bytes were granted"
            )

    def _take_stock(self, lane: int, account: _Account) -> None:
        """Note whether the sender may send anything to a task."""
        if account.has_room:
            if lane in self._used_up:
                self._used_up.discard(lane)
                self._exhausted.remove(lane)
        elif lane not in self._used_up:
            self._used_up.add(lane)
            self._exhausted.add(lane)

    def end(self) -> None:
        """Hold nobody back any more: the session is over."""
        for lane in self._used_up:
            self._exhausted.remove(lane)
        self._used_up.clear()

    def released(self, lane: int, messages: int, size_bytes: int) -> bool:
        """Take account of messages that are done with; return whether the sender should hear of it."""
        account = self._accounts[lane]
        account.released_messages += messages
        account.released_bytes += size_bytes
        window = self._shares.window(lane)
        if (
            not self._eager
            and lane >= 0
            and lane not in self._followed
            and account.released_messages < account.received_messages
            and account.released_messages + window.messages - account.granted_messages < window.messages >> 2
            and account.released_bytes + window.size_bytes - account.granted_bytes < window.size_bytes >> 2
        ):
            return False
        self._changed[lane] = None
        return True

    def follow(self, tasks: Iterable[int]) -> None:
        """Tell every release of these tasks' messages from now on, and what has been released so far."""
        self._followed.update(tasks)
        if len(self._followed) > MAX_TASKS:
            raise ResourceLimitError(f"one session sends to at most {MAX_TASKS} tasks")
        self._changed.update(dict.fromkeys(self._followed & self._accounts.keys()))

    @property
    def idle(self) -> bool:
        """Whether everything that was received is done with."""
        return all(each.released_messages >= each.received_messages for each in self._accounts.values())

    def freed(self, task: int) -> bool:
        """Note that there is more room in a task's queue; return whether the sender should hear of it."""
        if task in self._accounts:
            self._changed[task] = None
        return task in self._changed

    def outstanding(self) -> list[tuple[int, int, int]]:
        """Return (task, messages, bytes) of what was granted, has come and is not done with."""
        return [
            (lane, each.received_messages - each.released_messages, each.received_bytes - each.released_bytes)
            for lane, each in self._accounts.items()
            if lane >= 0 and each.received_messages > each.released_messages
        ]

    def changes(self) -> list[Grant]:
        """Return the grants that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return [self._grant(lane) for lane in changed]

    def all(self) -> list[Grant]:
        """Return every grant, for a sender that reconnects."""
        return [self._grant(lane) for lane in self._accounts]

    def _grant(self, lane: int) -> Grant:
        account = self._accounts[lane]
        window = self._shares.window(lane)
        account.granted_messages = max(account.granted_messages, account.released_messages + window.messages)
        account.granted_bytes = max(account.granted_bytes, account.released_bytes + window.size_bytes)
        if lane in self._used_up:
            self._take_stock(lane, account)
        return Grant(lane, account.granted_messages, account.granted_bytes, account.released_messages)
