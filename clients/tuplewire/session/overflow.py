"""The bounds of a sender, and the policy `drop_oldest`: how much must go for an offer to fit, and what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace

from tuplewire.config import Overflow, SessionSettings
from tuplewire.group import TaskGroup
from tuplewire.session.held_messages import HeldMessages
from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.pieces import cut_off


def excess(held: int, offered: int, bound: int) -> int:
    """Return how much of `held` is in the way of an offer.

    An offer that is itself over the bound is taken only when nothing else is held, so all of it is.
    """
    over = held + offered - bound
    return min(held, over) if over > 0 else 0


class OldestTask:
    """Finds the task with the oldest message, at a cost that does not grow with the number of messages.

    A heap holds, for each task, the age of its first message at some earlier time. That message may be gone.
    find() notices this when the task comes up, and corrects the entry.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._known: set[int] = set()

    def add(self, task: int, age: int) -> None:
        """Note a message that was put behind the others of its task; ages never fall."""
        if task not in self._known:
            self._known.add(task)
            heappush(self._heap, (age, task))

    def find(self, age_of: Callable[[int], int]) -> int:
        """Return the task with the oldest message; there must be one.

        age_of: returns the age of a task's oldest message, 0 when it has none.
        """
        heap = self._heap
        while True:
            known, task = heap[0]
            age = age_of(task)
            if age == known:
                return task
            if age:
                heapreplace(heap, (age, task))
            else:
                heappop(heap)
                self._known.discard(task)


class BoundedMessages(HeldMessages):
    """Held messages, bounded by the settings in messages and bytes, in total and per task.

    A batch larger than a bound is taken when nothing else counts against that bound. The policy `drop_oldest`
    makes room: it gives up messages that have never been written. Written ones stay, as they may have
    arrived.
    """

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._drops_oldest = settings.overflow is Overflow.DROP_OLDEST
        self._oldest = OldestTask()
        self._overflowed: list[Settled] = []

    def fits(self, groups: Iterable[TaskGroup], more_messages: int, more_bytes: int) -> bool:
        """Whether there is room for messages beside so many others, which may be to the same tasks."""
        settings = self._settings
        messages = size = 0
        to_task: dict[int, int] = {}
        for group in groups:
            messages += len(group)
            size += len(group.data)
            offered = to_task[group.flow] = to_task.get(group.flow, 0) + len(group)
            held = self.held_of(group.flow) + more_messages
            if excess(held, offered, settings.max_pending_task_messages):
                return False
        return not (
            excess(self.messages + more_messages, messages, settings.max_pending_messages)
            or excess(self.size_bytes + more_bytes, size, settings.max_pending_bytes)
        )

    def _has_room(self, groups: Iterable[TaskGroup], messages: int, size: int) -> bool:
        """Return True if there is room for so many messages and bytes, or if it could be made."""
        settings = self._settings
        most = self.messages - excess(self.messages, messages, settings.max_pending_messages)
        most_bytes = self.size_bytes - excess(self.size_bytes, size, settings.max_pending_bytes)
        crowded = self._crowded(groups)
        if not crowded and most == self.messages and most_bytes == self.size_bytes:
            return True
        return self._drops_oldest and self._make_room(crowded, most, most_bytes)

    def _crowded(self, groups: Iterable[TaskGroup]) -> dict[int, int]:
        """Return each task whose bound would be passed, with how many of its messages may stay."""
        limit = self._settings.max_pending_task_messages
        offered: dict[int, int] = {}
        crowded: dict[int, int] = {}
        for group in groups:
            flow = self._flows.get(group.flow)
            if flow is not None and flow.held:
                count = offered[group.flow] = offered.get(group.flow, 0) + len(group)
                if too_many := excess(flow.held, count, limit):
                    crowded[group.flow] = flow.held - too_many
        return crowded

    def _make_room(self, crowded: dict[int, int], most: int, most_bytes: int) -> bool:
        """Give up the oldest messages that have never been written, no more than needed.

        crowded: per flow, how many messages may stay. most, most_bytes: the total that may stay.
        Returns False, and gives up nothing, if the written messages alone exceed that.
        """
        flows = self._flows
        if self._written > most or self._written_bytes > most_bytes:
            return False
        if any(flows[number].written > stay for number, stay in crowded.items()):
            return False
        for number, stay in crowded.items():
            while (too_many := flows[number].held - stay) > 0:
                self._give_up(number, too_many, 0)
        while self.messages > most or self.size_bytes > most_bytes:
            number = self._oldest.find(lambda each: flows[each].oldest if each in flows else 0)
            self._give_up(number, self.messages - most, self.size_bytes - most_bytes)
        return True

    def _give_up(self, number: int, messages: int, size_bytes: int) -> None:
        """Drop a flow's oldest unwritten entry; cut a larger one, and drop no more than must go."""
        flow = self._flows[number]
        first = flow.first_unwritten
        flow.pending.rotate(-first)
        entry = flow.pending.popleft()
        gone, *rest = cut_off(entry.group, messages, size_bytes)
        flow.pending.extendleft(entry.having(piece) for piece in reversed(rest))
        flow.pending.rotate(first)
        if not flow.pending:
            self.without_credit.pop(number, None)
        self._settle(entry.having(gone), DropReason.OVERFLOW, self._overflowed)

    def take_overflowed(self) -> list[Settled]:
        """Take out the messages that were given up for room since the last call."""
        overflowed, self._overflowed = self._overflowed, []
        return overflowed
