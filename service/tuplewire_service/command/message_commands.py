"""`tuplewire send`, `recv` and `dead-letters`.

`dead-letters` is the dead-letter task's consumer while it runs. The next consumer receives the remaining dead
letters, with `redelivered` set. Used by cli.py. Owns no state. Not thread-safe.
Reference: docs/reference/command.md. Design: docs/design/acking.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Unpack

from tuplewire.errors import ConfigError, DrainingError, FlushTimeoutError, MessageError, UnknownTaskError
from tuplewire.settings.config import MIB
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import encoded_of
from tuplewire.values.task_ids import format_tasks
from tuplewire_service.command.messages import (
    MessageFormat,
    count_read_messages,
    json_fields,
    make_message_writer,
    read_messages,
    read_records,
    wait_for_reader,
)
from tuplewire_service.command.parsers import (
    POSITIVE_COUNT_ARG,
    SECONDS_ARG,
    TASK_ARG,
    TASKS_ARG,
    Handler,
    Parser,
    add_client_command,
    add_topology,
    enum_arg,
    fetch_owners,
    make_control_client,
    read_credentials,
)
from tuplewire_service.command.terminal import counted, write_lines, write_table
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from tuplewire.client import Client
    from tuplewire.connection.receiver import Receiver
    from tuplewire.session.consume import ArrivedBatch
    from tuplewire.settings.config import SessionKeywords
    from tuplewire.values.dead_letters import DecodedDeadLetter

_NOTICE_SECONDS = 1.0
_INTERRUPTED_SECONDS = 2.0  # the longest wait for acknowledgements after Ctrl-C
_RAISED = "messages.refused", "connection.ended"  # log events of errors that flush() raises
_MAX_SHOWN_BYTES = 2000
_HEADER = ("id", "time (UTC)", "task", "source", "count", "bytes", "reason")


def add_message_commands(commands: Any) -> None:
    """Add the commands `send`, `recv` and `dead-letters`."""
    parser = _add_messages(commands, _send, "send messages to a task", "42 hello")
    parser.add_argument("task", **TASK_ARG, nargs="?", help="task to send to; in json, for lines without it")
    about = "messages to send; none or -: read standard input"
    parser.add_argument("message", metavar="MESSAGE", nargs="*", help=about)
    parser.add_argument("--source", **TASK_ARG, help="task that sends (default: none)")
    parser = _add_messages(commands, _recv, "receive messages of tasks, and print them", "42 --count 1")
    parser.add_argument("tasks", **TASKS_ARG, help="tasks, like 42 or 1,2,10-19")
    about = "output file, emptied once the worker accepts; none or -: standard output"
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help=about)
    about = "exit after COUNT messages; a pipe to head may take more from the queue than it prints"
    parser.add_argument("--count", **POSITIVE_COUNT_ARG, help=about)
    about = "exit with 0 after SECONDS without a message; 0: after the queued ones; --timeout is no limit"
    parser.add_argument("--idle", **SECONDS_ARG, help=about)
    about = "list, show, replay or drop messages rejected too often; needs a worker with --dead-letter-task"
    parser = add_client_command(commands, _dead_letters, about, "list")
    about = "list; show with payloads; drop; or replay: send to their tasks again, and then drop"
    parser.add_argument("action", metavar="ACTION", choices=list(_ACTIONS), help=about)
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help="ids of messages, as in `list`")
    parser.add_argument("--all", action="store_true", help="select all messages")
    parser.add_argument("--task", **TASK_ARG, help="select messages to this task")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line, with the payload")


def _add_messages(commands: Any, handler: Handler, help_text: str, example: str) -> Parser:
    parser = add_client_command(commands, handler, help_text, example)
    add_topology(parser)
    about = (
        "lines: a payload per line; json: an object per line with task, message (or base64), key, and headers"
        ' [["name", "value"]], and for send also the lines of tap --json; prefixed: the length in four bytes '
        "before each payload (default: lines)"
    )
    parser.add_argument("--format", **enum_arg(MessageFormat), default=MessageFormat.LINES, help=about)
    return parser


@contextmanager
def client_of(
    arguments: argparse.Namespace,
    source: int | None = None,
    *,
    sends: bool = False,
    **settings: Unpack[SessionKeywords],
) -> Iterator[Client]:
    """Connect a client to a worker. Raise UnreachableError if it is not ready within the timeout."""
    wait_reason = f"the worker at {arguments.address}"
    with make_control_client(arguments) as control, wait_notice(wait_reason, arguments.timeout):
        with nullcontext() if sends else suppress(DrainingError):  # a worker that drains still delivers
            control.wait_ready(arguments.timeout)
        control.get_assignment()  # reads max_message_bytes, too
    from tuplewire.client import Client

    for name in ("connection.receiver_reports", "connection.sending_end"):
        logging.getLogger(f"tuplewire.{name}").addFilter(lambda each: not each.msg.startswith(_RAISED))
    credentials = read_credentials(arguments)
    settings["max_message_bytes"] = min(control.max_message_bytes, 64 * MIB)  # fits in the client's buffer
    client = Client(
        arguments.address, topology=arguments.topology, source=source, credentials=credentials, **settings
    )
    seconds = arguments.timeout
    try:
        yield client
    except (FlushTimeoutError, KeyboardInterrupt) as error:  # the flush has already waited
        seconds = 0 if isinstance(error, FlushTimeoutError) else min(seconds, _INTERRUPTED_SECONDS)
        raise
    finally:
        with suppress(FlushTimeoutError):
            client.close(seconds)


@contextmanager
def wait_notice(reason: str, timeout: float, more: Iterable[str] = ()) -> Iterator[Timer]:
    """Print a wait's reason and (lazy) `more` after a second, unless the block ends or cancels the timer."""
    limit = "Ctrl-C to stop" if timeout == math.inf else f"at most {timeout:g} s"
    timer = Timer(_NOTICE_SECONDS, lambda: write_lines(sys.stderr, f"waiting for {reason} ({limit})", *more))
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _send(arguments: argparse.Namespace) -> int:
    if arguments.task is None and arguments.format is not MessageFormat.JSON:
        raise ConfigError("TASK is missing; only --format json has tasks in its messages")
    payloads: Iterable[bytes] = map(os.fsencode, arguments.message)
    reads = arguments.message in ([], ["-"])
    if reads:
        payloads = read_records(sys.stdin.buffer, arguments.format)
    messages = read_messages(payloads, arguments.format, arguments.task)
    typed = reads and sys.stdin.isatty()
    if typed:
        print("type one message per line; Ctrl-D ends the input", file=sys.stderr)
    client: Client | None = None
    try:
        with client_of(arguments, arguments.source, sends=True) as client:
            with closing(counted(messages, "messages", _share_of_input, drawn=reads and not typed)) as each:
                for task, payload, metadata in each:
                    if not client.try_send(task, payload, **metadata):
                        with wait_notice(f"capacity for task {task}", arguments.timeout):
                            client.send(task, payload, timeout=arguments.timeout, **metadata)
            with wait_notice("acknowledgements", arguments.timeout):
                client.flush(arguments.timeout)
    finally:
        if client is not None:
            ledger = client.ledger()
            # The error lists messages to unknown tasks. They would be refused again.
            missing = ledger.accepted - ledger.acknowledged - ledger.dropped.get("unknown_task", 0)
            which = ": the last of each task" if ledger.acknowledged else ""
            note = f"; {missing} must be sent again{which}" if missing else ""
            print(f"{ledger.acknowledged} of {ledger.accepted} messages acknowledged{note}", file=sys.stderr)
    return EXIT_OK


def _share_of_input(_: int) -> float | None:
    """Return the share of standard input that was read; None if it is not a file."""
    size = os.fstat(sys.stdin.fileno()).st_size
    return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) / size if size else None


def _recv(arguments: argparse.Namespace) -> int:
    def share(taken: int) -> float | None:
        return taken / arguments.count if arguments.count else None

    to_stdout = arguments.file == "-"  # standard output stays open afterwards
    if not to_stdout and not arguments.file.strip("0123456789,-"):
        raise ConfigError(f"for several tasks, write 1,2,10-19; for a file, write ./{arguments.file}")
    with nullcontext(sys.stdout.buffer) if to_stdout else Path(arguments.file).open("ab") as out:
        terminal = sys.stdout.encoding if out.isatty() else None
        write = make_message_writer(out, arguments.format, terminal_encoding=terminal)
        mode = os.fstat(out.fileno()).st_mode
        idle = math.inf if arguments.idle is None else arguments.idle
        waited = f"messages to task {format_tasks(arguments.tasks)} at {arguments.address}"
        with (
            client_of(arguments, connect_timeout_seconds=arguments.timeout) as client,
            client.recv(arguments.tasks) as subscription,
            wait_notice(waited, idle) as notice,
        ):
            if stat.S_ISREG(mode) and not to_stdout:
                subscription._receiver.wait_until_admitted()  # a refusal or an outage destroys no messages
                out.truncate(0)
            messages = subscription.messages(arguments.count, quiet=idle)
            sizes: list[int] = []  # of the messages of the current batch
            number = 0
            # Only with a file: the reader of a pipe may write to the same terminal.
            with closing(counted(messages, "messages", share, drawn=stat.S_ISREG(mode))) as each:
                try:
                    for message in each:
                        number += 1
                        notice.cancel()
                        size = write(message)
                        out.flush()
                        sizes.append(size)
                        if subscription.at_batch_end:
                            if stat.S_ISFIFO(mode):
                                wait_for_reader(out)
                            sizes.clear()
                except BrokenPipeError:
                    subscription.acknowledge(count_read_messages(out, sizes))
                    raise
    if number < (arguments.count or 0):
        print(f"received {number} of {arguments.count} messages; then none for {idle:g} s", file=sys.stderr)
    return EXIT_OK


def _dead_letters(arguments: argparse.Namespace) -> int:
    has_selection = arguments.ids or arguments.all or arguments.task is not None
    if (arguments.action != "list" and not has_selection) or (arguments.ids and arguments.all):
        raise ConfigError(f"choose what to {arguments.action}: IDs as `list` prints them, --task or --all")
    with _receive_dead_letters(arguments) as batch:
        letters = [
            each
            for each in batch.dead_letters
            if arguments.task in {None, each.task} and (not arguments.ids or each.id in arguments.ids)
        ]
        if missing := sorted(set(arguments.ids) - {each.id for each in letters}):
            raise MessageError(f"there is no dead letter {', '.join(missing)}")
        prints_json = arguments.json and arguments.action in {"list", "show"}
        act = _write_json if prints_json else _ACTIONS[arguments.action]
        if letters or act not in {_list, _show}:
            act(batch, letters)
        else:
            print("no dead letters", file=sys.stderr)
    return EXIT_OK


@dataclass
class _DeadLetterBatch:
    client: Client
    receiver: Receiver
    arrived: Sequence[ArrivedBatch]
    dead_letters: Sequence[DecodedDeadLetter]
    timeout: float

    def remove(self, ids: Collection[str]) -> None:
        """Remove these dead letters. All others are rejected, so they are redelivered in order."""
        from tuplewire.session.consume import RejectedMessage

        for each in self.arrived:
            kept = [
                RejectedMessage(index, 0.0, "kept", blocks_task=False)
                for index, letter in _letters_in(each)
                if letter is None or letter.id not in ids  # None: a message that is not a dead letter
            ]
            self.receiver.acknowledge(each, kept)


def _letters_in(arrived: ArrivedBatch) -> Iterator[tuple[int, DecodedDeadLetter | None]]:
    from tuplewire.values.dead_letters import DecodedDeadLetter

    indexes = count()
    for group in arrived.groups:
        for message in TaskMessageBatch.from_groups([group]):
            yield next(indexes), DecodedDeadLetter.read(message, redelivered=group.redelivered)


@contextmanager
def _receive_dead_letters(arguments: argparse.Namespace) -> Iterator[_DeadLetterBatch]:
    """Receive all messages of the dead-letter task from the worker that owns it."""
    with make_control_client(arguments) as control:
        status = control.status()
        if not status.HasField("dead_letter_task"):
            raise UnknownTaskError(
                f"the worker {status.worker_id} has no dead_letter_task: start it with --dead-letter-task"
            )
        task = status.dead_letter_task
        arguments.address, *_ = fetch_owners(control, [task])
    arguments.topology = status.topology
    with make_control_client(arguments) as control:
        queue = next((each for each in control.status().tasks if each.task == task), None)
    if queue is None:
        raise ConfigError(f"no worker has the dead-letter task {task}: give it to one in the assignment")
    limit = max(1, queue.queued_messages)  # all are received before one is acknowledged
    with client_of(
        arguments, prefetch_messages=limit, prefetch_bytes=queue.queued_bytes + MIB, reject_order="continue"
    ) as client:
        receiver, *_ = client._start_subscription([task], None, follow=True)
        arrived: list[ArrivedBatch] = []
        remaining, deadline = queue.queued_messages, time.monotonic() + arguments.timeout
        while remaining > 0 and (batch := receiver.take(max(0.0, deadline - time.monotonic()))) is not None:
            arrived.append(batch)
            remaining -= sum(map(len, batch.groups))
        letters = [letter for each in arrived for _, letter in _letters_in(each) if letter is not None]
        yield _DeadLetterBatch(client, receiver, arrived, letters, arguments.timeout)


def _list(_: _DeadLetterBatch, letters: Sequence[DecodedDeadLetter]) -> None:
    rows = []
    for each in letters:
        source, size = "" if each.source is None else each.source, len(each.message.payload)
        time_s = each.time[:19].replace("T", " ")  # a narrow terminal wraps it at the space
        rows.append([*map(str, (each.id, time_s, each.task, source, each.count, size, each.reason))])
    write_table(sys.stdout, _HEADER, rows)


def _write_json(_: _DeadLetterBatch, letters: Sequence[DecodedDeadLetter]) -> None:
    for each in letters:
        facts = {name: getattr(each, name) for name in ("id", "task", "source", "count", "reason", "time")}
        print(json.dumps({**facts, **json_fields(each.message), "task": each.task}))


def _show(_: _DeadLetterBatch, letters: Sequence[DecodedDeadLetter]) -> None:
    for each in letters:
        source = "" if each.source is None else f" from task {each.source}"
        lines = [
            f"id       {each.id}",
            f"to       task {each.task}{source}",
            f"rejected {each.count} time{'' if each.count == 1 else 's'}; a dead letter since {each.time}",
            f"reason   {each.reason or 'none was given'}",
        ]
        if each.message.key is not None:
            lines.append(f"key      {each.message.key.decode(errors='backslashreplace')}")
        lines += [
            f"header   {name}: {(value or b'').decode(errors='backslashreplace')}"
            for name, value in each.message.headers
        ]
        payload = each.message.payload
        more = f" ... ({len(payload)} bytes)" if len(payload) > _MAX_SHOWN_BYTES else ""
        lines.append(f"payload  {payload[:_MAX_SHOWN_BYTES].decode(errors='backslashreplace')}{more}")
        write_lines(sys.stdout, *lines, "")


def _replay(batch: _DeadLetterBatch, letters: Sequence[DecodedDeadLetter]) -> None:
    groups = []
    for each in letters:
        message = each.message
        group = TaskGroup.from_checked(each.task, each.source, [message.payload], [encoded_of(message)])
        groups.append(group.as_redelivered() if each.redelivered else group)
    batch.client.send(TaskMessageBatch.from_groups(groups), timeout=batch.timeout)
    batch.client.flush(batch.timeout)  # before the removal: an error may duplicate, but not lose messages
    batch.remove({each.id for each in letters})
    print(f"{len(letters)} sent again", file=sys.stderr)


def _drop(batch: _DeadLetterBatch, letters: Sequence[DecodedDeadLetter]) -> None:
    batch.remove({each.id for each in letters})
    print(f"{len(letters)} dropped", file=sys.stderr)


_ACTIONS: dict[str, Callable[[_DeadLetterBatch, Sequence[DecodedDeadLetter]], None]] = {
    "list": _list,
    "show": _show,
    "replay": _replay,
    "drop": _drop,
}
