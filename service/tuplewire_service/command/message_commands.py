"""`tuplewire send` and `tuplewire recv`.

Used by cli.py and dead_letter_command.py. Owns no state. Not thread-safe.
Reference: docs/reference/command.md.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

from tuplewire.errors import FlushTimeoutError, UnreachableError
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.text.escaping import escape_unprintable
from tuplewire_service.command.messages import MessageFormat, payloads_in, read_messages, writer_of_messages
from tuplewire_service.command.parsers import (
    Handler,
    add_access,
    add_command,
    control_of,
    credentials_of,
    number,
    seconds,
    task_list,
)
from tuplewire_service.command.terminal import counted
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from tuplewire.client import Client
    from tuplewire.connection.control_client import ControlClient
    from tuplewire.settings.config import SessionKeywords

LOCAL_ADDRESS = "127.0.0.1:6700"  # the default address of a worker
_PATIENCE_SECONDS = 1.0


def add_message_commands(commands: Any) -> None:
    """Add the commands `send` and `recv`."""
    parser = _add_messages(commands, _send, "send messages to a task", "42 hello")
    parser.add_argument(
        "task", metavar="TASK", nargs="?", type=int, help="task to send to, unless JSON lines contain it"
    )
    parser.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="messages to send; none or -: read standard input"
    )
    parser.add_argument("--source", metavar="TASK", type=int, help="task that sends (default: none)")
    parser = _add_messages(commands, _recv, "receive messages of tasks, and print them", "42 --count 1")
    parser.add_argument("tasks", **task_list, help="tasks, like 42 or 1,2,10-19")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="output file; none or -: standard output"
    )
    parser.add_argument("--count", **number, help="exit after COUNT messages")
    parser.add_argument("--quiet", **seconds, help="exit after SECONDS of silence")


def _add_messages(commands: Any, handler: Handler, help_text: str, example: str) -> argparse.ArgumentParser:
    """Add a command that sends or receives messages."""
    parser = add_command(commands, handler, help_text, example)
    add_way(parser)
    parser.add_argument(
        "--format",
        choices=list(MessageFormat),
        type=MessageFormat,
        default=MessageFormat.LINES,
        help="lines: a payload per line; json: an object per line with task, message (or base64), key and "
        "headers; prefixed: the length in four bytes before each payload (default: lines)",
    )
    return parser


def add_way(parser: argparse.ArgumentParser) -> None:
    """Add the flags for client_of()."""
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help=f"address of the worker (default: {ADDRESS_VARIABLE}, or {LOCAL_ADDRESS})",
    )
    parser.add_argument(
        "--topology", metavar="NAME", help="topology of the worker (default: TUPLEWIRE_TOPOLOGY, or default)"
    )
    add_access(parser)


def address_of(arguments: argparse.Namespace) -> str:
    """Return the worker's address."""
    return arguments.address or os.environ.get(ADDRESS_VARIABLE) or LOCAL_ADDRESS


@contextmanager
def client_of(
    arguments: argparse.Namespace, source: int | None = None, **settings: Unpack[SessionKeywords]
) -> Iterator[Client]:
    """Connect a client to a worker. Raise UnreachableError if it is not ready within the timeout."""
    arguments.address = address_of(arguments)
    with control_of(arguments) as control:
        _wait_ready(control, arguments.timeout)
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


def _wait_ready(control: ControlClient, timeout: float) -> None:
    """Wait for a worker, and print the problem after one second. Raise UnreachableError after `timeout`."""
    patience = min(timeout, _PATIENCE_SECONDS)
    try:
        control.wait_ready(patience)
    except UnreachableError as error:
        if timeout <= patience:
            raise
        print(f"{escape_unprintable(str(error))}; waiting for it ...", file=sys.stderr)
        control.wait_ready(timeout - patience)


def _send(arguments: argparse.Namespace) -> int:
    given: Iterable[bytes] = map(os.fsencode, arguments.message)
    reads = arguments.message in ([], ["-"])
    if reads:
        given = payloads_in(sys.stdin.buffer, arguments.format)
    messages = read_messages(given, arguments.format, arguments.task)
    drawn = reads and not sys.stdin.isatty()
    with client_of(arguments, arguments.source) as client:
        with closing(counted(messages, "messages", _share_of_input, drawn=drawn)) as each:
            for task, payload, beside in each:
                client.send(task, payload, timeout=arguments.timeout, **beside)
        client.flush(arguments.timeout)
        sent = client.ledger().accepted
    print(f"{sent} sent and acknowledged", file=sys.stderr)
    return EXIT_OK


def _share_of_input(_: int) -> float | None:
    """Return the share of standard input that was read; None if it is not a file."""
    size = os.fstat(sys.stdin.fileno()).st_size
    return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) / size if size else None


def _recv(arguments: argparse.Namespace) -> int:
    def share(taken: int) -> float | None:
        return taken / arguments.count if arguments.count else None

    with _opened(arguments.file) as out:
        write = writer_of_messages(
            out, arguments.format, terminal=sys.stdout.encoding if out.isatty() else None
        )
        # Only with a file: the reader of a pipe may write to the same terminal.
        drawn = stat.S_ISREG(os.fstat(out.fileno()).st_mode)
        with client_of(arguments) as client, client.recv(arguments.tasks) as subscription:
            messages = subscription.messages(arguments.count, quiet=arguments.quiet)
            with closing(counted(messages, "messages", share, drawn=drawn)) as each:
                for message in each:
                    write(message)
                    out.flush()
    return EXIT_OK


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    """Open the output; standard output stays open afterwards."""
    return nullcontext(sys.stdout.buffer) if file == "-" else Path(file).open("wb")
