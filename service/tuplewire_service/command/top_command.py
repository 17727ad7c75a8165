"""`tuplewire top`: what a whole cluster does now, again and again."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire_service.command.parsers import ADDRESS_VARIABLE, add_access, add_command, control_of, seconds
from tuplewire_service.process.stop import EXIT_OK

_MOST_LINES = 40
"""Rows of one table that --once prints."""


def add_top_command(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands, _top, "show what a whole cluster does now: workers, tasks, programs", "127.0.0.1:6700"
    )
    parser.description = (
        "Show what a whole cluster does now, from any of its workers: who is slow, whom that holds up, what "
        "flows, who is connected. On a terminal it is live; its last line names the keys."
    )
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help=f"of any worker: host:port, or unix:///path (default: {ADDRESS_VARIABLE})",
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0, help="between two looks (default 1)"
    )
    parser.add_argument("--once", action="store_true", help="print it once, after two looks, and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each interval")
    parser.add_argument("--filter", metavar="TEXT", default="", help="only rows that have this text")
    add_access(parser)


def _top(arguments: argparse.Namespace) -> int:
    if arguments.interval <= 0:
        raise ConfigError(f"--interval must be more than 0, not {arguments.interval:g}")
    if not (arguments.once or arguments.json or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError("the live view needs a terminal: use --once, or --json")
    first = control_of(arguments)
    from tuplewire_service.control.cluster_looks import ClusterLooks
    from tuplewire_service.control.cluster_rows import cluster_rows

    def connect(address: str) -> Any:
        return control_of(argparse.Namespace(**{**vars(arguments), "address": address}))

    live = not (arguments.once or arguments.json)
    if live:
        from tuplewire_service.command.top_view import TopView
    with ClusterLooks(first, connect) as looks:
        looks.look(arguments.timeout)
        if live:
            if TopView(looks, arguments.interval, arguments.filter).run():
                raise KeyboardInterrupt
            return EXIT_OK
        while True:
            time.sleep(arguments.interval)
            rows = cluster_rows(looks.look(arguments.timeout))
            if arguments.json:
                print(json.dumps(dataclasses.asdict(rows)), flush=True)
            else:
                _print(rows, arguments.filter)
            if arguments.once:
                return EXIT_OK


def _print(rows: Any, wanted: str) -> None:
    from tuplewire.shown import shown
    from tuplewire_service.command.cluster_tables import TABLES
    from tuplewire_service.command.terminal import write_table, write_text

    for sentence in rows.blocking:
        write_text(sys.stdout, f"{shown(sentence)}\n")
    for table in TABLES:
        found = table.rows(rows, wanted)
        if not found:
            continue
        # Columns that say nothing of any row only make the lines longer.
        columns = [each for each in table.columns if any(map(each.cell, found))]
        write_text(sys.stdout, f"\n{table.name}\n")
        lines = [[column.cell(row) for column in columns] for row in found[:_MOST_LINES]]
        write_table(sys.stdout, [column.title for column in columns], lines)
        if len(found) > _MOST_LINES:
            write_text(sys.stdout, f"and {len(found) - _MOST_LINES} more; --json has all of them\n")
