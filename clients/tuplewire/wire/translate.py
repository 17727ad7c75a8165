"""Conversion of session values to wire messages and back, without other logic.

Used by the streams of clients and workers, and Spark's sink. Owns no state. Thread-safe.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tuplewire.errors import MalformedError
from tuplewire.session.consume import MAX_REASON
from tuplewire.session.departure import TaskContent
from tuplewire.values.group import check_task
from tuplewire.wire import messaging_pb2 as pb


def code_name(code: pb.ErrorCode) -> str:
    """Return an ErrorCode's name without its prefix, or `UNSPECIFIED` for a code unknown to this release."""
    if code not in pb.ErrorCode.values():
        return "UNSPECIFIED"
    return pb.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


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


def cursor_slices(cursor: pb.TaskCursor, most: int) -> Iterator[pb.TaskCursor]:
    """Yield a consumer's position in steps with at most `most` rejections each, and shorten long reasons.

    A step does not acknowledge a message with a rejection in a later step. Raises InvalidTaskError for an
    invalid task id, MalformedError if the numbers of rejections do not increase.
    """
    task, told = check_task(cursor.task), cursor.rejections
    number = 0
    for start in range(0, len(told) or 1, most):
        part = told[start : start + most]
        for each in part:
            if each.number <= number:
                raise MalformedError(f"rejection {each.number} of task {task} came after number {number}")
            number = each.number
            each.reason = each.reason[:MAX_REASON]
        if len(part) == len(told):  # nearly always
            yield cursor
            return
        acknowledged = cursor.acknowledged
        if len(told) > start + most:
            acknowledged = min(acknowledged, max(0, told[start + most].sequence - 1))
        yield pb.TaskCursor(
            task=task,
            acknowledged=acknowledged,
            received=cursor.received,
            credit=cursor.credit,
            credit_bytes=cursor.credit_bytes,
            rejections=part,
        )
