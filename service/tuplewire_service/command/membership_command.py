"""`tuplewire membership`: assigns tasks to workers while workers join and leave."""

from __future__ import annotations

import argparse
from typing import Any

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.addresses import check_reachable, resolve_topology
from tuplewire.values.task_ids import parse_tasks
from tuplewire_service.command.parsers import add_command, add_setting_flags, credentials_of, silence_grpc


def add_membership_command(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        _membership,
        "assign the tasks of a topology to its workers, as workers join and leave",
        "workers.example:6700 --tasks 0-99",
    )
    parser.add_argument(
        "workers",
        metavar="HOST:PORT",
        nargs="+",
        help="addresses of workers; a host name stands for all its IP addresses, like a headless Service",
    )
    parser.add_argument("--tasks", required=True, help="all tasks of the topology: 0-99, or 1,2,10-19")
    parser.add_argument(
        "--topology", help="topology of the workers (default: TUPLEWIRE_TOPOLOGY, or default)"
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="format of log events")
    add_setting_flags(parser, Credentials)


def _membership(arguments: argparse.Namespace) -> int:
    silence_grpc()
    from tuplewire_service.config.stop import Stop
    from tuplewire_service.control.log_output import LogOutput
    from tuplewire_service.process.membership_program import assign_until_stopped

    for address in arguments.workers:
        check_reachable(address)
    tasks = parse_tasks(arguments.tasks)
    LogOutput("info", arguments.log_format).start()
    stop = Stop()
    stop.on_signals()
    topology = resolve_topology(arguments.topology)
    return assign_until_stopped(arguments.workers, tasks, topology, credentials_of(arguments), stop)
