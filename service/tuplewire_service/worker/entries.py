"""The entry sequences of the messages in a queue, from the workers that accepted them.

They stay with a message when its task moves. Pure state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tuplewire.session.entry_queue import HeldEntry
from tuplewire.values.group import entry_worker
from tuplewire.wire import control_pb2 as pb


class HeldOfTask(NamedTuple):
    """The state of a task for readers, and its unacknowledged messages."""

    state: pb.HeldTask
    messages: Iterable[HeldEntry]

    def entries(self, last: int, own: int) -> pb.TaskEntries:
        """Return the entry sequences of the messages up to `last`; 0: of all messages.

        `own` is the number of this worker as an entry worker. A million groups take about half a second.
        """
        messages: list[int] = []
        workers: list[int] = []
        sequences: list[int] = []
        worker = following = 0
        for each in self.messages:
            sequence, group = each.first, each.group
            count = len(group)
            if last and sequence + count - 1 > last:
                count = last - sequence + 1
                if count <= 0:
                    break
            entered = entry_worker(group.forwarded) or each.token.worker_number or own
            if entered == worker and group.entry_sequence == following:
                messages[-1] += count
            else:
                messages.append(count)
                workers.append(entered)
                sequences.append(group.entry_sequence)
                worker = entered
            following = group.entry_sequence + count
        return pb.TaskEntries(
            first=self.state.acknowledged_sequence + 1,
            messages=messages,
            workers=workers,
            entry_sequences=sequences,
        )
