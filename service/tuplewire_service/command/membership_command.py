"""`tuplewire membership`: gives the tasks to the workers as these come and go."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import Any

from tuplewire.addresses import check_reachable, resolve_topology
from tuplewire.identity.credentials import Credentials
from tuplewire.task_ids import parse_tasks
from tuplewire_service.command.parsers import add_command, add_setting_flags, credentials_of, silence_grpc


def add_membership_command(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        _membership,
        "give the tasks of a topology to its workers as these come and go",
        "workers.example:6700 --tasks 0-99",
    )
    parser.add_argument(
        "workers",
        metavar="HOST:PORT",
        nargs="+",
        help="where workers are; a name stands for all addresses that it has, as a headless Service",
    )
    parser.add_argument("--tasks", required=True, help="all tasks that there are: 0-99, or 1,2,10-19")
    parser.add_argument(
        "--topology", help="the topology that the workers serve (default: TUPLEWIRE_TOPOLOGY, or default)"
    )
    parser.add_argument(
        "--lease",
        metavar="NAME",
        help="in a pod: assign only while this one has Kubernetes' Lease of that name; others wait for it",
    )
    parser.add_argument(
        "--account",
        metavar="DIRECTORY",
        type=Path,
        help="where the pod has its service account (default: where Kubernetes mounts it)",
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="of each event")
    add_setting_flags(parser, Credentials)


def _membership(arguments: argparse.Namespace) -> int:
    silence_grpc()
    from tuplewire_service.leading.kubernetes_leases import ACCOUNT, KubernetesLeases
    from tuplewire_service.leading.leader import lead
    from tuplewire_service.process.log_output import LogOutput
    from tuplewire_service.process.stop import Stop

    for address in arguments.workers:
        check_reachable(address)
    tasks = parse_tasks(arguments.tasks)
    leases = KubernetesLeases(arguments.lease, arguments.account or ACCOUNT) if arguments.lease else None
    # Of a pod that was started again in place, the name is the same, and the lease goes on.
    identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    LogOutput("info", arguments.log_format).start()
    stop = Stop()
    stop.on_signals()
    topology = resolve_topology(arguments.topology)
    return lead(arguments.workers, tasks, topology, credentials_of(arguments), stop, leases, identity)
