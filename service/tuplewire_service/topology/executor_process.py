"""A process that runs executors of a topology, and does what another says. Source: Storm's `Worker`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tuplewire.config import MIB
from tuplewire.errors import TuplewireError, UnreachableError, UnsupportedValueError
from tuplewire.topology.acker_tasks import with_ackers
from tuplewire.topology.description import Topology
from tuplewire.topology.heartbeat import ExecutorBeat
from tuplewire.topology.packing import pack_values
from tuplewire.topology.reporting import from_beat, from_report, from_statistics
from tuplewire.topology.routing import outbound_tasks
from tuplewire.topology.settings import TopologySettings
from tuplewire.topology.statistics import ExecutorStatistics
from tuplewire.topology.termination import Failure
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TransportFactory
from tuplewire_service.topology.capture import Captured
from tuplewire_service.topology.channel import Channel
from tuplewire_service.topology.connections import Address
from tuplewire_service.topology.context_link import ContextLink
from tuplewire_service.worker.assignment import Assignment

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_PART_BYTES = MIB


class ExecutorProcess:
    """The executors, transport and link of one process, from the port that it binds to its end.

    collect: the components whose tuples are kept, to be handed over at the end. state_file: as of
    ExecutorWorker.
    Raises ConfigError for settings that are wrong, and BindError for a port that is in use.
    """

    def __init__(
        self,
        topology: Topology,
        topology_id: str,
        conf: Mapping[str, Any],
        port: int,
        collect: Sequence[str] = (),
        state_file: Path | None = None,
    ) -> None:
        self._topology_id = topology_id
        self._topology = with_ackers(topology, TopologySettings.of(conf).ackers)
        self._conf = conf
        self._state_file = state_file
        self._context: IContext = TransportFactory.make_context(conf)
        self.link = ContextLink(self._context, topology_id, port)
        self._worker: ExecutorWorker | None = None
        self.captured = Captured(collect)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self.link.port

    @property
    def worker(self) -> ExecutorWorker:
        """The executors; TuplewireError before start()."""
        if self._worker is None:
            raise TuplewireError("this process has no executors yet: it is told its tasks first")
        return self._worker

    def start(self, tasks: Sequence[int], owners: Mapping[int, Address], timeout: float) -> None:
        """Open these tasks, and connect to the workers that they send to; as ExecutorWorker.start."""
        outbound = outbound_tasks(self._topology, tasks)
        self.link.connect({task: owner for task, owner in owners.items() if task in outbound})
        self._worker = ExecutorWorker(
            self._topology,
            tasks,
            topology_id=self._topology_id,
            conf=self._conf,
            link=self.link,
            emitted=self.captured.add,
            state_file=self._state_file,
        )
        self._worker.start(timeout)
        logger.info("process.started", extra={"port": self.port, "tasks": sorted(tasks)})

    def follow(self, assignment: Assignment) -> bool:
        """Send to where an assignment says that tasks are; as ContextLink.assign, once started."""
        return self.link.assign(assignment, outbound_tasks(self._topology, self.worker.tasks))

    @property
    def not_ready(self) -> str:
        """Why it does not do its work now; see ExecutorWorker.not_ready."""
        return "starting" if self._worker is None else self._worker.not_ready

    def statistics(self) -> Sequence[ExecutorStatistics]:
        """Return a snapshot of every executor; none before start()."""
        return [] if self._worker is None else self._worker.statistics()

    def beats(self) -> Sequence[ExecutorBeat]:
        """Return what every executor was doing at the last heartbeat; none before start()."""
        return [] if self._worker is None else self._worker.heartbeat.executors

    def close(self, timeout: float) -> None:
        """Stop the spouts, finish what is here, see off what was sent, and end; at most so many seconds."""
        try:
            if self._worker is not None:
                self._worker.close(timeout)
        finally:
            self._context.term()


def serve(
    process: ExecutorProcess, channel: Channel, stopped: Callable[[], bool], stop_seconds: float
) -> int:
    """Do what is asked over a channel until told to stop, and return the exit code.

    stopped: whether the process is to end by itself, then within stop_seconds. An error is told with its
    traceback, and ends the process; so does the end of whoever asks.
    """
    channel.send("bound", process.port)
    code, close_seconds = 1, 0.0
    try:
        close_seconds = _answer(process, channel, stopped, stop_seconds)
        code = 0
    except UnreachableError as error:
        logger.warning("process.alone", extra={"reason": str(error)})
    except Exception as error:
        logger.exception("process.failed")
        _tell_failure(channel, error)
    finally:
        process.close(close_seconds)
    return code


def _tell_failure(channel: Channel, error: Exception) -> None:
    failure = Failure.of(error)
    try:
        channel.send("failed", failure.summary, failure.traceback)
    except UnreachableError:
        logger.warning("process.alone", extra={"reason": failure.summary})


def _answer(
    process: ExecutorProcess, channel: Channel, stopped: Callable[[], bool], stop_seconds: float
) -> float:
    """Do what is asked, and return how long the end may take."""
    while not stopped():
        message = channel.receive(_POLL_SECONDS)
        if message is None:
            if process._worker is not None:
                process.worker.check()
            continue
        kind, values = message
        match kind:
            case "start":
                tasks, owners, timeout = values
                process.start(tasks, {task: (host, port) for task, host, port in owners}, timeout)
                channel.send("started")
            case "activate":
                process.worker.activate()
            case "deactivate":
                process.worker.deactivate()
            case "tick":
                process.worker.tick()
            case "report":
                report = process.worker.report()
                process.worker.check()
                channel.send("report", *values, *from_report(report))
            case "statistics":
                channel.send("statistics", *map(from_statistics, process.worker.statistics()))
            case "beats":
                channel.send("beats", *map(from_beat, process.beats()))
            case "ledger":
                channel.send("ledger", *astuple(process.link.connections.ledger))
            case "collect":
                _hand_over(process.captured, channel)
            case "close":
                return float(values[0])
            case _:
                raise TuplewireError(f"nobody here knows what {kind!r} asks for: two releases?")
    return stop_seconds


def _hand_over(captured: Captured, channel: Channel) -> None:
    """Send what was kept, some at a time; UnsupportedValueError for a value that no message can carry."""
    for component, stream in captured.streams():
        rows: list[bytes] = []
        size = 0
        for values in captured.tuples(component, stream):
            try:
                row = pack_values(values)
            except (TypeError, ValueError) as error:
                raise UnsupportedValueError(
                    f"a tuple of {component!r}, which is collected, cannot leave its process: {error}; "
                    "emit values that a message can carry"
                ) from error
            if rows and size + len(row) > _PART_BYTES:
                channel.send("rows", component, stream, rows)
                rows, size = [], 0
            rows.append(row)
            size += len(row)
        channel.send("rows", component, stream, rows)
    captured.clear()
    channel.send("collected")
