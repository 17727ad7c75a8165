"""Names of error codes, and the content of the tasks in a sink's epoch, on the wire.

Used by the streams of clients and workers, and Spark's sink. Owns no state. Thread-safe.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tuplewire.wire import messaging_pb2 as pb

_ADLER_BASE = 65_521


def code_name(code: pb.ErrorCode) -> str:
    """Return an ErrorCode's name without its prefix, or `UNSPECIFIED` for a code unknown to this release."""
    if code not in pb.ErrorCode.values():
        return "UNSPECIFIED"
    return pb.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


class TaskContent(NamedTuple):
    """A summary of the messages of a task in an epoch, regardless of their order.

    `messages` is 0 if the content is unknown. `size_bytes` counts the bytes of payloads, keys and headers;
    `checksum` is their sum, modulo 65,521.
    """

    messages: int = 0
    size_bytes: int = 0
    checksum: int = 0

    def plus(self, other: TaskContent) -> TaskContent:
        """Return the summary of both contents together."""
        return TaskContent(
            self.messages + other.messages,
            self.size_bytes + other.size_bytes,
            (self.checksum + other.checksum) % _ADLER_BASE,
        )


def contents_to_wire(tasks: Mapping[int, TaskContent]) -> list[pb.TaskContent]:
    """Convert the content of tasks in an epoch, in the order of the tasks."""
    return [
        pb.TaskContent(messages=each.messages, bytes=each.size_bytes, checksum=each.checksum)
        for each in tasks.values()
    ]


def contents_from_wire(tasks: Iterable[int], contents: Iterable[pb.TaskContent]) -> dict[int, TaskContent]:
    """Return the content of tasks in an epoch, by task."""
    got = (TaskContent(each.messages, each.bytes, each.checksum) for each in contents)
    return {task: next(got, TaskContent()) for task in tasks}
