"""The command `tuplewire executors`: a process of its own for some executors of a topology."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire_service.server import logs
from tuplewire_service.server.stop import EXIT_OK, Stop

if TYPE_CHECKING:
    from tuplewire_service.topology.executor_process import ExecutorProcess

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5

_EPILOG = """\
The assignment says what runs where: the same file as `tuplewire worker` reads, with an address for each
process. The file is watched: when tasks of others move, messages go there. The process runs until it is
told to stop (SIGTERM, or Ctrl-C), and ends in good order; with an error when the file gives it other tasks
than it began with, so that whoever has started it does so again.

example, once for each worker of the file:
  tuplewire executors words:topology --assignment workers.json --worker-id a --conf conf.json
"""


def add_executors_parser(commands: Any) -> None:
    """Add `executors` to the subparsers of the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "executors",
        help="run spouts and bolts of a topology in a process of their own",
        description="Run some of a topology's executors, with a messaging transport of their own.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=_executors)
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        help="package.module:function that returns it, or a .pickle file that is yours alone",
    )
    parser.add_argument(
        "--topology-id", metavar="NAME", default="topology", help="the name under which it runs"
    )
    parser.add_argument("--worker-id", metavar="ID", required=True, help="this process, in the assignment")
    parser.add_argument("--conf", metavar="FILE", type=Path, help="settings by Storm's keys, as JSON")
    parser.add_argument(
        "--port", metavar="PORT", type=int, default=0, help="port to bind, with --control (default: any free)"
    )
    parser.add_argument(
        "--collect",
        metavar="COMPONENT",
        action="append",
        default=[],
        help="keep what this component emits, for whoever started the process; may be given again",
    )
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help="serve /metrics, /livez and /readyz there (default: nowhere)"
    )
    parser.add_argument(
        "--state-file", metavar="FILE", type=Path, help="write what the executors are doing there, as JSON"
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--assignment", metavar="FILE", type=Path, help="which worker has which tasks, as JSON")
    how.add_argument(
        "--control", metavar="FD", type=int, help="an inherited socket over which a launcher says what to do"
    )


def _executors(arguments: argparse.Namespace) -> int:
    # gRPC's own lines on standard error are no events; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tuplewire_service.launching.settings import LaunchSettings
    from tuplewire_service.topology.channel import Channel
    from tuplewire_service.topology.executor_process import ExecutorProcess, serve
    from tuplewire_service.topology.reference import load_topology

    logs.configure("info", "text")
    stop = Stop()
    stop.on_signals()
    conf = _conf(arguments.conf)
    settings = LaunchSettings.of(conf)
    if arguments.control is None:
        return _by_assignment(arguments, conf, stop)
    stop.on_end_of_input()
    process = ExecutorProcess(
        load_topology(arguments.topology),
        arguments.topology_id,
        conf,
        arguments.port,
        arguments.collect,
        arguments.state_file,
    )
    channel = Channel(arguments.control)
    with _admin(arguments.admin, process):
        return serve(process, channel, lambda: stop.requested, settings.stop_seconds)


@contextlib.contextmanager
def _admin(listen: str | None, process: ExecutorProcess) -> Iterator[None]:
    """Serve the admin port of a process while it runs."""
    if listen is None:
        yield
        return
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

    from tuplewire_service.server.admin import AdminServer
    from tuplewire_service.topology.metrics import ExecutorCollector

    registry = CollectorRegistry()
    registry.register(ExecutorCollector(process.statistics, process.beats))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    admin = AdminServer(listen, registry, live=lambda: "", ready=lambda: process.not_ready)
    logger.info("admin.listening", extra={"metrics": admin.metrics_url})
    try:
        yield
    finally:
        admin.close()


def _conf(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        conf = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise ConfigError(f"{file} is not an object of settings by their keys")
    return conf


def _by_assignment(arguments: argparse.Namespace, conf: dict[str, Any], stop: Stop) -> int:
    """Run the tasks that an assignment gives to this process, until told to stop."""
    from tuplewire_service.launching.settings import LaunchSettings
    from tuplewire_service.topology.executor_process import ExecutorProcess
    from tuplewire_service.topology.reference import load_topology
    from tuplewire_service.worker.assignment import load_assignment
    from tuplewire_service.worker.assignment_source import AssignmentFile

    assignment = load_assignment(arguments.assignment)
    here = next((each for each in assignment.workers if each.worker_id == arguments.worker_id), None)
    if here is None:
        known = ", ".join(each.worker_id for each in assignment.workers) or "none"
        raise ConfigError(
            f"worker {arguments.worker_id!r} is not in {arguments.assignment}; there are {known}"
        )
    settings = LaunchSettings.of(conf)
    topology = load_topology(arguments.topology)
    process = ExecutorProcess(
        topology, assignment.topology, conf, here.host_port[1], state_file=arguments.state_file
    )
    owners = {task: worker.host_port for task, worker in assignment.owner_of.items()}
    file = AssignmentFile(arguments.assignment, process.follow)
    with _admin(arguments.admin, process):
        try:
            process.start(here.tasks, owners, settings.start_seconds)
            process.worker.activate()
            while not stop.wait_requested(_WATCH_SECONDS):
                process.worker.check()
                file.check()
                _check_tasks(process, arguments.worker_id)
        except TuplewireError:
            logger.exception("process.failed")  # with the place in the user's code
            raise
        finally:
            process.close(settings.stop_seconds)
    return EXIT_OK


def _check_tasks(process: ExecutorProcess, worker_id: str) -> None:
    assignment = process.link.assignment
    if assignment is not None and process.worker.tasks != set(assignment.tasks_of(worker_id)):
        raise TuplewireError(
            f"version {assignment.version} of the assignment gives worker {worker_id!r} other tasks than it "
            "runs: start it again"
        )
