"""`tuplewire tap`, `debug` and `log-level`: inspect a running worker.

Used by cli.py. Owns no state. Not thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tuplewire.settings.settings import Kind, within
from tuplewire_service.command.messages import Decoding
from tuplewire_service.command.parsers import (
    add_client_command,
    control_of,
    number,
    of_kind,
    positive_number,
    positive_seconds,
    task_list,
    word_of,
)
from tuplewire_service.config.stop import EXIT_OK

_SHARE = Kind("SHARE", "a share, more than 0 and at most 1", float, within(math.ulp(0.0), 1.0), float)


def add_inspection_commands(commands: Any) -> None:
    """Add the commands that inspect a running worker."""
    about = "show copies of messages that pass through a worker"
    parser = add_client_command(commands, _tap, about, "--task 42 --sample 0.01")
    parser.description = f"{parser.description} Consumers are not affected."
    parser.add_argument("--task", **task_list, default=(), help="tasks, like 42 or 1,2,10-19 (default: all)")
    parser.add_argument("--sample", **of_kind(_SHARE), default=1.0, help="share to show (default: 1, all)")
    about = "maximum messages per second (default: 100, maximum: 1000)"
    parser.add_argument("--rate", **positive_number, default=100, help=about)
    about = "bytes of each message to show (default: 4096, maximum: 65536)"
    parser.add_argument("--bytes", **positive_number, default=4096, help=about)
    about = "format of payloads: text, json, or tuple, for a topology's tuples (default: text)"
    parser.add_argument("--decode", **word_of(Decoding), default=Decoding.TEXT, help=about)
    parser.add_argument("--json", action="store_true", help="print a JSON object per message")
    parser.add_argument("--count", **number, help="exit after COUNT messages")

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
    parser.add_argument("--for", dest="seconds", **positive_seconds, default=600.0, help=about)
    about = "minimum seconds between log entries for the same peer-triggered event (default: 60)"
    parser.add_argument("--every", **positive_seconds, default=60.0, help=about)


def _debug(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command.bundle import write_bundle

    with control_of(arguments) as client:
        names = write_bundle(client, arguments.output)
    print(f"{arguments.output}: {', '.join(names)}")
    return EXIT_OK


def _log_level(arguments: argparse.Namespace) -> int:
    with control_of(arguments) as client:
        client.set_logging(arguments.level, seconds=arguments.seconds, every_seconds=arguments.every)
    print(f"{client.address} logs {arguments.level} for {arguments.seconds:g} s")
    return EXIT_OK


def _tap(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command.tapped import tapped_as_json, tapped_as_text, tapped_at_owners

    left = arguments.count
    omitted = count = 0
    with closing(tapped_at_owners(arguments)) as tapped:  # ends the taps at their workers
        passed = next(tapped).passed  # the tap is open
        try:
            for response in tapped:
                passed = response.passed
                for message in response.messages[:left]:
                    count += 1
                    if arguments.json:
                        print(tapped_as_json(message))
                    else:
                        print(tapped_as_text(message, arguments.decode))
                sys.stdout.flush()
                if response.omitted > omitted:
                    print(f"-- {response.omitted - omitted} omitted --", file=sys.stderr, flush=True)
                    omitted = response.omitted
                if left is not None and (left := left - len(response.messages)) <= 0:
                    break
        finally:
            print(f"{count} shown, {omitted} omitted, of {passed} that passed", file=sys.stderr)
    return EXIT_OK
