"""`tuplewire top`, `tap`, `debug` and `log-level`: inspect a cluster, or one of its workers.

Used by cli.py. Owns no state. Not thread-safe. Design: docs/design/status.md and docs/design/traces.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import sys
import time
from contextlib import closing, nullcontext
from functools import partial
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError
from tuplewire.settings.addresses import resolve_address
from tuplewire.settings.settings import Kind, in_range, integer
from tuplewire.text.formatting import fold
from tuplewire_service.command.messages import PayloadFormat
from tuplewire_service.command.parsers import (
    POSITIVE_COUNT_ARG,
    TASKS_ARG,
    add_client_command,
    enum_arg,
    kind_arg,
    make_control_client,
)
from tuplewire_service.command.terminal import PROBLEM_STYLE, console_of, write_lines
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from rich.console import Console

    from tuplewire_service.command.viewer.cluster_rows import ClusterRows

_TABLES_PER_SCREEN = 6  # a table gets a sixth of the terminal's lines, and at least three
UP_TO_A_DAY = Kind("SECONDS", "more than 0, at most 86400", float, in_range(math.ulp(0.0), 86400.0), float)
_SHARE = Kind("SHARE", "a share, more than 0 and at most 1", float, in_range(math.ulp(0.0), 1.0), float)


def add_inspection_commands(commands: Any) -> None:
    """Add the commands that inspect a cluster or a worker."""
    parser = add_client_command(commands, _top, "show the workers, tasks and clients of a cluster")
    parser.description = (
        "Show the current state of a cluster, from any of its workers: slow tasks, the senders they block, "
        "message rates, and clients. On a terminal, the view is live until Ctrl-C; elsewhere, use --once or "
        "--json. --web shows a page in a browser."
    )
    about = "seconds between updates (default: 1, with --web: 2)"
    parser.add_argument("--interval", **kind_arg(UP_TO_A_DAY), help=about)
    parser.add_argument("--once", action="store_true", help="print once, after two samples, and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each interval")
    parser.add_argument("--web", action="store_true", help="serve a page for a browser on this machine")
    port = kind_arg(integer(0, 65535)) | {"metavar": "PORT"}
    parser.add_argument("--port", **port, default=9465, help="port of the page (default: 9465; 0: any)")
    parser.add_argument("--filter", metavar="TEXT", default="", help="show only rows that contain this text")

    about = "show copies of messages that pass through a worker"
    parser = add_client_command(commands, _tap, about, "--tasks 42 --sample 0.01")
    parser.description = f"{parser.description} Consumers are not affected."
    parser.add_argument("--tasks", **TASKS_ARG, default=(), help="tasks, like 42 or 1,2,10-19 (default: all)")
    about = "share of the messages to show, more than 0 and at most 1 (default: 1, all)"
    parser.add_argument("--sample", **kind_arg(_SHARE), default=1.0, help=about)
    about = "maximum messages per second (default: 100, maximum: 1000)"
    parser.add_argument("--rate", **kind_arg(integer(1, 1000)), default=100, help=about)
    about = "bytes of each message to show (default: 4096, maximum: 65536)"
    parser.add_argument("--bytes", **kind_arg(integer(1, 65536)), default=4096, help=about)
    about = "format of payloads: text, json, or tuple, for a topology's tuples (default: text)"
    parser.add_argument("--decode", **enum_arg(PayloadFormat), default=PayloadFormat.TEXT, help=about)
    parser.add_argument("--json", action="store_true", help="print a JSON object per message")
    parser.add_argument("--count", **POSITIVE_COUNT_ARG, help="exit after COUNT messages")

    about = "write diagnostics of a worker, without secrets"
    parser = add_client_command(commands, _debug, about, "-o worker.zip")
    file = Path("tuplewire-debug.zip")
    about = f"output file, which must not exist (default: {file})"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=file, help=about)
    about = "change a worker's log level temporarily"
    parser = add_client_command(commands, _log_level, about, "debug --for 60")
    levels = ["debug", "info", "warning", "error"]
    parser.add_argument("level", metavar="LEVEL", choices=levels, help=f"new level: {', '.join(levels)}")
    about = "seconds until the configured level is restored (default: 600, maximum: 86400)"
    parser.add_argument("--for", dest="seconds", **kind_arg(UP_TO_A_DAY), default=600.0, help=about)
    about = "minimum seconds between log entries for the same event of a client (default: 60)"
    parser.add_argument("--interval", **kind_arg(UP_TO_A_DAY), default=60.0, help=about)


def _top(arguments: argparse.Namespace) -> int:
    if arguments.interval is None:
        # A page stays open for hours, and a poll of 10,000 tasks takes some milliseconds of a worker.
        arguments.interval = 2.0 if arguments.web else 1.0
    is_printed = arguments.once or arguments.json
    if arguments.web and (is_printed or arguments.filter):
        raise ConfigError("--web cannot be combined with --once, --json or --filter")
    console = None if is_printed or arguments.web else console_of(sys.stdout)
    if console is None and not (is_printed or arguments.web):
        lacks = "rich, and a TERM other than dumb" if sys.stdout.isatty() else "a terminal as its output"
        raise ConfigError(f"the live view needs {lacks}: use --once, --json or --web")
    from tuplewire_service.command.status_report import MAX_LINES, write_tables
    from tuplewire_service.command.viewer.cluster_poller import ClusterPoller
    from tuplewire_service.command.viewer.cluster_rows import cluster_rows

    first = resolve_address(arguments.address)
    connect = partial(make_control_client, arguments)
    if arguments.web:
        from tuplewire_service.command.viewer.live_page import MAX_ROWS, LivePage

        os.nice(19)  # a page in a worker's pod must not delay messages
        with ClusterPoller(first, connect, MAX_ROWS) as poller:
            poller.poll()
            with LivePage(poller.poll, arguments.port, arguments.interval) as page:
                print(f"open {page.url} in a browser on this machine; Ctrl-C ends it", flush=True)
                try:
                    time.sleep(1e9)  # until Ctrl-C
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would disturb the end
    with ClusterPoller(first, connect) as poller, console.screen() if console else nullcontext():
        poller.poll()
        while True:
            time.sleep(arguments.interval)
            rows = cluster_rows(poller.poll())
            if arguments.json:
                print(json.dumps(dataclasses.asdict(rows)), flush=True)
            elif console is None:
                write_tables(sys.stdout, rows, MAX_LINES, arguments.filter)
            else:
                draw(console, rows, wanted=arguments.filter)
            if arguments.once:
                return EXIT_OK


def draw(console: Console, rows: ClusterRows, about: str = "", wanted: str = "") -> None:
    """Redraw the screen with a text and the first rows of tables, as far as they fit. Problems are red."""
    from tuplewire_service.command.status_report import write_tables
    from tuplewire_service.command.viewer.cluster_rows import NO_ANSWER

    text = StringIO()
    write_tables(text, rows, max(3, console.height // _TABLES_PER_SCREEN), wanted, console.width)
    lines = text.getvalue().splitlines()
    problems = list(takewhile(bool, lines))  # the sentences, up to an empty line
    console.clear()
    for line in [*fold(about, console.width, 12).splitlines(), *lines][: console.height - 1]:
        console.print(line, style=PROBLEM_STYLE if line in problems or NO_ANSWER in line else "")


def _debug(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command.status_report import write_bundle

    with make_control_client(arguments) as client:
        names = write_bundle(client, arguments.output)
    print(f"{arguments.output}: {', '.join(names)}")
    return EXIT_OK


def _log_level(arguments: argparse.Namespace) -> int:
    with make_control_client(arguments) as client:
        client.set_logging(arguments.level, seconds=arguments.seconds, interval_seconds=arguments.interval)
    rate = f"and the same event of a client at most once in {arguments.interval:g} s"
    write_lines(sys.stdout, f"{client.address} logs {arguments.level} for {arguments.seconds:g} s, {rate}")
    return EXIT_OK


def _tap(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command.tapped import read_taps, tapped_as_json, tapped_as_text

    show = tapped_as_json if arguments.json else partial(tapped_as_text, decoding=arguments.decode)
    remaining = arguments.count
    omitted = count = 0
    with closing(read_taps(arguments)) as tapped:  # ends the taps at their workers
        passed = next(tapped).passed_messages  # the tap is open
        try:
            for response in tapped:
                passed = response.passed_messages
                for message in response.messages[:remaining]:
                    count += 1
                    print(show(message))
                sys.stdout.flush()
                if response.omitted_messages > omitted:
                    print(f"-- {response.omitted_messages - omitted} omitted --", file=sys.stderr, flush=True)
                    omitted = response.omitted_messages
                if remaining is not None and (remaining := remaining - len(response.messages)) <= 0:
                    break
        finally:
            print(f"{count} shown, {omitted} omitted, of {passed} that passed", file=sys.stderr)
    return EXIT_OK
