"""Functions that build a consumer's positions, rejections and their answers from a few arguments."""

from __future__ import annotations

from collections.abc import Iterable

from tuplewire.wire import messaging_pb2 as pb


def cursor_of(
    task: int,
    acknowledged: int,
    received: int,
    credit: int,
    credit_bytes: int,
    rejections: Iterable[pb.Rejection] = (),
) -> pb.TaskCursor:
    """Return a consumer's position in a task."""
    return pb.TaskCursor(
        task=task,
        acknowledged=acknowledged,
        received=received,
        credit=credit,
        credit_bytes=credit_bytes,
        rejections=rejections,
    )


def rejection_of(
    number: int, sequence: int, after_seconds: float, reason: str, *, wait: bool
) -> pb.Rejection:
    """Return the rejection of a message."""
    return pb.Rejection(
        number=number, sequence=sequence, after_millis=round(after_seconds * 1000), reason=reason, wait=wait
    )


def answer_of(task: int, number: int, received: int) -> pb.RejectedTask:
    """Return a worker's answer to the rejections up to a number."""
    return pb.RejectedTask(task=task, number=number, received=received)
