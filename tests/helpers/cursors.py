"""Functions that build acknowledgements, credit, refusals, positions and rejections from few arguments."""

from __future__ import annotations

from collections.abc import Iterable

from tuplewire.values.group import split_flow
from tuplewire.wire import messaging_pb2 as pb


def ack_of(
    sequence: int, grants: Iterable[pb.TaskCredit] = (), refusals: Iterable[pb.Refusal] = (), after: int = 0
) -> pb.Ack:
    """Return an acknowledgement of the frames up to a sequence."""
    return pb.Ack(sequence=sequence, credits=grants, refusals=refusals, previous_sequence=after)


def credit_of(flow: int, messages: int, size_bytes: int, processed: int) -> pb.TaskCredit:
    """Return the credit of a flow."""
    task, flow_path = split_flow(flow)
    return pb.TaskCredit(
        task=task, messages=messages, bytes=size_bytes, released_messages=processed, flow_path=flow_path
    )


def refusal_of(
    sequence: int, task: int, messages: int, code: str, detail: str, owner: str = "", flow_path: int = 0
) -> pb.Refusal:
    """Return the refusal of a frame's messages for a task; `code` is the name without its prefix."""
    return pb.Refusal(
        frame_sequence=sequence,
        task=task,
        messages=messages,
        code=f"ERROR_CODE_{code}",
        detail=detail,
        owner_address=owner,
        flow_path=flow_path,
    )


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
        acknowledged_sequence=acknowledged,
        received_sequence=received,
        credit_sequence=credit,
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
    return pb.RejectedTask(task=task, rejection_number=number, received_sequence=received)
