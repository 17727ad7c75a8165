"""Credit at the receiver: permission to send, per task, as absolute counts.

The grant for a task is the number of released messages plus a window. It counts from the session's start and
never falls. A lost or repeated grant changes nothing, because the next one contains the full state. Used by
ReceiveSession (receive.py) and the worker's receiving end (messaging/sender_sessions.py), which creates both.
Owns the counts of received and released messages of one session. No I/O. Call only from the event loop.
Source: TCP's receive window; Flink's credits. Design: docs/design/credit.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tuplewire.errors import CreditExceededError, MalformedError, RefusedError
from tuplewire.session.shares import QueueShares
from tuplewire.values.group import TaskGroup, split_flow
from tuplewire.wire.messaging_pb2 import TaskCredit

MAX_TASKS = 65_536
"""Tasks that one session may use at a time. Bounds the memory that a hostile sender can use."""


@dataclass(slots=True, eq=False)
class _Account:
    granted_messages: int
    granted_bytes: int
    received_messages: int = 0
    received_bytes: int = 0
    released_messages: int = 0
    released_bytes: int = 0

    @property
    def has_credit(self) -> bool:
        """True if the sender may send another message."""
        return self.received_messages < self.granted_messages and self.received_bytes < self.granted_bytes


class SessionCredit:
    """One session's credit at the receiver. Call only from the event loop."""

    def __init__(
        self,
        shares: QueueShares,
        *,
        max_message_bytes: int,
        grants_every_release: bool,
        blocked_sessions: Counter[int] | None = None,
    ) -> None:
        """Start with a window for every task.

        Args:
            shares: Queried for the window at every grant, so a window may change during the session.
            max_message_bytes: Maximum size of a message, by which a sender may exceed its credit.
            grants_every_release: True to send a grant at every release, for ack mode `processed`. Otherwise
                a grant is sent once a quarter of the window is free, or once everything is released.
            blocked_sessions: Counts the connected sessions without credit for each task, without zeros.
        """
        self.initial_share = shares.initial_share
        """The window of every task that has no grant yet."""
        self._shares = shares
        self._max_message_bytes = max_message_bytes
        self._grants_every_release = grants_every_release
        self._watched_tasks: set[int] = set()
        self.accounts = {task: _Account(*shares.share_for(task)) for task in shares.reduced_share_tasks}
        self._changed_flows: dict[int, None] = {}
        self._blocked_sessions = Counter() if blocked_sessions is None else blocked_sessions
        self.blocked_flows: set[int] = set()
        self.received_messages = self.received_bytes = 0
        """Received messages to all tasks, without refused ones, and their bytes (TaskGroup.size_bytes)."""
        self.released_messages = self.released_bytes = 0
        """Received messages that were released, and their bytes."""

    def groups_over_limit(self, groups: Sequence[TaskGroup]) -> list[TaskGroup]:
        """Return the groups to tasks beyond MAX_TASKS. Forwarded groups are never among them."""
        new = dict.fromkeys(
            group.flow_id for group in groups if group.flow_id >= 0 and group.flow_id not in self.accounts
        )
        over_limit = set(islice(new, max(0, MAX_TASKS - len(self.accounts)), None))
        return [group for group in groups if group.flow_id in over_limit]

    def on_received(self, groups: Iterable[TaskGroup]) -> None:
        """Count messages. If this raises CreditExceededError, none of `groups` is counted."""
        counted_groups: list[TaskGroup] = []
        try:
            for group in groups:
                account = self.accounts.get(group.flow_id)
                if account is None:
                    account = self.accounts[group.flow_id] = _Account(*self.initial_share)
                count, size = group.count, group.size_bytes
                account.received_messages += count
                account.received_bytes += size
                self.received_messages += count
                self.received_bytes += size
                counted_groups.append(group)
                # Forwarded messages (flow_id < 0) use the credit that their entry worker granted.
                if group.flow_id >= 0 and not account.has_credit:
                    self._check_credit(group.flow_id, account)
        except RefusedError:
            # The frame is not accepted as a whole, so none of its messages may use up credit.
            for group in counted_groups:
                self.on_refused(group)
            raise

    def on_refused(self, group: TaskGroup) -> None:
        """Subtract refused messages from the counts. The sender does not count them either."""
        account = self.accounts[group.flow_id]
        count, size = group.count, group.size_bytes
        account.received_messages -= count
        account.received_bytes -= size
        self.received_messages -= count
        self.received_bytes -= size
        self._update_blocked(group.flow_id, account)
        # An account that was used by refused messages only would count against MAX_TASKS.
        if not account.received_messages and account.granted_messages == self.initial_share.messages:
            self._forget(group.flow_id)

    def close_flow(self, flow_id: int) -> None:
        """Remove a closed flow. Raises MalformedError if it is unknown or has unreleased messages."""
        account = self.accounts.get(flow_id)
        if account is None or account.released_messages < account.received_messages:
            raise MalformedError(f"cannot close flow {flow_id}: it is unknown, or has unreleased messages")
        self._forget(flow_id)

    def _forget(self, flow_id: int) -> None:
        del self.accounts[flow_id]
        self._changed_flows.pop(flow_id, None)
        self._watched_tasks.discard(flow_id)
        self._mark_unblocked(flow_id)

    def _check_credit(self, flow_id: int, account: _Account) -> None:
        self._update_blocked(flow_id, account)
        # The last message may start within the granted bytes and exceed them.
        if (
            account.received_messages > account.granted_messages
            or account.received_bytes >= account.granted_bytes + self._max_message_bytes
        ):
            raise CreditExceededError(
                f"task {flow_id}: {account.received_messages} messages of {account.received_bytes} bytes "
                f"were sent, only {account.granted_messages} of {account.granted_bytes} bytes granted"
            )

    def _update_blocked(self, flow_id: int, account: _Account) -> None:
        if account.has_credit:
            self._mark_unblocked(flow_id)
        elif flow_id not in self.blocked_flows:
            self.blocked_flows.add(flow_id)
            self._blocked_sessions[flow_id] += 1

    def _mark_unblocked(self, flow_id: int) -> None:
        if flow_id in self.blocked_flows:
            self.blocked_flows.discard(flow_id)
            self._blocked_sessions[flow_id] -= 1
            if not self._blocked_sessions[flow_id]:
                del self._blocked_sessions[flow_id]

    def on_disconnected(self) -> None:
        """Count no task as blocked: a sender without a stream waits for nothing. See all_grants()."""
        for flow_id in list(self.blocked_flows):
            self._mark_unblocked(flow_id)

    def on_released(self, flow_id: int, messages: int, size_bytes: int) -> bool:
        """Count released messages; return True if the sender should get a grant now.

        1. The sender or a move waits for each release: send a grant.
        2. Everything is released: send a grant.
        3. The grant would add at least a quarter of the window: send it. Otherwise, skip it.
        """
        account = self.accounts[flow_id]
        account.released_messages += messages
        account.released_bytes += size_bytes
        self.released_messages += messages
        self.released_bytes += size_bytes
        if (
            # 1. Forwarded messages (flow_id < 0) are part of a move, which waits for their release.
            not self._grants_every_release
            and flow_id >= 0
            and flow_id not in self._watched_tasks
            # 2. An upstream worker's window may be smaller than this quarter, and its senders would wait.
            and account.released_messages < account.received_messages
        ):
            # 3. A grant costs as much as a message on the stream, regardless of its content.
            share = self._shares.share_for(flow_id)
            messages = account.released_messages + share.messages - account.granted_messages
            size = account.released_bytes + share.size_bytes - account.granted_bytes
            if messages < share.messages >> 2 and size < share.size_bytes >> 2:
                return False
        self._changed_flows[flow_id] = None
        return True

    def watch_releases(self, tasks: Iterable[int]) -> None:
        """Mark a grant as changed at every release of these tasks' messages, and once now.

        This ends for a task when the sender closes the flow to it. Tasks beyond MAX_TASKS are not watched.
        """
        new = (task for task in tasks if task not in self._watched_tasks)  # a sender repeats its whole list
        self._watched_tasks.update(islice(new, MAX_TASKS - len(self._watched_tasks)))
        # Releases before this request may not have been reported yet.
        self._changed_flows.update(dict.fromkeys(self._watched_tasks & self.accounts.keys()))

    @property
    def urgent(self) -> bool:
        """True if the next changes concern a task for which the sender has no credit."""
        return not self.blocked_flows.isdisjoint(self._changed_flows)

    @property
    def blocking_task_count(self) -> int:
        """The number of tasks for which the window is used up."""
        return len(self.blocked_flows)

    @property
    def all_released(self) -> bool:
        """True if every received message was released."""
        return all(each.released_messages >= each.received_messages for each in self.accounts.values())

    def on_space_freed(self, task: int) -> bool:
        """Record that a task's queue has more space; return True if the sender should get a grant."""
        if task in self.accounts:
            self._changed_flows[task] = None
        return task in self._changed_flows

    def on_share_increase(self) -> bool:
        """Record that shares may have grown; return True if the sender has no credit for some task."""
        self._changed_flows.update(dict.fromkeys(self.blocked_flows))
        return bool(self.blocked_flows)

    def unreleased_counts(self) -> list[tuple[int, int, int]]:
        """Return (task, messages, bytes) of unreleased messages, except forwarded ones."""
        return [
            (task, each.received_messages - each.released_messages, each.received_bytes - each.released_bytes)
            for task, each in self.accounts.items()
            if task >= 0 and each.received_messages > each.released_messages
        ]

    def take_changes(self) -> list[TaskCredit]:
        """Return and clear the grants that have changed since the last call."""
        changed, self._changed_flows = self._changed_flows, {}
        return [self._grant(flow_id) for flow_id in changed]

    def all_grants(self) -> list[TaskCredit]:
        """Return every grant, for a sender that reconnects. It may wait for credit again."""
        grants = [self._grant(flow_id) for flow_id in self.accounts]
        for flow_id, account in self.accounts.items():
            if flow_id >= 0:
                self._update_blocked(flow_id, account)
        return grants

    def _grant(self, flow_id: int) -> TaskCredit:
        account = self.accounts[flow_id]
        share = self._shares.share_for(flow_id)
        # The maximum, because a share may shrink but a grant must never fall.
        account.granted_messages = max(account.granted_messages, account.released_messages + share.messages)
        account.granted_bytes = max(account.granted_bytes, account.released_bytes + share.size_bytes)
        if flow_id in self.blocked_flows:
            self._update_blocked(flow_id, account)
        task, flow_path = split_flow(flow_id)
        return TaskCredit(
            task=task,
            messages=account.granted_messages,
            bytes=account.granted_bytes,
            released_messages=account.released_messages,
            flow_path=flow_path,
        )
