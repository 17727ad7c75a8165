"""How the messages in a queue are numbered by the workers that accepted them from programs.

These numbers stay with a message, whichever worker holds its task. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tuplewire.group import entry_worker
from tuplewire.session.delivery import Held


@dataclass(slots=True)
class Entries:
    """Runs of messages of one task, one after the other, from the sequence `first` on.

    begin: the sequence after which the task's messages begin here. Of each run, messages is how many there
    are, workers the number of its entry worker, and entry_sequences that of its first message.
    """

    task: int
    first: int
    begin: int
    messages: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    entry_sequences: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, task: int, begin: int, held: Iterable[Held], first: int, last: int, own: int) -> Entries:
        """Return those of held messages up to `last`, or of all if it is 0.

        own: the number that stands for this worker.
        """
        entries = cls(task, first, begin)
        messages, workers, sequences = entries.messages, entries.workers, entries.entry_sequences
        worker = following = 0
        for sequence, group, token in held:
            count = len(group)
            if last and sequence + count - 1 > last:
                count = last - sequence + 1
                if count <= 0:
                    break
            entered = entry_worker(group.forwarded) or token.worker_number or own
            if entered == worker and group.entry_sequence == following:
                messages[-1] += count
            else:
                messages.append(count)
                workers.append(entered)
                sequences.append(group.entry_sequence)
                worker = entered
            following = group.entry_sequence + count
        return entries
