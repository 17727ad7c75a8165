"""The program of a worker process that runs executors of a topology. Source: Storm's `Worker`.

Used by the worker process through an entry point. Owns the executors and their client. Thread-safe.
Design: docs/design/topologies.md (a process that runs executors is a worker).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from tuplewire.errors import MalformedError, UnsupportedValueError, WaitTimeoutError
from tuplewire.packing.packing import READ_ERRORS, pack_values, read_value
from tuplewire.settings.config import MIB
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.process.program import Host, Program
from tuplewire_topology.authoring.component import DeadLetter
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import Tuple
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.clusters.launching import load_topology
from tuplewire_topology.coordination.control_channel import ControlKind
from tuplewire_topology.coordination.coordinator import Order
from tuplewire_topology.coordination.executor_reports import component_statuses, metric_families
from tuplewire_topology.running.component_executors import BoltExecutor
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.statistics import Failure
from tuplewire_topology.running.task_router import outbound_tasks
from tuplewire_topology.serial.serializer import TupleSerializer, to_lists

logger = event_logger(__name__)

_POLL_SECONDS = 0.2
_JOIN_SECONDS = 1.0
_FORWARD_SECONDS = 1.0
"""The time that a worker has to forward messages of other workers after its program has failed."""
_REPORT_SECONDS = 5.0
"""The time that a failed program waits for the call that gets its error."""
_MAX_CHUNK_BYTES = MIB
COLLECT_KEY = "__collect"
"""The setting with the names of the collected components. Only clusters set it."""


class CallKind(StrEnum):
    """The calls of a cluster, besides the orders of a coordinator."""

    CAPTURED_TUPLES = "rows"
    """Return the first (True) or next tuples of the collected components; nil after the last ones."""
    STATISTICS = "statistics"
    """Return snapshots of the executors, and their activity."""


class TopologyProgram(Program):
    """Runs the tasks that the current assignment gives to this worker. Thread-safe.

    The assignment also activates and deactivates the spouts. An error of a spout or bolt ends the process.
    """

    def __init__(self, host: Host, name: str, conf: Mapping[str, Any], state_file: str | None = None) -> None:
        """Load the topology, and attach to the worker; see load_program()."""
        self._conf = dict(conf)
        collect = self._conf.pop(COLLECT_KEY, None)
        self._topology = with_ackers(load_topology(name), TopologySettings.from_conf(self._conf).n_ackers)
        self._host = host
        self._state_file = state_file
        self._captured = CapturedTuples(collect) if collect else None
        self._chunks: Iterator[list[Any]] = iter(())
        self._port = 0
        self._version = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failure_reported = threading.Event()
        if collect is None:  # then no cluster requests its failure
            self._failure_reported.set()
        self._group: ExecutorGroup | None = None
        self._serializer = TupleSerializer(self._topology)
        self._reported_missing: frozenset[int] = frozenset()
        host.attach(self, self._topology.tasks, partial(outbound_tasks, self._topology))
        self._thread = threading.Thread(target=self._main, name="program", daemon=True)

    # --- for the process ------------------------------------------------------------------------------

    @property
    def not_ready_reason(self) -> str:
        return "the executors are starting" if self._group is None else self._group.not_ready_reason

    @property
    def is_busy(self) -> bool:
        return self._group is not None and self._group.is_busy

    def disconnect(self) -> None:
        if self._group is not None:
            self._group.disconnect()

    def start(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._thread.start()

    def add_to(self, status: pb.GetStatusResponse) -> None:
        executors = [] if self._group is None else self._group.executors
        status.components.extend(component_statuses(self._topology, executors))

    def stop_input(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._group is not None:
            self._group.set_active(active=False)

    def metrics(self) -> list[pb.MetricFamily]:
        """Return the metrics of the executors; empty before the first assignment."""
        group = self._group
        return [] if group is None else metric_families(group.statistics(), group.heartbeats.last)

    def close(self, timeout: float) -> bool:
        """End the executors; log, and return False, if one does not end in time, or loses tuples."""
        self._stopping.set()
        if (group := self._group) is None:
            return True
        is_complete, group.counter.paused = True, True  # a tick that arrives now would count as a lost tuple
        try:
            group.close(timeout)
        except WaitTimeoutError as error:
            logger.warning("program.not_ended", extra={"reason": str(error)})
            is_complete = False
        for each in group.executors:
            lost = each.queue.statistics().arrived - each.tally.executed
            if isinstance(each, BoltExecutor) and lost:
                logger.warning("executor.tuples_lost", extra={"component": each.component.id, "tuples": lost})
                is_complete = False
        return is_complete

    # --- its thread -----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._stopping.wait(_POLL_SECONDS):
                self._update()
        except BaseException:
            logger.exception("program.failed")  # with the place in the user's code
            self._failure_reported.wait(_REPORT_SECONDS)
            self._host.stop_with_error(_FORWARD_SECONDS)

    def _update(self) -> ExecutorGroup | None:
        """Apply the current assignment; return the executors, if any. Raises the failure of the program."""
        with self._lock:
            try:
                if self._failure is None and not self._stopping.is_set():
                    self._apply_assignment()
                if self._group is not None:
                    self._group.raise_if_failed()
            except BaseException as error:
                self._failure = error
                raise
            if self._failure is not None:
                raise self._failure
            return self._group

    def _apply_assignment(self) -> None:
        """Apply a new assignment: end executors that have left this worker, and open new ones."""
        assignment = self._host.assignment
        if assignment is None or assignment.version == self._version:  # none yet, or already applied
            return
        assigned = frozenset(assignment.tasks_of(self._host.worker_id)).intersection(self._topology.tasks)
        missing = outbound_tasks(self._topology, assigned).difference(assignment.owner_by_task)
        if missing and missing != self._reported_missing:  # Source: Storm's "Missing assignment" warning
            logger.warning("assignment.tasks_missing", extra={"tasks": sorted(missing)})
        self._reported_missing = missing
        if self._group is None:
            self._group = ExecutorGroup(
                self._topology,
                assigned,
                topology_id=self._host.topology,
                conf=self._conf,
                link=Link.for_worker(self._host, self._topology, self._conf),
                on_emit=None if self._captured is None else self._captured.record_emitted,
                on_dead_letter=self._send_dead_letter,
                state_file=None if self._state_file is None else Path(self._state_file),
                port=self._port,
            )
            self._group.start()
        else:
            self._group.update_tasks(assigned)
        self._group.set_active(active=assignment.active and not self._stopping.is_set())
        self._version = assignment.version
        extra = {"version": assignment.version, "tasks": sorted(assigned), "active": assignment.active}
        logger.info("program.assignment_applied", extra=extra)

    def _send_dead_letter(self, letter: DeadLetter) -> bool:
        """Send a tuple to the worker's dead-letter task, or return False. Called on executors' threads."""
        if not letter.tries:  # the tuple could not be sent, so it is not a message of any task
            return False
        try:
            payload = self._serializer.serialize(Tuple(letter.tuple.values, letter.tuple.source))
        except UnsupportedValueError:
            return False  # the error that made it a dead letter is logged
        source = letter.tuple.source_task  # negative for ticks
        group = TaskGroup.of(letter.error.task, [payload], source if source >= 0 else None)
        return self._host.emit_dead_letter(group, letter.tries, letter.reason)

    # --- calls ------------------------------------------------------------------------------------------

    def call(self, request: bytes) -> bytes:
        """Answer a call of a cluster, a kind and values, with a failure (or None) and a value."""
        try:
            (kind, *values), _ = read_value(request, 0)  # MessagePack, because a pickle would run code
        except (*READ_ERRORS, TypeError) as error:
            raise MalformedError(f"{len(request)} bytes are not a call of a topology: {error}") from error
        try:
            return pack_values([None, self._handle_call(kind, values)])
        except MalformedError:
            raise
        except BaseException as error:  # noqa: BLE001 - the caller reports it
            self._failure_reported.set()
            return pack_values([to_lists(Failure.of(error)), None])

    def _handle_call(self, kind: str, values: Sequence[Any]) -> Any:
        match kind:
            case CallKind.STATISTICS:
                if (group := self._group) is None:
                    return [[], []]
                return to_lists([group.statistics(), group.heartbeats.last])
            case CallKind.CAPTURED_TUPLES:
                (first,) = values
                if first and self._captured is not None:
                    self._chunks = _captured_chunks(self._captured)
                return next(self._chunks, None)
            case ControlKind.GET_REPORT | ControlKind.FINAL_TICK:
                if (group := self._update()) is None:  # a restarted process, before it has its assignment
                    return None
                return to_lists(Order(ControlKind(kind), tuple(values)).execute(group))
            case _:
                raise MalformedError(f"{kind!r} is not a call of a topology")


def _captured_chunks(captured: CapturedTuples) -> Iterator[list[Any]]:
    """Yield the collected tuples in parts, then delete them. Raises UnsupportedValueError."""
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
            if rows and size + len(row) > _MAX_CHUNK_BYTES:
                yield [component, stream, rows]
                rows, size = [], 0
            rows.append(row)
            size += len(row)
        yield [component, stream, rows]
    captured.clear()
