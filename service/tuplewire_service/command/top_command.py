"""`tuplewire top`: the current state of a whole cluster, redrawn at an interval.

Used by cli.py. Owns no state. Not thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from io import StringIO
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError
from tuplewire.settings.addresses import resolve_address
from tuplewire_service.command.parsers import add_client_command, control_of, positive_seconds
from tuplewire_service.command.terminal import PROBLEM_STYLE, console_of
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from rich.console import Console

    from tuplewire_service.command.viewer.cluster_rows import ClusterRows

_SHARE = 6  # a table gets a sixth of the terminal's lines, and at least three


def add_top_command(commands: Any) -> None:
    """Add the command."""
    parser = add_client_command(commands, _top, "show the workers, tasks and clients of a cluster")
    parser.description = (
        "Show the current state of a cluster, from any of its workers: slow tasks, the senders they block, "
        "message rates, and clients. On a terminal, the view is live until Ctrl-C; elsewhere, use --once or "
        "--json. --web shows a page in a browser."
    )
    about = "seconds between updates (default: 1, with --web: 2)"
    parser.add_argument("--interval", **positive_seconds, help=about)
    parser.add_argument("--once", action="store_true", help="print once, after two samples, and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each interval")
    parser.add_argument("--web", action="store_true", help="serve a page for a browser on this machine")
    parser.add_argument("--port", type=int, default=9465, help="port of the page (default: 9465; 0: any)")
    parser.add_argument("--filter", metavar="TEXT", default="", help="show only rows that contain this text")


def _top(arguments: argparse.Namespace) -> int:
    if arguments.interval is None:
        # A page stays open for hours, and a poll of 10,000 tasks takes some milliseconds of a worker.
        arguments.interval = 2.0 if arguments.web else 1.0
    printed = arguments.once or arguments.json
    if arguments.web and (printed or arguments.filter):
        raise ConfigError("--web shows everything: leave --once, --json and --filter out")
    console = None if printed or arguments.web else console_of(sys.stdout)
    if console is None and not (printed or arguments.web):
        raise ConfigError("the live view needs a terminal: use --once, --json or --web")
    from tuplewire_service.command.status_report import MOST_LINES, write_tables
    from tuplewire_service.command.viewer.cluster_poller import ClusterPoller
    from tuplewire_service.command.viewer.cluster_rows import cluster_rows

    first = resolve_address(arguments.address)
    connect = partial(control_of, arguments)
    if arguments.web:
        from tuplewire_service.command.viewer.live_page import MOST_ROWS, LivePage

        with ClusterPoller(first, connect, MOST_ROWS) as poller:
            poller.poll()
            with LivePage(poller.poll, arguments.port, arguments.interval) as page:
                print(f"open {page.url} in a browser on this machine; Ctrl-C ends it", flush=True)
                threading.Event().wait()
    with ClusterPoller(first, connect) as poller, console.screen() if console else nullcontext():
        poller.poll()
        while True:
            time.sleep(arguments.interval)
            rows = cluster_rows(poller.poll())
            if arguments.json:
                print(json.dumps(dataclasses.asdict(rows)), flush=True)
            elif console is None:
                write_tables(sys.stdout, rows, MOST_LINES, arguments.filter)
            else:
                _draw(console, rows, arguments.filter)
            if arguments.once:
                return EXIT_OK


def _draw(console: Console, rows: ClusterRows, wanted: str) -> None:
    """Redraw the screen with the first rows of each table, as far as they fit. Problems are red."""
    from rich.text import Text

    from tuplewire_service.command.status_report import write_tables
    from tuplewire_service.command.viewer.cluster_rows import NO_ANSWER

    text = StringIO()
    write_tables(text, rows, max(3, console.height // _SHARE), wanted, console.width)
    lines = text.getvalue().splitlines()[: console.height - 1]
    problems = len(list(takewhile(bool, lines)))  # the sentences, up to an empty line
    styled = [
        Text(line, PROBLEM_STYLE if number < problems or NO_ANSWER in line else "")
        for number, line in enumerate(lines)
    ]
    console.clear()
    console.print(Text("\n").join(styled), end="")
