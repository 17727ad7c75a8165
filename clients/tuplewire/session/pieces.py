"""Splitting groups at the limits of credit and frames, and the size of a group in a frame."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, groupby

from tuplewire.values.group import TaskGroup

LENGTH_BYTES = 4
"""Bytes for the length of each message in a frame. A group with headers has a second column of lengths."""

_GROUP_BYTES = 48
"""The maximum number of bytes of a group in a frame, in addition to its columns."""


def wire_bytes(group: TaskGroup) -> int:
    """Return an upper bound on the bytes of a group in a frame. It is positive even without payload."""
    return group.size_bytes + len(group.lengths) + len(group.header_lengths) + _GROUP_BYTES


def max_piece_messages(group: TaskGroup, max_bytes: int) -> int:
    """Return the maximum number of messages with `max_bytes` for their columns of lengths; at least 1."""
    return max(1, max_bytes // (2 * LENGTH_BYTES if group.header_lengths else LENGTH_BYTES))


def count_within(group: TaskGroup, size_bytes: int) -> int:
    """Return the number of messages that start within the first `size_bytes` bytes (see TaskGroup)."""
    if size_bytes > group.size_bytes:
        return group.count
    return min(group.count, bisect_left(list(accumulate(group.message_sizes(), initial=0)), size_bytes))


def split_head(group: TaskGroup, count: int) -> list[TaskGroup]:
    """Return the first `count` messages, then the rest in pieces that double in size.

    `count` is at least 1 and less than the number of messages. Removing few messages at a time would copy
    the rest of a large group every time. With doubling pieces, each message is copied at most log(n) times.
    """
    bounds = [0]
    while count < group.count:
        bounds.append(count)
        count *= 2
    return group.cut((*bounds, group.count))


def split_min_head(group: TaskGroup, messages: int, size_bytes: int) -> list[TaskGroup]:
    """Return the shortest head of at least `messages` and `size_bytes`, or the whole group; then the rest."""
    count = max(messages, count_within(group, size_bytes)) if size_bytes > 0 else messages
    return split_head(group, count) if count < group.count else [group]


def frame_pieces(group: TaskGroup, max_bytes: int) -> list[TaskGroup]:
    """Return the group, split if it is too large for a frame. A piece of one message may be larger."""
    if group.size_bytes <= max_bytes and len(group.lengths) + len(group.header_lengths) <= max_bytes:
        return [group]
    max_messages = max_piece_messages(group, max_bytes)
    bounds = [0]
    begin = end = 0
    for index, size in enumerate(group.message_sizes()):
        if index - bounds[-1] >= max_messages or (end + size - begin > max_bytes and index > bounds[-1]):
            bounds.append(index)
            begin = end
        end += size
    return group.cut((*bounds, group.count))


def split_by_limit(group: TaskGroup, limit_bytes: int) -> list[tuple[bool, TaskGroup]]:
    """Split a group into runs of messages within the limit (True) and above it (False), in order."""
    sizes = group.message_sizes()
    # In the usual case all messages are within the limit, and nothing is copied.
    if group.size_bytes <= limit_bytes or max(sizes) <= limit_bytes:
        return [(True, group)]
    runs = []
    start = 0
    for fits, run in groupby(size <= limit_bytes for size in sizes):
        stop = start + len(list(run))
        runs.append((fits, group.slice(start, stop)))
        start = stop
    return runs
