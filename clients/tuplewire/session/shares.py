"""How the queue of a task is shared out between the sessions that send to it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Share:
    """How much a session may have outstanding to one task."""

    messages: int
    size_bytes: int


_NOTHING = Share(0, 0)


class QueueShares:
    """The share of each session in any task's queue, and what ended sessions have left in it.

    Sender after sender may fill its share and go while the task's consumer stands still. Once their messages
    fill a quarter of the queue, they are taken off the others' shares. New sessions hear of such tasks one by
    one, and few tasks are so full.
    """

    def __init__(self, total: Share, least: Share) -> None:
        """Share out so much of each task's queue; no share is under `least` while there is room at all."""
        self.total = total
        self.least = least
        self._sessions = 1
        self.initial = self._share_of(total)
        """The share in a queue in which ended sessions have left little."""
        self._left: dict[int, Share] = {}
        self._announced: dict[int, Share] = {}

    def _share_of(self, room: Share) -> Share:
        return Share(
            max(self.least.messages, room.messages // self._sessions),
            max(self.least.size_bytes, room.size_bytes // self._sessions),
        )

    def shared_by(self, sessions: int) -> None:
        """Share out between so many sessions from now on."""
        self._sessions = max(1, sessions)
        self.initial = self._share_of(self.total)

    def window(self, task: int) -> Share:
        """Return the share of each session in a task's queue, as of now."""
        if task not in self._announced:
            return self.initial
        left = self._left.get(task, _NOTHING)
        room = Share(self.total.messages - left.messages, self.total.size_bytes - left.size_bytes)
        if room.messages <= 0 or room.size_bytes <= 0:
            return _NOTHING
        return self._share_of(room)

    @property
    def smallest(self) -> Share:
        """The smallest share in any task's queue, as of now."""
        return min(map(self.window, self.crowded), key=attrgetter("messages"), default=self.initial)

    @property
    def crowded(self) -> list[int]:
        """The tasks whose shares are smaller because of messages that ended sessions left."""
        return list(self._announced)

    def leave(self, task: int, messages: int, size_bytes: int) -> None:
        """Note the messages that an ended session has left in a task's queue."""
        left = self._left.get(task, _NOTHING)
        left = self._left[task] = Share(left.messages + messages, left.size_bytes + size_bytes)
        if self._is_much(left):
            self._announced[task] = left

    def released(self, task: int, messages: int, size_bytes: int) -> bool:
        """Note that so many left messages are released; return True if the others should hear of the room."""
        left = self._left[task]
        left = Share(left.messages - messages, left.size_bytes - size_bytes)
        if left.messages:
            self._left[task] = left
        else:
            del self._left[task]
        announced = self._announced.get(task)
        if announced is None:
            return False
        if not self._is_much(left):
            del self._announced[task]
            return True
        if self._is_much(Share(announced.messages - left.messages, announced.size_bytes - left.size_bytes)):
            self._announced[task] = left
            return True
        return False

    def _is_much(self, part: Share) -> bool:
        return part.messages * 4 >= self.total.messages or part.size_bytes * 4 >= self.total.size_bytes
