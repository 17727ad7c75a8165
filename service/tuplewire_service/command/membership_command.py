"""`tuplewire membership`: assigns tasks to workers while workers join and leave."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Collection
from typing import Any

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.addresses import check_reachable, join_host_port, resolve_topology, split_host_port
from tuplewire.text.events import event_logger
from tuplewire.values.task_ids import parse_tasks
from tuplewire_service.command.parsers import (
    add_address,
    add_command,
    add_setting_flags,
    add_topology,
    credentials_of,
)
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_OK, Stop

logger = event_logger(__name__)

_LOOK_SECONDS = 2.0


def add_membership_command(commands: Any) -> None:
    """Add the command."""
    about = "assign tasks to workers as workers join and leave"
    parser = add_command(commands, _membership, about, "--address workers.example:6700 --tasks 0-99")
    about = "comma-separated host:port of workers; a name stands for all its IP addresses, as of a Service"
    add_address(parser, about)
    parser.add_argument("--tasks", required=True, help="all tasks of the topology: 0-99, or 1,2,10-19")
    add_topology(parser)
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="format of log events")
    add_setting_flags(parser, Credentials)


def _membership(arguments: argparse.Namespace) -> int:
    from tuplewire.membership import Membership
    from tuplewire_service.control.log_output import LogOutput

    names = [check_reachable(each.strip()) for each in arguments.address.split(",")]
    tasks = parse_tasks(arguments.tasks)
    LogOutput("info", arguments.log_format).start()
    stop = Stop()
    stop.on_signals()
    with Membership(
        lambda: _addresses_of(names),
        tasks,
        topology=resolve_topology(arguments.topology),
        at_least=0,
        credentials=credentials_of(arguments),
    ) as membership:
        logger.info("membership.started", extra={"tasks": len(tasks)})
        while (request := stop.wait(_LOOK_SECONDS)) is None:
            if reason := membership.status().ended:  # another program assigns the same tasks, or a defect
                logger.error("membership.ended", extra={"reason": reason})
                return EXIT_FAILED
    logger.info("membership.stopped", extra={"reason": request.reason})
    return EXIT_OK


def _addresses_of(names: Collection[str]) -> list[str]:
    """Return host:port of each worker. A name may have many addresses, as a headless Service has.

    If a name has IPv4 addresses, its IPv6 addresses are ignored: a worker with both would count as two.
    Raises OSError for a name without an address.
    """
    found: set[str] = set()
    for name in names:
        host, port = split_host_port(name)
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        families = {family for family, *_ in answers}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        found.update(join_host_port(str(to[0]), port) for each, *_, to in answers if each == family)
    return sorted(found)
