"""The worker process, from its configuration to its exit code. run_worker() and _serve() list the steps.

Used by the command (cli.py). Owns all parts of the process. Not thread-safe. Call only from the main thread.
Design: docs/design/drain.md.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

import tuplewire
from tuplewire import tracing
from tuplewire.errors import TuplewireError
from tuplewire.identity.files import write_atomically
from tuplewire.processes.heaps import reuse_buffers, share_heap
from tuplewire.session.ledger import DropReason
from tuplewire.settings.addresses import add_brackets, join_host_port, split_host_port
from tuplewire.text.events import event_logger
from tuplewire_service.config.config_sources import read_conf
from tuplewire_service.config.stop import EXIT_DEFECT, EXIT_FAILED, EXIT_OK, Stop, StopRequest, exit_after
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.debugging import DebugBundles
from tuplewire_service.control.log_output import LogOutput
from tuplewire_service.control.memory import memory_limit, wait_for_stop
from tuplewire_service.messaging.claimed_socket import claim_socket
from tuplewire_service.metrics.admin_server import AdminServer
from tuplewire_service.metrics.families import ProgramCollector
from tuplewire_service.metrics.worker_metrics import WorkerCollector
from tuplewire_service.process.program import Host, load_program
from tuplewire_service.process.worker_runtime import WorkerRuntime
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.routing_table import WILDCARD_HOSTS, with_port
from tuplewire_service.worker.servers import Servers

logger = event_logger(__name__)

_CLOSE_SECONDS = 4.0  # with the default drain of 25 s, below 30 s, the grace period of Kubernetes and Spark
_PROGRAM_CLOSE_SECONDS = 1.0  # for executors to end after the drain: they are idle, or abandoned
_LAST_SCRAPE_SECONDS = 1.0  # for one more scrape if the drain dropped messages
_SWITCH_SECONDS = 0.0005  # how long a scrape may delay the loop at a time; executors keep Python's 5 ms


def run_worker(config: WorkerConfig, *, exit_on_stdin_eof: bool = False) -> int:
    """Run a worker until it is stopped, and return the exit code.

    0: drained after SIGTERM, SIGINT or a Drain call. 1: its program failed, or the drain lost data.
    70: a defect. A second signal ends the process immediately, with 128 + its number. `exit_on_stdin_eof`
    also stops it at the end of standard input. Raises TuplewireError if the worker cannot start.
    """
    share_heap()
    reuse_buffers()
    if not config.program:
        sys.setswitchinterval(_SWITCH_SECONDS)
    log = LogOutput(config.log_level, config.log_format)
    log.start()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # works even if the loop is stuck
    # Each connection is a file. At the limit, which is usually 1024, gRPC accepts no connections and logs
    # nothing, and its clients wait.
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    stop = Stop()
    stop.watch_signals()
    if exit_on_stdin_eof:
        stop.watch_stdin()
    try:
        return _serve(config, stop, log)
    except TuplewireError:
        raise  # the command prints it
    except Exception:
        logger.exception("worker.failed")
        return EXIT_DEFECT


def _serve(config: WorkerConfig, stop: Stop, log: LogOutput) -> int:
    with ExitStack() as final_cleanup, ExitStack() as cleanup:  # final_cleanup runs last
        if config.listen_unix:
            cleanup.enter_context(claim_socket(Path(config.listen_unix)))
        if config.tracing:
            tracing.enable(
                sample_ratio=config.trace_sample_ratio,
                service="tuplewire-worker",
                instance=config.worker_id,
                flush_at_exit=False,
            )
            cleanup.callback(tracing.flush)
        else:
            tracing.disable()
        registry = CollectorRegistry()
        runtime = WorkerRuntime(config, stop, DebugBundles(config, log, registry))
        cleanup.callback(runtime.close)
        program = None
        if config.program:
            conf = read_conf(config.program_conf_file) if config.program_conf_file else {}
            handle = Host(
                runtime.worker, lambda limit: stop.request(StopRequest("program_failed", EXIT_FAILED, limit))
            )
            program = load_program(handle, config.program, conf, config.program_state_file)
            runtime.program = program
        registry.register(WorkerCollector(runtime.status, config, memory_limit()))
        registry.register(runtime.security)
        registry.register(log)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        # Reserve the names of this worker's metrics, before the collector of the programs' metrics is added.
        runtime.control.reserved_names = frozenset(family.name for family in registry.collect())
        get_program_metrics = list if program is None else program.metrics  # list() returns no metrics
        registry.register(ProgramCollector(lambda: [*get_program_metrics(), *runtime.reported_metrics()]))
        probes = runtime.live_problem, runtime.ready_problem
        admin = AdminServer(config.listen_admin, registry, *probes, exemplars=config.tracing)
        cleanup.callback(admin.close)
        runtime.loop.run(runtime.bind())  # last, because the worker may be ready from then on
        servers = runtime.worker.servers
        if config.tasks:  # the worker assigns them to itself; not earlier: it is then ready
            address, peer_address = _advertised_addresses(config, servers)
            this_worker = AssignedWorker(config.worker_id, address, config.tasks, peer_address=peer_address)
            assignment = Assignment(1, config.topology, (this_worker,))
            runtime.loop.call(lambda: runtime.worker.update_assignment(assignment))
        _log_start(config, servers, admin)
        if not (config.tasks or config.assignment_file) and (reason := runtime.ready_problem()):
            logger.info("worker.not_ready", extra={"reason": reason})
        if config.address_file:
            path = Path(config.address_file)
            _write_address_file(path, config, servers, admin)
            cleanup.callback(path.unlink, missing_ok=True)
        if program is not None:
            program.start(_advertised_addresses(config, servers)[0])

        request = wait_for_stop(stop)

        deadline = request.drain_seconds or config.drain_seconds
        logger.info("worker.draining", extra={"reason": request.reason, "drain_seconds": deadline})
        # If the shutdown hangs, end the process, and print the step that it waits for.
        final_cleanup.callback(exit_after(deadline + _CLOSE_SECONDS, runtime.shutdown_step).cancel)
        if program is not None:
            program.stop_input()  # the drain waits for the program's work in progress
        ledger = runtime.loop.run(runtime.drain(deadline))
        dropped = ledger.dropped[DropReason.SHUTDOWN]
        logger.log(
            logging.WARNING if dropped else logging.INFO,
            "worker.drained",
            extra={"ledger": str(ledger), "balanced": ledger.balanced},
        )
        if dropped:
            admin.wait_for_scrape(_LAST_SCRAPE_SECONDS)  # the counts are lost with the process
        if program is not None and not program.close(_PROGRAM_CLOSE_SECONDS):
            stop.request(StopRequest("program_unfinished", EXIT_FAILED))
    code = stop.exit_code or (EXIT_FAILED if dropped else EXIT_OK)
    logger.info("worker.stopped", extra={"exit_code": code})
    return code


def _log_start(config: WorkerConfig, servers: Servers, admin: AdminServer) -> None:
    bound = [("messages", each) for each in servers.addresses]
    bound += [("peers", each) for each in servers.peer_addresses]
    for purpose, address in [*bound, ("admin", admin.address)]:
        logger.info("worker.listening", extra={"purpose": purpose, "address": address})
    logger.info(
        "worker.started",
        extra={
            "worker_id": config.worker_id,
            "topology": config.topology,
            "advertise": _advertised_addresses(config, servers)[0],
            "transport": config.transport,
            "version": tuplewire.__version__,
        },
    )


def _advertised_addresses(config: WorkerConfig, servers: Servers) -> tuple[str, str]:
    """Return the addresses for programs and, if these use another transport, for other workers (else "").

    The host is `advertise` or the bound host. A port in `advertise` applies to programs only.
    """
    first = servers.addresses[0]
    address = with_port(_advertised_host(config, first), split_host_port(first)[1])
    for bound in servers.peer_addresses:
        port = split_host_port(bound)[1]
        host, _ = split_host_port(with_port(_advertised_host(config, bound), port))
        return address, join_host_port(host, port)
    return address, ""


def _advertised_host(config: WorkerConfig, bound: str) -> str:
    """Return `advertise`, perhaps with a port, or the bound host; for a wildcard, this machine's name."""
    host, _ = split_host_port(bound)
    return config.advertise or add_brackets(socket.gethostname() if host in WILDCARD_HOSTS else host)


def _write_address_file(path: Path, config: WorkerConfig, servers: Servers, admin: AdminServer) -> None:
    """Write the bound addresses to a file for the process that started this one."""
    address, peer_address = _advertised_addresses(config, servers)
    content = {
        "worker_id": config.worker_id,
        "topology": config.topology,
        "process_id": os.getpid(),
        "address": address,
        "peer_address": peer_address or None,
        "unix_address": next((each for each in servers.addresses if each.startswith("unix:")), None),
        "addresses": servers.addresses,
        "metrics_url": f"http://{admin.address}/metrics",
    }
    try:
        write_atomically(path, json.dumps(content))  # readers wait for the file, and must not see a part
    except OSError as error:
        raise TuplewireError(f"cannot write the address file {path}: {error.strerror}") from error
