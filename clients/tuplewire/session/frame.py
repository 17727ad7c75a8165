"""A frame at its sender: kept until it is acknowledged, and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuplewire.group import TaskGroup
from tuplewire.session.flow import Entry

_ONE_TIME_MICROS = 2_000
"""Groups accepted within so much time after a frame's first share that one's time."""


@dataclass(frozen=True, slots=True)
class OutFrame:
    """A frame to write: runs of groups, each run one (task, source) on the wire."""

    sequence: int
    runs: Sequence[Sequence[TaskGroup]]
    accepted_micros: Sequence[int]
    """When the first message of each run was accepted."""
    messages: int
    size_bytes: int
    closed: Sequence[int] = ()
    """The flows that the receiver may forget before it takes the messages in."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A frame that is not acknowledged."""

    sequence: int
    entries: list[Entry]
    closed: Sequence[int] = ()

    def out(self) -> OutFrame:
        """Return the frame to write; groups that follow each other within (task, source) are one run."""
        runs: list[list[TaskGroup]] = []
        accepted: list[int] = []
        messages = size = 0
        last: TaskGroup | None = None
        first_micros = self.entries[0].accepted_micros if self.entries else 0
        for entry in self.entries:
            group = entry.group
            messages += len(group)
            size += len(group.data)
            micros = entry.accepted_micros
            if 0 <= micros - first_micros < _ONE_TIME_MICROS:
                micros = first_micros
            if (
                last is not None
                and group.joins(last)
                and group.entry_sequence == (last.entry_sequence and last.entry_sequence + len(last))
                and micros - accepted[-1] < _ONE_TIME_MICROS
            ):
                runs[-1].append(group)
            else:
                runs.append([group])
                accepted.append(micros)
            last = group
        return OutFrame(self.sequence, runs, accepted, messages, size, self.closed)
