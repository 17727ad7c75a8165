"""The topology whose tasks a worker process runs itself, from its first assignment to its end.

Source: Storm's `Worker`, whose executors are what a worker is there for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import TuplewireError, UnreachableError, UnsupportedValueError
from tuplewire.packing.packing import pack_values
from tuplewire.settings.config import MIB
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.config.config_sources import read_conf
from tuplewire_service.config.stop import EXIT_FAILED, Stop, StopRequest
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.worker import Worker
from tuplewire_topology.acking.acker_tasks import with_ackers
from tuplewire_topology.authoring.component import DeadLetter
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import Tuple
from tuplewire_topology.clusters.capture import Captured
from tuplewire_topology.clusters.reference import load_topology
from tuplewire_topology.clusters.worker_link import WorkerLink
from tuplewire_topology.clusters.worker_process import Channel
from tuplewire_topology.coordination.executor_metrics import metric_families
from tuplewire_topology.coordination.termination import Failure, from_report
from tuplewire_topology.coordination.topology_status import component_statuses
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.heartbeat import ExecutorBeat, from_beat
from tuplewire_topology.running.statistics import ExecutorStatistics, from_statistics
from tuplewire_topology.serial.serializer import MessagePackTupleSerializer

logger = event_logger(__name__)

_LOOK_SECONDS = 0.2
_OPEN_SECONDS = 60.0
_END_SECONDS = 1.0
_FAILED_SECONDS = 1.0
"""How long a worker may pass on what it holds for others, once its own program has failed."""
_PART_BYTES = MIB


class Program:
    """Runs the tasks of a topology that the assignment gives to this worker, as it changes; thread-safe.

    channel: to whoever started the process and says when its spouts begin; None: they begin at once.
    collect: the components whose tuples are kept for it. An error of a spout or bolt ends the process.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker: Worker,
        stop: Stop,
        channel: Channel | None = None,
        collect: Sequence[str] = (),
    ) -> None:
        """Load the topology, and join the worker. Raises ConfigError for what is wrong with either."""
        self._conf = read_conf(config.program_conf) if config.program_conf else {}
        settings = TopologySettings.from_conf(self._conf)
        self._topology = with_ackers(load_topology(config.program or ""), settings.ackers)
        self._config = config
        self._worker = worker
        self._loop = messaging_loop()
        self._stop = stop
        self._channel = channel
        self._captured = Captured(collect)
        self._active = channel is None
        self._port = 0
        self._version = 0
        self._ending = threading.Event()
        self._executors: ExecutorWorker | None = None
        self._serializer = MessagePackTupleSerializer(self._topology)
        self._link = WorkerLink(worker, self._topology, settings)
        self._thread = threading.Thread(target=self._main, name="program", daemon=True)

    # --- for the process ------------------------------------------------------------------------------

    def start(self, address: str, peer_address: str, metrics_url: str) -> None:
        """Begin, once the worker has bound its addresses; peer_address: that for other workers, or empty."""
        self._port = int(address.rpartition(":")[2])
        if self._channel is not None:
            self._channel.send("bound", address, peer_address, metrics_url)
        self._thread.start()

    def statistics(self) -> Sequence[ExecutorStatistics]:
        """Return a snapshot of every executor; none before the first assignment."""
        return [] if self._executors is None else self._executors.statistics()

    def beats(self) -> Sequence[ExecutorBeat]:
        """Return what every executor was doing at the last heartbeat; none before the first assignment."""
        return [] if self._executors is None else self._executors.heartbeat.executors

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add the topology, and its executors here, to the worker's status; from any thread."""
        executors = self._executors
        statistics = [] if executors is None else executors.statistics(registered=False)
        status.components.extend(component_statuses(self._topology, statistics))

    def deactivate(self) -> None:
        """Follow no assignment any more, and stop the spouts; what is on the way goes on."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_END_SECONDS)
        if self._executors is not None:
            self._executors.deactivate()

    def metrics(self) -> list[pb.MetricFamily]:
        """Return the metrics of the executors; from any thread."""
        return metric_families(self.statistics(), self.beats())

    def close(self, timeout: float) -> bool:
        """End the executors; False, and a word in the log, when one has not ended in so many seconds."""
        self._ending.set()
        self._link.abort()
        try:
            if self._executors is not None:
                self._executors.close(timeout)
        except TimeoutError as error:
            logger.warning("program.not_ended", extra={"reason": str(error)})
            return False
        return True

    # --- its thread -----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._ending.is_set():
                self._follow()
                if self._executors is not None:
                    self._executors.check()
                if self._channel is None:
                    self._ending.wait(_LOOK_SECONDS)
                elif (message := self._channel.receive(_LOOK_SECONDS)) is not None:
                    self._answer(self._channel, *message)
        except UnreachableError as error:
            logger.warning("program.alone", extra={"reason": str(error)})
            self._stop.request(StopRequest("parent-gone", EXIT_FAILED, _FAILED_SECONDS))
        except BaseException as error:
            logger.exception("program.failed")  # with the place in the user's code
            self._tell_failure(error)
            self._stop.request(StopRequest("program-failed", EXIT_FAILED, _FAILED_SECONDS))

    def _tell_failure(self, error: BaseException) -> None:
        failure = Failure.of(error)
        if self._channel is not None:
            try:
                self._channel.send("failed", failure.summary, failure.traceback)
            except UnreachableError:
                logger.warning("program.alone", extra={"reason": failure.summary})

    def _follow(self) -> None:
        """Run what the assignment in force gives to this worker: end what is gone, open what is new."""
        assignment = self._worker.assignment
        if assignment is None or assignment.version == self._version:
            return
        wanted = frozenset(assignment.tasks_of(self._config.worker_id)).intersection(self._topology.tasks)
        if self._executors is None:
            state_file = self._config.program_state_file
            self._executors = self._link.executors = ExecutorWorker(
                self._topology,
                wanted,
                topology_id=self._config.topology,
                conf=self._conf,
                link=self._link,
                emitted=self._captured.add,
                dead_letter=self._bury,
                state_file=None if state_file is None else Path(state_file),
                port=self._port,
            )
            self._executors.start(_OPEN_SECONDS)
        else:
            self._executors.follow(wanted, _OPEN_SECONDS)
        if self._active:
            self._executors.activate()
        self._version = assignment.version
        logger.info("program.follows", extra={"version": assignment.version, "tasks": sorted(wanted)})
        if self._channel is not None:
            self._channel.send("following", assignment.version)

    def _bury(self, letter: DeadLetter) -> bool:
        """Send a tuple that was given up to the worker's dead-letter task; in an executor's thread.

        Returns False where there is none, or no room; what could not be sent is nobody's message.
        """
        rejections = self._worker.router.rejections
        if not letter.tries or not rejections.has_room:
            return False
        try:
            payload = self._serializer.serialize(Tuple(letter.tuple.values, letter.tuple.source))
        except UnsupportedValueError:
            return False  # the log has it
        source = letter.tuple.source_task
        group = TaskGroup.of(letter.error.task, [payload], source if source >= 0 else None)
        self._loop.loop.call_soon_threadsafe(rejections.bury, group, letter.tries, letter.reason)
        return True

    @property
    def _running(self) -> ExecutorWorker:
        if self._executors is None:
            raise TuplewireError("this worker has no executors yet: it is told its tasks first")
        return self._executors

    def _answer(self, channel: Channel, kind: str, values: Sequence[Any]) -> None:
        """Do what is asked over the channel."""
        match kind:
            case "assign":
                assignment = Assignment.from_json(values[0])
                self._loop.call(lambda: self._worker.update_assignment(assignment))
            case "activate":
                self._active = True
                self._running.activate()
            case "deactivate":
                self._active = False
                self._running.deactivate()
            case "tick":
                self._running.tick(values)
            case "report":
                report = self._running.report()
                self._running.check()
                channel.send("report", *values, *from_report(report))
            case "statistics":
                channel.send("statistics", *map(from_statistics, self.statistics()))
            case "beats":
                channel.send("beats", *map(from_beat, self.beats()))
            case "ledger":
                channel.send("ledger", *astuple(self._loop.call(self._worker.router.ledger)))
            case "collect":
                _hand_over(self._captured, channel)
            case "close":
                seconds = max(0.1, float(values[0]))
                self._stop.request(StopRequest("topology-killed", deadline_seconds=seconds))
            case _:
                raise TuplewireError(f"nobody here knows what {kind!r} asks for: two releases?")


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
