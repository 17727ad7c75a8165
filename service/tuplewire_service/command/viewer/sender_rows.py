"""The senders of a worker as rows. Pure: no clock, no I/O. Used by cluster_rows.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.columns import (
    Column,
    Row,
    number_of,
    short_client,
    size_of,
    time_of,
    yes_of,
)
from tuplewire_service.command.viewer.rates import Interval


@dataclass(frozen=True, slots=True)
class SenderRow(Row):
    """A sender's session at a worker. `sender` is the ID of the sender, or of the worker that sends."""

    ORDER = ("rate", "outstanding_messages")
    worker: Annotated[str, Column("worker")]
    sender: Annotated[str, Column("sender", short_client)]
    identity: Annotated[str, Column("identity")]
    connected: Annotated[bool, Column("connected", yes_of)]
    seconds: Annotated[float, Column("since", time_of)]
    rate: Annotated[float | None, Column("messages/s", number_of)]
    bytes_rate: Annotated[float | None, Column("bytes/s", size_of, minor=True)]
    messages: Annotated[int, Column("messages", number_of, minor=True)]
    bytes: Annotated[int, Column("bytes", size_of, minor=True)]
    outstanding_messages: Annotated[int, Column("outstanding", number_of)]
    window_messages: Annotated[int, Column("window", number_of)]
    exhausted_tasks: Annotated[int, Column("waits for", number_of)]
    address: Annotated[str, Column("address")]


def sender_rows(now: pb.GetStatusResponse, over: Interval) -> Iterator[SenderRow]:
    """Yield a row for each listed session of a worker."""
    before = {(each.identity, each.sender_id): each for each in over.before.sessions}
    for each in now.sessions:
        at = each.identity, each.sender_id
        then = before.get(at, pb.SessionStatus())
        # A worker lists only some of many sessions, so a newly listed session may be an old one.
        known = at in before or each.seconds < over.seconds
        yield SenderRow.of(
            each,
            worker=now.worker_id,
            sender=each.worker_id or each.sender_id,
            rate=over.rate(each.messages, then.messages) if known else None,
            bytes_rate=over.rate(each.bytes, then.bytes) if known else None,
        )
