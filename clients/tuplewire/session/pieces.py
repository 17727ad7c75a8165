"""Cutting groups where credit or a frame ends, and the size of a group in a frame."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, groupby

from tuplewire.values.group import TaskGroup

LENGTH_BYTES = 4
"""The bytes of a frame for each message beside its payload; as many again in a group with headers."""

_GROUP_BYTES = 48
"""The most bytes of a frame for each group beside its columns."""


def wire_bytes(group: TaskGroup) -> int:
    """Return at most how many bytes of a frame a group takes up; more than 0 even without payload."""
    return group.size_bytes + len(group.lengths) + len(group.header_lengths) + _GROUP_BYTES


def most_messages(group: TaskGroup, max_bytes: int) -> int:
    """Return how many messages of a group have lengths of so many bytes in a frame; at least one."""
    return max(1, max_bytes // (2 * LENGTH_BYTES if group.header_lengths else LENGTH_BYTES))


def starting_within(group: TaskGroup, size_bytes: int) -> int:
    """Return how many messages start before so many bytes (see TaskGroup) of the group have passed."""
    if size_bytes > group.size_bytes:
        return len(group)
    return min(len(group), bisect_left(list(accumulate(group.message_sizes(), initial=0)), size_bytes))


def cut(group: TaskGroup, count: int) -> list[TaskGroup]:
    """Return the first `count` messages (some, not all), then the rest in pieces that double in size.

    Taking few messages at a time off a large group would copy its rest every time. With doubling pieces each
    message is copied log(n) times at most.
    """
    bounds = [0]
    while count < len(group):
        bounds.append(count)
        count *= 2
    return group.cut((*bounds, len(group)))


def cut_off(group: TaskGroup, messages: int, size_bytes: int) -> list[TaskGroup]:
    """Return the shortest head with at least so many messages and bytes (or all), then the rest."""
    count = max(messages, starting_within(group, size_bytes)) if size_bytes > 0 else messages
    return cut(group, count) if count < len(group) else [group]


def frame_pieces(group: TaskGroup, max_bytes: int) -> list[TaskGroup]:
    """Return the group, cut if its messages or their lengths are too large for a frame."""
    if group.size_bytes <= max_bytes and len(group.lengths) + len(group.header_lengths) <= max_bytes:
        return [group]
    most, count = most_messages(group, max_bytes), len(group)
    if count <= most:
        return group.split(max_bytes)
    return [
        piece
        for start in range(0, count, most)
        for piece in group.slice(start, min(start + most, count)).split(max_bytes)
    ]


def by_size(group: TaskGroup, limit_bytes: int) -> list[tuple[bool, TaskGroup]]:
    """Split a group into runs of messages within a limit (True) and over it (False), in order."""
    sizes = group.message_sizes()
    if group.size_bytes <= limit_bytes or max(sizes) <= limit_bytes:
        return [(True, group)]
    runs = []
    start = 0
    for fits, run in groupby(size <= limit_bytes for size in sizes):
        stop = start + len(list(run))
        runs.append((fits, group.slice(start, stop)))
        start = stop
    return runs
