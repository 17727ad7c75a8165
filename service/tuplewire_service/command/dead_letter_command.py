"""`tuplewire dead-letters`: lists, shows, replays and drops messages that were rejected too often.

It is the dead-letter task's consumer while it runs. The next consumer receives the remaining dead letters,
with `redelivered` set. Used by cli.py. Owns no state. Not thread-safe. Design: docs/design/acking.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError
from tuplewire.settings.config import MIB
from tuplewire.text.escaping import escape_unprintable
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import encoded_of
from tuplewire_service.command.message_commands import client_of
from tuplewire_service.command.parsers import add_client_command, add_topology, control_of, owners_of, task_id
from tuplewire_service.command.terminal import write_table, write_text
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from tuplewire.client import Client
    from tuplewire.connection.receiver import Receiver
    from tuplewire.session.consume import Arrived
    from tuplewire.values.dead_letters import DeadMessage

_SHOWN_BYTES = 2000
_HEADER = ("id", "time", "task", "source", "count", "bytes", "reason")


def add_dead_letter_command(commands: Any) -> None:
    """Add the command."""
    about = "list, replay or drop messages rejected too often"
    parser = add_client_command(commands, _dead_letters, about, "list")
    about = "list; show with payloads; drop; or replay: send to their tasks again, and then drop"
    parser.add_argument("action", choices=list(_ACTIONS), help=about)
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids of messages, as printed by `list`")
    parser.add_argument("--all", action="store_true", help="select all messages")
    parser.add_argument("--task", **task_id, help="select messages to this task")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line, with the payload")
    add_topology(parser)


def _dead_letters(arguments: argparse.Namespace) -> int:
    chosen = arguments.ids or arguments.all or arguments.task is not None
    if arguments.action != "list" and not chosen:
        raise ConfigError(f"say which to {arguments.action}: IDs as `list` names them, --task or --all")
    with _box_of(arguments) as box:
        letters = [
            each
            for each in box.letters
            if arguments.task in {None, each.task} and (not arguments.ids or each.id in arguments.ids)
        ]
        missing = set(arguments.ids) - {each.id for each in letters}
        printed = arguments.json and arguments.action in {"list", "show"}
        act = _write_json if printed else _ACTIONS[arguments.action]
        act(box, letters)
    if missing:
        names = ", ".join(map(escape_unprintable, sorted(missing)))
        print(f"there is no dead letter {names}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


@dataclass
class _Box:
    client: Client
    receiver: Receiver
    arrived: Sequence[Arrived]
    letters: Sequence[DeadMessage]
    timeout: float

    def take_out(self, ids: Collection[str]) -> None:
        """Remove these dead letters. All others are rejected, so they are redelivered in order."""
        from tuplewire.session.consume import Rejected

        for each in self.arrived:
            kept = [
                Rejected(index, 0.0, "kept", wait=False)
                for index, letter in _letters_in(each)
                if letter is None or letter.id not in ids  # None: a message that is not a dead letter
            ]
            self.receiver.acknowledge(each, kept)


def _letters_in(arrived: Arrived) -> Iterator[tuple[int, DeadMessage | None]]:
    from tuplewire.values.batch import TaskMessageBatch
    from tuplewire.values.dead_letters import DeadMessage

    indexes = count()
    for group in arrived.groups:
        for message in TaskMessageBatch.from_groups([group]):
            yield next(indexes), DeadMessage.read(message, redelivered=group.redelivered)


@contextmanager
def _box_of(arguments: argparse.Namespace) -> Iterator[_Box]:
    """Receive all messages of the dead-letter task from the worker that owns it."""
    with control_of(arguments) as control:
        status = control.status()
        if not status.HasField("dead_letter_task"):
            raise ConfigError(
                f"the worker {status.worker_id} has no dead_letter_task: start it with --dead-letter-task"
            )
        task = status.dead_letter_task
        arguments.address, *_ = owners_of(control, [task])
    arguments.topology = arguments.topology or status.topology
    with control_of(arguments) as control:
        there = next((each for each in control.status().tasks if each.task == task), None)
    if there is None:
        raise ConfigError(f"no worker has the dead-letter task {task}: give it to one in the assignment")
    room = max(1, there.queued_messages)  # all are received before one is acknowledged
    with client_of(
        arguments, prefetch_messages=room, prefetch_bytes=there.queued_bytes + MIB, reject_order="continue"
    ) as client:
        receiver, *_ = client._receive([task], None, follow=True)
        arrived: list[Arrived] = []
        left, deadline = there.queued_messages, time.monotonic() + arguments.timeout
        while left > 0 and (batch := receiver.take(max(0.0, deadline - time.monotonic()))) is not None:
            arrived.append(batch)
            left -= sum(map(len, batch.groups))
        letters = [letter for each in arrived for _, letter in _letters_in(each) if letter is not None]
        yield _Box(client, receiver, arrived, letters, arguments.timeout)


def _list(_: _Box, letters: Sequence[DeadMessage]) -> None:
    if not letters:
        print("no dead letters", file=sys.stderr)
        return
    rows = []
    for each in letters:
        source = "" if each.source is None else str(each.source)
        size = len(each.message.payload)
        rows.append([each.id, each.time, str(each.task), source, str(each.count), str(size), each.reason])
    write_table(sys.stdout, _HEADER, rows)


def _write_json(_: _Box, letters: Sequence[DeadMessage]) -> None:
    from tuplewire_service.command.messages import as_json

    for each in letters:
        facts = {name: getattr(each, name) for name in ("id", "task", "source", "count", "reason", "time")}
        print(json.dumps({**facts, **as_json(each.message), "task": each.task}))


def _show(_: _Box, letters: Sequence[DeadMessage]) -> None:
    for each in letters:
        source = "" if each.source is None else f" from task {each.source}"
        lines = [
            f"id       {each.id}",
            f"to       task {each.task}{source}",
            f"rejected {each.count} times; a dead letter since {each.time}",
            f"reason   {each.reason or 'none was given'}",
        ]
        if each.message.key is not None:
            lines.append(f"key      {each.message.key.decode(errors='backslashreplace')}")
        lines += [
            f"header   {name}: {(value or b'').decode(errors='backslashreplace')}"
            for name, value in each.message.headers
        ]
        payload = each.message.payload
        more = f" ... ({len(payload)} bytes)" if len(payload) > _SHOWN_BYTES else ""
        lines.append(f"payload  {payload[:_SHOWN_BYTES].decode(errors='backslashreplace')}{more}")
        write_text(sys.stdout, "\n".join([*map(escape_unprintable, lines), "", ""]))


def _replay(box: _Box, letters: Sequence[DeadMessage]) -> None:
    from tuplewire.values.batch import TaskMessageBatch

    groups = []
    for each in letters:
        message = each.message
        group = TaskGroup.joined(each.task, each.source, [message.payload], [encoded_of(message)])
        groups.append(group.as_redelivered() if each.redelivered else group)
    box.client.send(TaskMessageBatch.from_groups(groups), timeout=box.timeout)
    box.client.flush(box.timeout)  # before the removal: an error may duplicate, but not lose messages
    box.take_out({each.id for each in letters})
    print(f"{len(letters)} sent again", file=sys.stderr)


def _drop(box: _Box, letters: Sequence[DeadMessage]) -> None:
    box.take_out({each.id for each in letters})
    print(f"{len(letters)} dropped", file=sys.stderr)


_ACTIONS: dict[str, Callable[[_Box, Sequence[DeadMessage]], None]] = {
    "list": _list,
    "show": _show,
    "replay": _replay,
    "drop": _drop,
}
