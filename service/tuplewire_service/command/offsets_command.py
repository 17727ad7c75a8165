"""`tuplewire offsets`: shows how far the tasks of a topology are acknowledged, or acknowledges messages."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, NotReadyError
from tuplewire_service.command.parsers import add_client_command, control_of, task_list
from tuplewire_service.command.terminal import write_table
from tuplewire_service.command.viewer.columns import NOT_KNOWN, short_client
from tuplewire_service.config.stop import EXIT_OK

if TYPE_CHECKING:
    from tuplewire.wire import control_pb2 as pb

_HEADER = ("task", "worker", "acknowledged", "last", "waiting", "bytes", "consumer")
_LATEST = "latest"


def add_offsets_command(commands: Any) -> None:
    """Add the command."""
    about = "show the offsets of tasks, or acknowledge messages"
    parser = add_client_command(commands, _offsets, about, "--tasks 1-4")
    parser.add_argument("--tasks", **task_list, help="tasks, like 1,2-9 (default: all)")
    about = (
        f"discard the messages of these tasks up to a sequence, or {_LATEST}; refused if there is a consumer"
    )
    parser.add_argument("--acknowledge-to", metavar="SEQUENCE", help=about)


def _offsets(arguments: argparse.Namespace) -> int:
    to = arguments.acknowledge_to
    if to is not None and (arguments.tasks is None or not (to == _LATEST or to.isdecimal())):
        raise ConfigError(f"--acknowledge-to takes --tasks, and a sequence or {_LATEST}, not {to!r}")
    with control_of(arguments) as control:
        assignment = control.assignment()
    if assignment is None:
        raise NotReadyError(
            f"the worker at {control.address} has no assignment yet: push one (tuplewire assign)"
        )
    rows = []
    for worker in assignment.workers:
        tasks = [task for task in worker.tasks if arguments.tasks is None or task in arguments.tasks]
        if tasks:
            rows += _at(worker, assignment.topology, tasks, to, arguments)
    write_table(sys.stdout, _HEADER, [list(map(str, row)) for row in sorted(rows)])
    return EXIT_OK


def _at(
    worker: pb.AssignedWorker, topology: str, tasks: list[int], to: str | None, arguments: argparse.Namespace
) -> list[tuple[Any, ...]]:
    """Return the rows of a worker's tasks. If `to` is given, first acknowledge messages up to it."""
    from tuplewire.wire import control_pb2 as pb

    asked = pb.PollRequest(
        topology=topology, receiver_id=worker.worker_id, tasks=[pb.PolledTask(task=task) for task in tasks]
    )
    with control_of(arguments, worker.address) as client:
        found = client.poll(asked)
        if to is not None:
            ends = {each.task: each.last_sequence if to == _LATEST else int(to) for each in found.tasks}
            client.acknowledge(topology, worker.worker_id, found.incarnation, ends)
            found = client.poll(asked)  # to show the new state
    return [
        (
            each.task,
            worker.worker_id,
            each.acknowledged_sequence,
            each.last_sequence,
            each.last_sequence - each.acknowledged_sequence,
            each.bytes,
            short_client(each.consumer) or NOT_KNOWN,
        )
        for each in found.tasks
    ]
