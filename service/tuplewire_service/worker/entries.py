"""How the messages in a queue are numbered by the workers that accepted them from programs.

These numbers stay with a message, whichever worker holds its task. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tuplewire.session.entry_queue import HeldEntry
from tuplewire.values.group import entry_worker


@dataclass(slots=True)
class Entries:
    """Runs of messages of one task, one after the other, from the sequence `first` on.

    Of each run, messages is how many there are, workers the number of its entry worker, and entry_sequences
    that of its first message.
    """

    first: int
    messages: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    entry_sequences: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HeldOfTask:
    """What is held of a task now; see HeldTask in control.proto. held: the unacknowledged messages."""

    task: int
    acknowledged_sequence: int
    last_sequence: int
    bytes: int
    begin_sequence: int
    consumer: str
    held: Iterable[HeldEntry]

    def entries(self, last: int, own: int) -> Entries:
        """Return the entry sequences of the messages up to `last`; 0: of all messages.

        own: the number that stands for this worker. Takes about half a second for a million groups.
        """
        entries = Entries(self.acknowledged_sequence + 1)
        messages, workers, sequences = entries.messages, entries.workers, entries.entry_sequences
        worker = following = 0
        for each in self.held:
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
        return entries
