"""The messages of chaos runs: each contains its source, its task and its number."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tuplewire import TaskGroup

_LAYOUT = struct.Struct("<qqq40x")


def messages(source: int, task: int, first: int, count: int) -> list[bytes]:
    """Return `count` messages, numbered from `first` on."""
    return [_LAYOUT.pack(source, task, number) for number in range(first, first + count)]


def runs(group: TaskGroup) -> Iterator[tuple[int, int]]:
    """Return the numbers of a group as runs (first, count); AssertionError for any incorrect byte."""
    assert len(group.data) == _LAYOUT.size * len(group), f"{group!r} holds payloads of another size"
    assert group.source is not None, f"{group!r} has no source"
    numbers = [number for _, _, number in _LAYOUT.iter_unpack(group.data)]
    assert group.data == b"".join(_LAYOUT.pack(group.source, group.task, number) for number in numbers), (
        f"{group!r} holds messages of another source or task"
    )
    first = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[first], index - first
            first = index
