"""A worker's status for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from google.protobuf.message import Message

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.shown import shown
from tuplewire.wire import control_pb2

_MOST_SHOWN = 10
"""Congested tasks of one peer that are named to people."""


def state_name(state: control_pb2.WorkerState) -> str:
    """Return `ready` for WORKER_STATE_READY."""
    return control_pb2.WorkerState.Name(state).removeprefix("WORKER_STATE_").lower()


def ledger_of(ledger: control_pb2.Ledger) -> LedgerSnapshot:
    """Read a balance from the wire."""
    return LedgerSnapshot(ledger.accepted, ledger.acknowledged, dict(ledger.dropped), ledger.pending)


def status_as_json(status: control_pb2.GetStatusResponse) -> dict[str, Any]:
    """Return the status as plain values; counts are numbers, which protobuf's own JSON makes strings."""
    return {**_plain(status), "state": state_name(status.state)}


def _plain(value: Any) -> Any:
    if isinstance(value, str | float | int):
        return value
    if isinstance(value, Message):
        fields = {each.name: _plain(getattr(value, each.name)) for each in value.DESCRIPTOR.fields}
        if isinstance(value, control_pb2.Ledger):
            fields["balanced"] = ledger_of(value).balanced
        return fields
    return dict(value) if isinstance(value, Mapping) else list(map(_plain, value))


def status_as_text(status: control_pb2.GetStatusResponse) -> str:
    """Return the status as lines for a terminal."""
    return "\n".join(map(shown, _lines(status)))


def _lines(status: control_pb2.GetStatusResponse) -> Iterator[str]:
    yield f"worker      {status.worker_id} (tuplewire {status.version}), topology {status.topology}"
    assignment = (
        f"assignment {status.assignment_version}" if status.assignment_version else "no assignment yet"
    )
    if status.newest_assignment_version > status.assignment_version:
        assignment += f" (another worker has {status.newest_assignment_version})"
    moving = f", {status.moving_tasks} tasks moving" if status.moving_tasks else ""
    yield f"state       {state_name(status.state)}, {assignment}{moving}"
    if status.not_ready_because:
        yield f"not ready   {status.not_ready_because}"
    yield f"addresses   {' '.join(status.addresses)}"
    if status.peer_addresses:
        yield f"for peers   {' '.join(status.peer_addresses)}"
    yield f"ledger      {ledger_of(status.ledger)}"
    age = sum(status.state_seconds.values()) or 1.0
    shares = sorted(status.state_seconds.items(), key=itemgetter(1), reverse=True)
    yield f"time        {', '.join(f'{seconds / age:.0%} {state}' for state, seconds in shares)}"
    for each in status.blocking:
        yield f"blocking    task {each.task} ({each.where}) has held others up for {each.seconds:.1f} s"
    for count in status.received:
        yield (
            f"received    from {count.source}: {count.messages} messages in {count.batches} batches, "
            f"{count.bytes} bytes"
        )
    for peer in status.peers:
        link = "connected" if peer.connected else "not connected"
        yield f"peer        {peer.address} {link}, {peer.reconnects} reconnects; {ledger_of(peer.ledger)}"
        if peer.congested:
            more = (
                f" and {len(peer.congested) - _MOST_SHOWN} more" if len(peer.congested) > _MOST_SHOWN else ""
            )
            tasks = ", ".join(map(str, peer.congested[:_MOST_SHOWN]))
            yield f"congested   at {peer.address}: tasks {tasks}{more}"
    for task in status.tasks:
        full = ", congested" if task.congested else ""
        consumer = "subscribed" if task.subscribed else "no consumer"
        yield f"task        {task.task}: {task.queued_messages} messages queued, {consumer}{full}"
