"""Session values to wire messages and back; no logic beyond the mapping."""

from __future__ import annotations

from collections.abc import Iterable

from tuplewire.config import PROTOCOL_VERSION
from tuplewire.group import lane_of, task_and_via
from tuplewire.session.credit import Grant
from tuplewire.session.receive import AckUpdate, Refusal
from tuplewire.session.send import Opened
from tuplewire.wire import messaging_pb2 as pb


def hello_to_wire(
    *,
    topology: str,
    sender_id: str,
    incarnation: int,
    worker: bool,
    processed: bool,
    assignment_version: int,
    acknowledged: int,
    receiver_incarnation: int,
    draining: bool,
) -> pb.Hello:
    """Return the hello of a sender."""
    return pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        topology=topology,
        sender_id=sender_id,
        incarnation=incarnation,
        assignment_version=assignment_version,
        ack_mode=pb.ACK_MODE_PROCESSED if processed else pb.ACK_MODE_QUEUED,
        kind=pb.PEER_KIND_WORKER if worker else pb.PEER_KIND_CLIENT,
        acknowledged=acknowledged,
        receiver_incarnation=receiver_incarnation,
        draining=draining,
    )


def grant_to_wire(grant: Grant) -> pb.TaskCredit:
    """Return a grant as credit."""
    task, via = task_and_via(grant.lane)
    return pb.TaskCredit(
        task=task,
        messages=grant.messages,
        bytes=grant.size_bytes,
        processed=grant.processed,
        via=via,
    )


def grant_from_wire(credit: pb.TaskCredit) -> Grant:
    """Return credit as a grant."""
    return Grant(lane_of(credit.task, credit.via), credit.messages, credit.bytes, credit.processed)


def refusal_to_wire(refusal: Refusal) -> pb.Refusal:
    """Return a refusal."""
    return pb.Refusal(
        sequence=refusal.sequence,
        task=refusal.task,
        messages=refusal.messages,
        code=f"ERROR_CODE_{refusal.code}",
        detail=refusal.detail,
        owner=refusal.owner,
    )


def code_name(code: pb.ErrorCode) -> str:
    """Return an ErrorCode's name without its prefix; `UNSPECIFIED` for one that this release lacks."""
    if code not in pb.ErrorCode.values():
        return "UNSPECIFIED"
    return pb.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


def refusal_from_wire(refusal: pb.Refusal) -> Refusal:
    """Return a refusal."""
    return Refusal(
        refusal.sequence,
        refusal.task,
        refusal.messages,
        code_name(refusal.code),
        refusal.detail,
        refusal.owner,
    )


def update_to_wire(update: AckUpdate) -> pb.Ack:
    """Return an acknowledgement with its grants and refusals."""
    return pb.Ack(
        sequence=update.sequence,
        credits=[grant_to_wire(grant) for grant in update.grants],
        refusals=[refusal_to_wire(refusal) for refusal in update.refusals],
        after=update.after,
    )


def update_from_wire(
    sequence: int, credit: Iterable[pb.TaskCredit], refusals: Iterable[pb.Refusal], after: int = 0
) -> AckUpdate:
    """Return the parts of an acknowledgement or a welcome as an update."""
    return AckUpdate(
        sequence,
        [grant_from_wire(entry) for entry in credit],
        [refusal_from_wire(refusal) for refusal in refusals],
        after,
    )


def opened_from_wire(welcome: pb.Welcome) -> Opened:
    """Return what a welcome says to the sender's window."""
    return Opened(
        welcome.receiver_incarnation,
        grant_from_wire(welcome.initial_credit),
        update_from_wire(welcome.last_sequence, welcome.credits, welcome.refusals),
        welcome.max_message_bytes,
        welcome.max_frame_bytes,
    )
