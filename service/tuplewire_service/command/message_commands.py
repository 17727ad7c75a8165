"""`tuplewire send` and `tuplewire recv`.

Used by cli.py and dead_letter_command.py. Owns no state. Not thread-safe.
Reference: docs/reference/command.md.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import select
import stat
import struct
import sys
import termios
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

from tuplewire.errors import FlushTimeoutError
from tuplewire.text.escaping import escape_unprintable
from tuplewire_service.command.messages import MessageFormat, payloads_in, read_messages, writer_of_messages
from tuplewire_service.command.parsers import (
    Handler,
    Parser,
    add_client_command,
    add_topology,
    control_of,
    credentials_of,
    number,
    seconds,
    task_id,
    task_list,
    word_of,
)
from tuplewire_service.command.terminal import counted
from tuplewire_service.command.viewer.columns import tasks_of
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from tuplewire.client import Client
    from tuplewire.settings.config import SessionKeywords

_NOTICE_SECONDS = 1.0
_MOST_POLLS = 1000
_POLL_MILLIS = 1


def add_message_commands(commands: Any) -> None:
    """Add the commands `send` and `recv`."""
    parser = _add_messages(commands, _send, "send messages to a task", "42 hello")
    parser.add_argument("task", **task_id, nargs="?", help="task to send to, unless JSON lines contain it")
    about = "messages to send; none or -: read standard input"
    parser.add_argument("message", metavar="MESSAGE", nargs="*", help=about)
    parser.add_argument("--source", **task_id, help="task that sends (default: none)")
    parser = _add_messages(commands, _recv, "receive messages of tasks, and print them", "42 --count 1")
    parser.add_argument("tasks", **task_list, help="tasks, like 42 or 1,2,10-19")
    about = "output file; none or -: standard output"
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help=about)
    parser.add_argument("--count", **number, help="exit after COUNT messages")
    parser.add_argument("--idle", **seconds, help="exit after SECONDS without a message")


def _add_messages(commands: Any, handler: Handler, help_text: str, example: str) -> Parser:
    parser = add_client_command(commands, handler, help_text, example)
    add_topology(parser)
    about = (
        "lines: a payload per line; json: an object per line with task, message (or base64), key and headers"
        "; prefixed: the length in four bytes before each payload (default: lines)"
    )
    parser.add_argument("--format", **word_of(MessageFormat), default=MessageFormat.LINES, help=about)
    return parser


@contextmanager
def client_of(
    arguments: argparse.Namespace, source: int | None = None, **settings: Unpack[SessionKeywords]
) -> Iterator[Client]:
    """Connect a client to a worker. Raise UnreachableError if it is not ready within the timeout."""
    waited = f"the worker at {arguments.address}"
    with control_of(arguments) as control, _noticed(waited, arguments.timeout):
        control.wait_ready(arguments.timeout)
    from tuplewire.client import Client

    credentials = credentials_of(arguments)
    client = Client(
        arguments.address, topology=arguments.topology, source=source, credentials=credentials, **settings
    )
    try:
        yield client
    except FlushTimeoutError:
        client.close(0)  # the flush has already waited
        raise
    finally:
        with suppress(FlushTimeoutError):
            client.close(arguments.timeout)


@contextmanager
def _noticed(reason: str, timeout: float) -> Iterator[threading.Timer]:
    """Print the reason for a wait after one second, unless the block finishes or cancels the timer first."""
    limit = "Ctrl-C to stop" if timeout == math.inf else f"at most {timeout:g} s"
    text = f"waiting for {escape_unprintable(reason)} ({limit})"
    timer = threading.Timer(_NOTICE_SECONDS, print, (text,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _send(arguments: argparse.Namespace) -> int:
    given: Iterable[bytes] = map(os.fsencode, arguments.message)
    reads = arguments.message in ([], ["-"])
    if reads:
        given = payloads_in(sys.stdin.buffer, arguments.format)
    messages = read_messages(given, arguments.format, arguments.task)
    typed = reads and sys.stdin.isatty()
    if typed:
        print("type one message per line; Ctrl-D ends the input", file=sys.stderr)
    client: Client | None = None
    try:
        with client_of(arguments, arguments.source) as client:
            with closing(counted(messages, "messages", _share_of_input, drawn=reads and not typed)) as each:
                for task, payload, metadata in each:
                    if not client.try_send(task, payload, **metadata):
                        with _noticed(f"capacity for task {task}", arguments.timeout):
                            client.send(task, payload, timeout=arguments.timeout, **metadata)
            with _noticed("acknowledgements", arguments.timeout):
                client.flush(arguments.timeout)
    finally:
        if client is not None:
            ledger = client.ledger()
            print(f"{ledger.acknowledged} of {ledger.accepted} messages acknowledged", file=sys.stderr)
    return EXIT_OK


def _share_of_input(_: int) -> float | None:
    """Return the share of standard input that was read; None if it is not a file."""
    size = os.fstat(sys.stdin.fileno()).st_size
    return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) / size if size else None


def _recv(arguments: argparse.Namespace) -> int:
    def share(taken: int) -> float | None:
        return taken / arguments.count if arguments.count else None

    with _opened(arguments.file) as out:
        terminal = sys.stdout.encoding if out.isatty() else None
        write = writer_of_messages(out, arguments.format, terminal=terminal)
        # Only with a file: the reader of a pipe may write to the same terminal.
        mode = os.fstat(out.fileno()).st_mode
        drawn = stat.S_ISREG(mode)
        idle = math.inf if arguments.idle is None else arguments.idle
        waited = f"messages to task {tasks_of(arguments.tasks)} at {arguments.address}"
        with (
            client_of(arguments) as client,
            client.recv(arguments.tasks) as subscription,
            _noticed(waited, idle) as notice,
        ):
            messages = subscription.messages(arguments.count, quiet=idle)
            sizes: list[int] = []  # of the messages of the current batch
            with closing(counted(messages, "messages", share, drawn=drawn)) as each:
                try:
                    for message in each:
                        notice.cancel()
                        size = write(message)
                        out.flush()
                        sizes.append(size)
                        if subscription.at_batch_end:
                            if stat.S_ISFIFO(mode):
                                _await_reader(out)
                            sizes.clear()
                except BrokenPipeError:
                    subscription.acknowledge(_count_read(out, sizes))
                    raise
    return EXIT_OK


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    """Open the output; standard output stays open afterwards."""
    return nullcontext(sys.stdout.buffer) if file == "-" else Path(file).open("wb")


def _await_reader(out: BinaryIO) -> None:
    """Wait at most 1 s until a pipe's reader has read all. Raises BrokenPipeError if it closes the pipe."""
    poller = select.poll()
    poller.register(out, 0)  # reports only that the reader has closed the pipe
    for _ in range(_MOST_POLLS):
        if not _unread_bytes(out):
            return
        if poller.poll(_POLL_MILLIS):
            raise BrokenPipeError


def _count_read(out: BinaryIO, sizes: Sequence[int]) -> int:
    """Return the number of the last written messages, with these sizes, that the reader has read."""
    unread, read = _unread_bytes(out), len(sizes)
    while unread > 0 and read:
        read -= 1
        unread -= sizes[read]
    return read


def _unread_bytes(out: BinaryIO) -> int:
    (unread,) = struct.unpack("i", fcntl.ioctl(out, termios.FIONREAD, bytes(4)))
    return int(unread)
