"""Reports of a worker's messages, by entry worker and entry sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.worker.queue import HeldOfTask

OWN, PEER = 7, 9


@dataclass(frozen=True)
class Token:
    """The session that sent messages; worker number 0 means a program."""

    worker_number: int = 0


@dataclass(frozen=True)
class Held:
    """Queued messages, starting at a sequence."""

    first: int
    group: TaskGroup
    token: Token


def held(*groups: tuple[int, int, int]) -> HeldOfTask:
    """Return consecutive groups of (messages, entry sequence, worker), starting at sequence 11."""
    entries: list[Any] = []
    first = 11
    for count, entry, worker in groups:
        entries.append(Held(first, TaskGroup.of(1, [b"x"] * count).at(entry, 0), Token(worker)))
        first += count
    return HeldOfTask(pb.HeldTask(task=1, acknowledged_sequence=10, last_sequence=first - 1), entries)


def runs(found: HeldOfTask, last: int = 0) -> Iterable[tuple[int, int, int]]:
    """Return (messages, worker, entry sequence) of each run."""
    entries = found.entries(last, OWN)
    assert entries.first == 11
    return list(zip(entries.messages, entries.workers, entries.entry_sequences, strict=True))


def test_what_follows_by_the_same_way_is_one_run() -> None:
    """A gap in the entry sequences, or another entry worker, starts a new run."""
    assert runs(held((3, 1, 0), (2, 4, 0), (1, 9, 0), (1, 10, PEER))) == [
        (5, OWN, 1),
        (1, OWN, 9),
        (1, PEER, 10),
    ]


@pytest.mark.parametrize(
    ("last", "expected"), [(0, [3, 2]), (11, [1]), (13, [3]), (14, [3, 1]), (99, [3, 2])]
)
def test_no_more_than_was_asked_for(last: int, expected: list[int]) -> None:
    """Entries are returned up to a sequence, even within a group; 0 means all of them."""
    assert [count for count, _, _ in runs(held((3, 1, 0), (2, 4, PEER)), last)] == expected
