"""A worker's status as text and as JSON.

Used by asking_commands.py, bundle.py and cluster_tables.py. Owns no state. Thread-safe.
Design: docs/design/status.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from google.protobuf.message import Message

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.shown import shown
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.rates import Interval, state_name

_MOST_SHOWN = 10  # tasks in one line of the text
_MOST_LINES = 40  # lines of one kind in the text

_Each = TypeVar("_Each")


def ledger_of(ledger: pb.Ledger) -> LedgerSnapshot:
    """Convert a ledger from its wire message."""
    return LedgerSnapshot(ledger.accepted, ledger.acknowledged, dict(ledger.dropped), ledger.pending)


def status_as_json(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return the status as plain values. Counts are numbers; in protobuf's own JSON, they are strings."""
    return {**_plain(status), "state": state_name(status.state)}


def _plain(value: Any) -> Any:
    if isinstance(value, str | float | int):
        return value
    if isinstance(value, Message):
        fields = {each.name: _field(value, each) for each in value.DESCRIPTOR.fields}
        if isinstance(value, pb.Ledger):
            fields["balanced"] = ledger_of(value).balanced
        return fields
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return list(map(_plain, value))


def _field(message: Message, field: Any) -> Any:
    absent = field.has_presence and field.message_type is None and not message.HasField(field.name)
    return None if absent else _plain(getattr(message, field.name))  # JSON has null for an unset field


def status_as_text(status: pb.GetStatusResponse, before: pb.GetStatusResponse | None = None) -> str:
    """Return the status as text, with long lists shortened, and rates since `before`, an earlier status."""
    return "\n".join(map(shown, _lines(status, Interval(before, status))))


def _lines(status: pb.GetStatusResponse, over: Interval) -> Iterator[str]:
    yield from _worker(status)
    yield from (_blocking(each, status.recent.seconds) for each in status.blocking)
    received = sorted(status.received, key=attrgetter("messages"), reverse=True)
    yield from _most(received, len(received), _received, "received    and from {} more")
    refused = {**status.refused_streams, **status.refused_messages}
    if any(refused.values()):
        streams = _counts(status.refused_streams)
        yield f"refused     {_counts(status.refused_messages)} messages, {streams} streams"
    if status.rejections:
        letters = (
            f"dead letters go to task {status.dead_letter_task}"
            if status.HasField("dead_letter_task")
            else "no dead-letter task"
        )
        yield f"rejected    {status.rejections} times, {status.rejected_waiting} copies wait; {letters}"
    yield from _peers(status.peers)
    yield from _clients(status)
    yield from _tasks(status.tasks, over)


def _worker(status: pb.GetStatusResponse) -> Iterator[str]:
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
    if status.resident_bytes:
        yield f"memory      {status.resident_bytes / 2**20:.0f} MiB"
    yield f"ledger      {ledger_of(status.ledger)}"
    recent = status.recent
    if recent.seconds:
        yield (
            f"lately      in {recent.seconds:.1f} s: {recent.accepted / recent.seconds:,.0f} accepted/s, "
            f"{recent.acknowledged / recent.seconds:,.0f} acknowledged/s, {recent.dropped} dropped; "
            f"{_shares(recent.state_seconds)}"
        )
    yield f"time        {_shares(status.state_seconds)}"


def _shares(state_seconds: Mapping[str, float]) -> str:
    age = sum(state_seconds.values()) or 1.0
    shares = sorted(state_seconds.items(), key=itemgetter(1), reverse=True)
    return ", ".join(f"{seconds / age:.0%} {state}" for state, seconds in shares)


def _blocking(each: pb.Blocking, span: float) -> str:
    lately = f"{each.recent_seconds:.1f} of the last {span:.1f} s, " if each.recent_seconds else ""
    return (
        f"blocking    task {each.task} ({each.where}) has held others up for {lately}"
        f"{each.seconds:.1f} s in all"
    )


def _received(count: pb.ReceiveCount) -> str:
    return (
        f"received    from {count.source}: {count.messages} messages in {count.batches} batches, "
        f"{count.bytes} bytes"
    )


def _counts(counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} {code}" for code, count in sorted(counts.items()) if count)
    return f"{sum(counts.values())} ({told})" if told else "0"


def _peers(peers: Iterable[pb.PeerStatus]) -> Iterator[str]:
    for peer in peers:
        link = "connected" if peer.connected else "not connected"
        yield f"peer        {peer.address} {link}, {peer.reconnects} reconnects; {ledger_of(peer.ledger)}"
        if peer.congested:
            yield f"congested   at {peer.address}: {_named(peer.congested)}"


def _clients(status: pb.GetStatusResponse) -> Iterator[str]:
    known = status.connected_sessions + status.remembered_sessions
    if known:
        least = ""
        if status.HasField("smallest_window"):
            least = f"; the smallest window is of {status.smallest_window} messages"
        count = f"{status.connected_sessions} connected, {status.remembered_sessions} remembered"
        yield f"senders     {count}{least}"
    yield from _most(status.sessions, known, _sender, "sender      and {} more")
    subscribed = status.subscribed_consumers
    yield from _most(status.consumers, subscribed, _consumer, "consumer    and {} more")


def _sender(session: pb.SessionStatus) -> str:
    name = f"worker {session.worker_id}" if session.worker_id else session.sender_id
    since = f"{'connected' if session.connected else 'gone'} for {time_of(session.seconds)}"
    waits = f", waits for room (tasks: {session.exhausted_tasks})" if session.exhausted_tasks else ""
    return (
        f"sender      {name}{_origin(session)}, {since}: {session.messages} messages, {session.bytes} bytes, "
        f"{session.outstanding_messages} ({session.outstanding_bytes} bytes) outstanding, "
        f"window {session.window_messages}{waits}"
    )


def _consumer(consumer: pb.ConsumerStatus) -> str:
    return (
        f"consumer    {consumer.consumer_id}{_origin(consumer)}, for {time_of(consumer.seconds)}: "
        f"{_named(consumer.tasks)}, {consumer.outstanding_messages} outstanding"
    )


def _origin(client: pb.SessionStatus | pb.ConsumerStatus) -> str:
    who = f" ({client.who})" if client.who else ""
    return f"{who} at {client.address}" if client.address else f"{who} in the worker"


def _tasks(tasks: Sequence[pb.TaskStatus], over: Interval) -> Iterator[str]:
    """Yield the lines of tasks; if there are too many, the tasks with most queued messages come first."""
    if len(tasks) > _MOST_LINES:
        tasks = sorted(tasks, key=attrgetter("queued_messages"), reverse=True)
    more = "task        and {} more; --json has all of them"
    yield from _most(tasks, len(tasks), partial(_task, over), more)


def _task(over: Interval, task: pb.TaskStatus) -> str:
    full = ", congested" if task.congested else ""
    consumer = "subscribed" if task.subscribed else "no consumer"
    oldest = f", the oldest of {time_of(task.oldest_seconds)} ago" if task.oldest_seconds else ""
    rates = [f" ({rate:,.0f}/s)" if rate is not None else "" for rate in over.task(task)]
    return (
        f"task        {task.task}: {task.queued_messages} messages queued, {consumer}{full}{oldest}; "
        f"{task.received_messages} in{rates[0]}, {task.acknowledged_messages} out{rates[1]}"
    )


def _most(each: Sequence[_Each], known: int, line: Callable[[_Each], str], more: str) -> Iterator[str]:
    yield from map(line, each[:_MOST_LINES])
    if known > min(len(each), _MOST_LINES) > 0:
        yield more.format(known - min(len(each), _MOST_LINES))


def _named(tasks: Sequence[int]) -> str:
    more = f" and {len(tasks) - _MOST_SHOWN} more" if len(tasks) > _MOST_SHOWN else ""
    return f"task{'s' * (len(tasks) > 1)} {', '.join(map(str, tasks[:_MOST_SHOWN]))}{more}"


def time_of(seconds: float) -> str:
    """Return a time in days, hours, minutes or seconds, with one decimal."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
