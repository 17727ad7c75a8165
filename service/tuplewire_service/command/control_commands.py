"""`tuplewire status`, `assign`, `membership`, `activate`, `deactivate`, `drain` and `offsets`.

They send requests to workers. `membership` assigns tasks while workers join and leave, until it is stopped.

Used by cli.py. Owns no state. Not thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError, UnreachableError, WrongWorkerError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.addresses import (
    check_address_syntax,
    join_host_port,
    resolve_topology,
    split_host_port,
)
from tuplewire.settings.settings import SECONDS
from tuplewire.text.events import event_logger
from tuplewire.text.formatting import counted
from tuplewire.values.task_ids import parse_tasks
from tuplewire_service.command.inspection_commands import UP_TO_A_DAY, draw
from tuplewire_service.command.message_commands import wait_notice
from tuplewire_service.command.parsers import (
    TASKS_ARG,
    add_address,
    add_client_command,
    add_command,
    add_setting_flags,
    add_topology,
    fetch_assignment,
    kind_arg,
    make_control_client,
    read_credentials,
)
from tuplewire_service.command.terminal import console_of, write_lines, write_table
from tuplewire_service.command.viewer.columns import NOT_KNOWN, format_client
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_OK, Stop

logger = event_logger(__name__)

_POLL_SECONDS = 2.0
_OFFSETS = ("task", "worker", "acknowledged", "last", "waiting", "bytes", "consumer")
_LATEST = "latest"
_CLOSE_SECONDS = 5.0  # a worker exits at most 4 s after the deadline of its drain


def add_control_commands(commands: Any) -> None:
    """Add the commands that send requests to running workers."""
    parser = add_client_command(commands, _status, "show a worker's state, ledger, tasks and connections")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    about = "seconds between repeated reports, with rates by task (without a value: 1)"
    parser.add_argument("--watch", nargs="?", **kind_arg(UP_TO_A_DAY), const=1.0, help=about)
    parser = add_client_command(commands, _assign, "apply an assignment to a worker", "assignment.json")
    about = (
        'JSON: {"version": 2, "topology": "default", "workers": '
        '[{"worker_id": "HOST:6700", "address": "127.0.0.1:6700", "tasks": [0, 1]}]}; '
        "worker_id is as in `tuplewire status`, and version is higher than there"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help=about)
    about = "accept a version more than 2^32 ahead, or with at most 2^32 later versions left"
    parser.add_argument("--force", action="store_true", help=about)
    about = "activate the spouts of a topology, if it has any"
    add_client_command(commands, partial(_set_active, active=True), about, name="activate")
    about = "deactivate spouts, if any; tuples in flight are processed"
    add_client_command(commands, partial(_set_active, active=False), about, name="deactivate")
    about = "deliver or forward a worker's messages, and stop it"
    parser = add_client_command(commands, _drain, about, "--deadline 10")
    about = "time limit for the drain (default: the worker's drain_seconds)"
    parser.add_argument("--deadline", **kind_arg(SECONDS), help=about)
    about = "wait until the worker has drained, and exit with 1 if it dropped messages"
    parser.add_argument("--wait", action="store_true", help=about)
    about = "show the offsets of tasks, or acknowledge messages"
    parser = add_client_command(commands, _offsets, about, "--tasks 1-4")
    parser.add_argument("--tasks", **TASKS_ARG, help="tasks, like 1,2-9 (default: all)")
    about = (
        f"discard the messages of these tasks up to a sequence, or {_LATEST}; refused if there is a consumer"
    )
    parser.add_argument("--acknowledge-to", metavar="SEQUENCE", help=about)
    about = "assign tasks to workers as workers join and leave"
    parser = add_command(commands, _membership, about, "--address workers.example:6700 --tasks 0-99")
    about = "comma-separated host:port of workers; a name stands for all its IP addresses, as of a Service"
    add_address(parser, about)
    parser.add_argument("--tasks", required=True, help="all tasks of the topology: 0-99, or 1,2,10-19")
    add_topology(parser)
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="format of log events")
    add_setting_flags(parser, Credentials)


def _status(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command import status_report
    from tuplewire_service.command.viewer.cluster_rows import cluster_rows
    from tuplewire_service.command.viewer.rates import WorkerSample
    from tuplewire_service.control.control_messages import MAX_CLIENTS

    interval, before = arguments.watch, None
    console = console_of(sys.stdout) if interval and not arguments.json else None
    with make_control_client(arguments) as client, console.screen() if console else nullcontext():
        while True:
            status = client.status(MAX_CLIENTS)
            about = status_report.status_as_text(status)
            rows = cluster_rows([WorkerSample(status.worker_id, client.address, status, before)])
            if arguments.json:
                print(json.dumps(status_report.status_as_json(status), indent=None if interval else 2))
            elif console:
                draw(console, rows, about)
            else:
                heading = ["", time.strftime("%H:%M:%S")] if interval else []
                write_lines(sys.stdout, *heading, *about.split("\n"), indent=12)  # below the values
                status_report.write_tables(sys.stdout, rows, status_report.MAX_LINES)
            sys.stdout.flush()
            if interval is None:
                return EXIT_OK
            before = status
            time.sleep(interval)


def _assign(arguments: argparse.Namespace) -> int:
    from tuplewire_service.control.control_messages import assignment_to_wire
    from tuplewire_service.worker.assignment import load_assignment

    assignment = load_assignment(arguments.file)
    with make_control_client(arguments) as client:
        status = client.status()
        for each in assignment.workers:
            if each.address in {client.address, *status.addresses} and each.worker_id != status.worker_id:
                wrong = f"{arguments.file} has the worker_id {each.worker_id} for {each.address}"
                raise WrongWorkerError(f"{wrong}, but the worker's own id is {status.worker_id}")
        changed = client.update_assignment(assignment_to_wire(assignment), force=arguments.force)
    word, where = "is" if changed else "was already", client.address
    if status.worker_id not in {each.worker_id for each in assignment.workers}:
        where += f", whose id {status.worker_id} is not in it: the worker is not ready; correct a worker_id"
    message = f"assignment {assignment.version} of {assignment.topology} {word} the current one at {where}"
    write_lines(sys.stdout, message)
    return EXIT_OK


def _membership(arguments: argparse.Namespace) -> int:
    from tuplewire.membership import Membership
    from tuplewire_service.control.log_output import LogOutput

    names = [check_address_syntax(each.strip()) for each in arguments.address.split(",")]
    tasks = parse_tasks(arguments.tasks)
    LogOutput("info", arguments.log_format).start()
    stop = Stop()
    stop.watch_signals()
    with Membership(
        lambda: _addresses_of(names),
        tasks,
        topology=resolve_topology(arguments.topology),
        min_workers=0,
        credentials=read_credentials(arguments),
    ) as membership:
        logger.info("membership.started", extra={"tasks": len(tasks)})
        while (request := stop.wait(_POLL_SECONDS)) is None:
            if reason := membership.status().ended:  # another program assigns the same tasks, or a defect
                logger.error("membership.ended", extra={"reason": reason})
                return EXIT_FAILED
    logger.info("membership.stopped", extra={"reason": request.reason})
    return EXIT_OK


def _addresses_of(names: Collection[str]) -> list[str]:
    """Return host:port of each worker. A name may have many addresses, as a headless Service has.

    If a name has IPv4 addresses, its IPv6 addresses are ignored: a worker with both would count as two.
    Raises UnreachableError for a name without an address.
    """
    found: set[str] = set()
    for name in names:
        host, port = split_host_port(name)
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnreachableError(f"{name}: {error.strerror}") from error
        family = min(family for family, *_ in answers)  # AF_INET is less than AF_INET6
        found.update(join_host_port(str(to[0]), port) for each, *_, to in answers if each == family)
    return sorted(found)


def _set_active(arguments: argparse.Namespace, *, active: bool) -> int:
    from tuplewire.connection.control_client import ControlClients

    with make_control_client(arguments) as client:
        assignment = fetch_assignment(client)
    topology, state = f"topology {assignment.topology}", "active" if active else "inactive"
    if assignment.inactive is not active:  # it is in this state already
        write_lines(sys.stdout, f"{topology} was {state} already")
        return EXIT_OK
    assignment.version += 1  # workers apply only newer versions
    assignment.inactive = not active
    addresses = [each.address for each in assignment.workers]
    with ControlClients(partial(make_control_client, arguments)) as clients:
        results = clients.call_all(addresses, lambda client: client.update_assignment(assignment))
    failures = {address: error for address, error in results.items() if isinstance(error, TuplewireError)}
    write_lines(sys.stderr, *(f"{address}: {error}" for address, error in failures.items()))
    message = f"{topology} is {state} on {len(results) - len(failures)} of {len(results)} workers"
    write_lines(sys.stdout, message)
    return EXIT_FAILED if failures else EXIT_OK


def _drain(arguments: argparse.Namespace) -> int:
    from tuplewire.wire.control_pb2 import WORKER_STATE_DRAINING
    from tuplewire_service.command.status_report import undelivered_lines

    with make_control_client(arguments) as client:
        status = client.status()
        if status.state == WORKER_STATE_DRAINING:
            arguments.deadline = None  # the first deadline stays
        limit = arguments.deadline or status.drain_seconds
        end = f"undelivered messages are dropped after {limit:g} s, unless a membership moves the task"
        lines = (f"{line}; {end}" for line in undelivered_lines(client))
        if arguments.wait:
            with wait_notice(f"{client.address} to drain", limit, lines):
                try:
                    lost = client.wait_for_drain(arguments.deadline, timeout=limit + _CLOSE_SECONDS)
                except KeyboardInterrupt:
                    write_lines(sys.stderr, f"{client.address} continues to drain")
                    raise
            write_lines(sys.stdout, f"{client.address} has drained, and dropped {counted(lost, 'message')}")
            return EXIT_FAILED if lost else EXIT_OK
        without_consumer = list(lines)  # before the drain
        state = "is draining" if client.drain(arguments.deadline) else "was draining already"
        write_lines(sys.stdout, *without_consumer, f"{client.address} {state}")
    return EXIT_OK


def _offsets(arguments: argparse.Namespace) -> int:
    to = arguments.acknowledge_to
    if to is not None and (arguments.tasks is None or not (to == _LATEST or to.isdecimal())):
        wrong = "--tasks is missing" if arguments.tasks is None else f"{to!r} is neither"
        raise ConfigError(f"--acknowledge-to takes --tasks, and a sequence or {_LATEST}: {wrong}")
    with make_control_client(arguments) as control:
        assignment, own = fetch_assignment(control, arguments.tasks or ()), control.status().worker_id
    rows = []
    errors = []
    for worker in assignment.workers:
        if tasks := [each for each in worker.tasks if arguments.tasks is None or each in arguments.tasks]:
            # In a pod with `secure: true`, only the socket of its own worker needs no certificate.
            address = control.address if worker.worker_id == own else worker.address
            try:
                rows += _offset_rows(worker.worker_id, address, tasks, assignment.topology, to, arguments)
            except TuplewireError as error:
                errors.append(f"tuplewire offsets: {error}")
    write_table(sys.stdout, _OFFSETS, [list(map(str, row)) for row in sorted(rows)])
    write_lines(sys.stderr, *errors)
    return EXIT_FAILED if errors else EXIT_OK


def _offset_rows(
    worker: str, address: str, tasks: list[int], topology: str, to: str | None, arguments: argparse.Namespace
) -> list[tuple[Any, ...]]:
    """Return the rows of a worker's tasks. If `to` is given, first acknowledge messages up to it."""
    from tuplewire.wire import control_pb2 as pb

    request = pb.PollRequest(
        topology=topology, expected_worker_id=worker, tasks=[pb.PolledTask(task=task) for task in tasks]
    )
    with make_control_client(arguments, address) as client:
        found = client.poll(request)
        if to is not None:
            limit = sys.maxsize if to == _LATEST else int(to)
            ends = {each.task: min(each.last_sequence, limit) for each in found.tasks}
            client.acknowledge(topology, worker, found.worker_incarnation, ends)
            count = sum(max(0, ends[each.task] - each.acknowledged_sequence) for each in found.tasks)
            write_lines(sys.stderr, f"{worker} discarded {counted(count, 'message')}")
            found = client.poll(request)  # to show the new state
    rows = []
    for each in found.tasks:
        acknowledged, last = each.acknowledged_sequence, each.last_sequence
        consumer = format_client(each.consumer_id) or NOT_KNOWN
        rows.append((each.task, worker, acknowledged, last, last - acknowledged, each.queued_bytes, consumer))
    return rows
