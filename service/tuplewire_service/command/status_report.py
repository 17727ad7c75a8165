"""A worker's status as text, JSON and debug bundle, and the tables of `tuplewire top` and `tuplewire status`.

Used by control_commands.py, inspection_commands.py and demos. Owns no state. Thread-safe.
Design: docs/design/status.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

from google.protobuf.message import Message

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.formatting import counted, escape_unprintable, fold
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.terminal import PROBLEM_STYLE, write_lines, write_table
from tuplewire_service.command.viewer.cluster_rows import TABLES, ClusterRows, TaskRow, cluster_rows
from tuplewire_service.command.viewer.columns import NOT_KNOWN, Column, Row, format_time, select_rows
from tuplewire_service.command.viewer.rates import WorkerSample, state_name
from tuplewire_service.control.control_messages import MAX_CLIENTS

MAX_LINES = 40  # lines of one kind, and rows of one table, in the text
_GAP = 2  # between two columns
_MAX_CELL_WIDTH = 20
_SAMPLE_INTERVAL_SECONDS = 1.0
_NAME = re.compile(r"[a-z-]{1,30}\.(?:json|toml|txt)")


def ledger_of(ledger: pb.Ledger) -> LedgerSnapshot:
    """Convert a ledger from its wire message."""
    return LedgerSnapshot(ledger.accepted, ledger.acknowledged, dict(ledger.dropped), ledger.pending)


def status_as_json(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return the status as plain values. Counts are numbers; in protobuf's own JSON, they are strings."""
    return {**_to_plain(status), "state": state_name(status.state)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, str | float | int):
        return value
    if isinstance(value, Message):
        fields = {each.name: _field(value, each) for each in value.DESCRIPTOR.fields}
        if isinstance(value, pb.Ledger):
            fields["balanced"] = ledger_of(value).balanced
        return fields
    if isinstance(value, Mapping):
        return {key: _to_plain(each) for key, each in value.items()}
    return list(map(_to_plain, value))


def _field(message: Message, field: Any) -> Any:
    absent = field.has_presence and field.message_type is None and not message.HasField(field.name)
    return None if absent else _to_plain(getattr(message, field.name))  # JSON has null for an unset field


def status_as_text(status: pb.GetStatusResponse) -> str:
    """Return the lines about the worker itself; write_tables() has the rest."""
    return "\n".join(map(escape_unprintable, _lines(status)))


def _lines(status: pb.GetStatusResponse) -> Iterator[str]:
    yield f"worker      {status.worker_id} (tuplewire {status.version}), topology {status.topology}"
    version = status.assignment_version
    assignment = f"assignment {version}" if version else "no assignment yet"
    if status.newest_assignment_version > version:
        assignment += f" (another worker has {status.newest_assignment_version})"
    moving = f", {counted(status.moving_task_count, 'task')} moving" if status.moving_task_count else ""
    yield f"state       {state_name(status.state, inactive=status.spouts_inactive)}, {assignment}{moving}"
    if status.not_ready_reason:
        yield f"not ready   {status.not_ready_reason}"
    if missing := [each.worker_id for each in status.peers if not each.connected]:
        yield f"peers       {', '.join(missing[:MAX_LINES])} not connected"
    yield f"addresses   {' '.join(status.addresses)}"
    if status.peer_addresses:
        yield f"for peers   {' '.join(status.peer_addresses)}"
    yield f"ledger      {ledger_of(status.ledger)}"
    recent, interval = status.recent, status.recent.interval_seconds
    if interval:
        yield (
            f"recent      in {interval:.1f} s: {recent.accepted / interval:,.0f} accepted/s, "
            f"{recent.acknowledged / interval:,.0f} acknowledged/s, {recent.dropped} dropped; "
            f"{_format_shares(recent.state_seconds)}"
        )
    yield f"time        {_format_shares(status.state_seconds)}"
    for each in status.blocking:
        share = f"{each.recent_seconds:.1f} of {interval:.1f} s recently, " if each.recent_seconds else ""
        total = f"{share}{each.seconds:.1f} s in total"
        yield f"blocking    task {each.task} ({each.place}) has blocked others for {total}"
    received = sorted(status.received, key=attrgetter("messages"), reverse=True)
    for count in received[:MAX_LINES]:
        yield (
            f"received    from {count.source}: {counted(count.messages, 'message')}, "
            f"{counted(count.bytes, 'byte')}, frames: {count.frames:,}"
        )
    if len(received) > MAX_LINES:
        yield f"received    and from {len(received) - MAX_LINES} more"
    if status.rejections:
        task = status.dead_letter_task if status.HasField("dead_letter_task") else "none"
        waiting = f"copies waiting: {status.rejected_waiting_messages:,}"
        yield f"rejected    {counted(status.rejections, 'time')}, {waiting}; dead-letter task: {task}"


def undelivered_lines(client: ControlClient) -> Iterator[str]:
    """Yield lines about tasks without a consumer; of a draining worker, about all that it waits for."""
    with suppress(TuplewireError):  # the worker has stopped
        status = client.status()
        drains = status.state == pb.WORKER_STATE_DRAINING
        waiting = [each for each in status.tasks if each.queued_messages and (drains or not each.subscribed)]
        waiting.sort(key=attrgetter("queued_messages"), reverse=True)
        for each in waiting[:MAX_LINES]:
            oldest = f", the oldest for {format_time(each.oldest_seconds)}" if each.oldest_seconds else ""
            whose = "not acknowledged by its consumer" if each.subscribed else "without a consumer"
            yield f"{counted(each.queued_messages, 'message')} to task {each.task} {whose}{oldest}"
        if others := sum(each.queued_messages for each in waiting[MAX_LINES:]):
            yield f"{counted(others, 'message')} to {counted(len(waiting) - MAX_LINES, 'more task')}"
        if drains and (copies := status.rejected_waiting_messages):
            yield f"{counted(copies, 'message')} to deliver again, or as dead letters, after rejections"
        for peer in status.peers if drains else ():
            if pending := peer.ledger.pending:
                missing = "acknowledged" if peer.connected else "connected"
                yield f"{counted(pending, 'message')} to worker {peer.worker_id}, not {missing}"
        for component in status.components if drains else ():
            if tuples := sum(each.queued_tuples for each in component.executors):
                yield f"{counted(tuples, 'tuple')} in executors of {component.component}"


def _format_shares(state_seconds: Mapping[str, float]) -> str:
    age = sum(state_seconds.values()) or 1.0
    shares = sorted(((seconds / age, state) for state, seconds in state_seconds.items()), reverse=True)
    return ", ".join(f"{share:.0%} {state}" for share, state in shares if share > 0.005)  # less is 0%


def write_tables(
    stream: TextIO, cluster: ClusterRows, limit: int, wanted: str = "", width: int | None = None
) -> None:
    """Write sentences about problems, and the first `limit` rows of each table that have `wanted`.

    `width` is in characters, by default the width of the terminal; files and pipes have no limit. With
    a width, unused tasks are only counted, unless `wanted` is given.
    """
    if width is None and stream.isatty():
        width = shutil.get_terminal_size().columns
    for sentence in map(escape_unprintable, cluster.problems):
        write_lines(stream, *fold(sentence, width or len(sentence)).split("\n"), style=PROBLEM_STYLE)
    tables: dict[str, list[Row]] = {name: select_rows(getattr(cluster, name), wanted) for name in TABLES}
    if wanted and not any(tables.values()):
        write_lines(stream, "", f"no row contains {wanted}")
    for name, found in tables.items():
        if not found:
            continue
        columns = list(found[0].columns().values())
        rows = [row for row in found if wanted or not width or not (isinstance(row, TaskRow) and row.unused)]
        lines = [row.cells() for row in rows[:limit]]
        if width:
            lines = [[_shorten(escape_unprintable(cell)) for cell in line] for line in lines]
        shown, hidden = _visible_columns(columns, lines, width)
        titles = ", ".join(columns[i].title for i in hidden)
        write_lines(stream, "", f"{name} (a wider terminal also shows: {titles})" if hidden else name)
        header, *cells = [[line[i] for i in shown] for line in ([each.title for each in columns], *lines)]
        if rows:
            write_table(stream, header, cells)
        if omitted_rows := len(found) - len(lines):
            omitted_text = f"{omitted_rows} more" if len(rows) > limit else counted(omitted_rows, "idle task")
            write_lines(stream, f"{'and ' if rows else ''}{omitted_text}; --json has all of them")


def _shorten(cell: str) -> str:
    """Return a long name without its middle, because names often differ only at their ends."""
    half = _MAX_CELL_WIDTH // 2 - 2
    return cell if len(cell) <= _MAX_CELL_WIDTH else f"{cell[:half]}...{cell[-half:]}"


def _visible_columns(
    columns: list[Column], lines: list[list[str]], width: int | None
) -> tuple[list[int], list[int]]:
    """Return the indexes of columns with content: columns that fit the width, and the others.

    Minor columns are omitted first.
    """
    filled = [any(cell not in {"", NOT_KNOWN} for cell in column) for column in zip(*lines, strict=True)]
    shown, hidden = [index for index, has_content in enumerate(filled) if has_content], []
    widths = [_GAP + max(map(len, each)) for each in zip([c.title for c in columns], *lines, strict=True)]
    while width and sum(widths[i] for i in shown) - _GAP > width:
        hidden.append(max((i for i in shown if columns[i].minor), default=shown[-1]))
        shown.remove(hidden[-1])
    return shown, sorted(hidden)


def write_bundle(client: ControlClient, file: Path) -> list[str]:
    """Write a worker's debug files, status and rates to a new zip file, and return the names in it.

    Only the owner can read the file. Raises ConfigError if it exists.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} is there already: give another name with -o") from None
    try:
        with (
            os.fdopen(descriptor, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle,
        ):
            contents = _bundle_files(client)
            for name, content in contents.items():
                bundle.writestr(name, content)
    except BaseException:
        file.unlink()
        raise
    return sorted(contents)


def _bundle_files(client: ControlClient) -> dict[str, bytes]:
    before, began = client.status(MAX_CLIENTS), time.monotonic()
    # The worker chooses the names. None may be a path, which could be outside of the folder when unpacked.
    contents = {name: content for name, content in client.debug().items() if _NAME.fullmatch(name)}
    time.sleep(max(0.0, began + _SAMPLE_INTERVAL_SECONDS - time.monotonic()))  # for rates
    now = client.status(MAX_CLIENTS)
    rows = cluster_rows([WorkerSample(now.worker_id, client.address, now, before)])
    extra = {"status.json": status_as_json(now), "live.json": dataclasses.asdict(rows)}
    return contents | {name: json.dumps(each, indent=2, default=str).encode() for name, each in extra.items()}
