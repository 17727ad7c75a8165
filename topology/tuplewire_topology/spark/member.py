"""One PySpark task of a topology: it joins the other tasks, runs its executors, and yields their output.

Used by submit.py, which runs these tasks in a barrier stage, so that Spark starts and repeats all of them
together. Owns the task's executors and clients. Not thread-safe. Exceptions: callbacks.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.settings.config import Overflow
from tuplewire.spark.version_check import VersionChecked
from tuplewire.wire import control_pb2
from tuplewire_topology.authoring.collector import EmittedTuples
from tuplewire_topology.authoring.component import DeadLetter
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.coordination.control_channel import (
    COORDINATOR_KINDS,
    ControlChannel,
    ControlInbox,
    ControlKind,
    ControlMessage,
)
from tuplewire_topology.coordination.coordinator import Coordinator, Order
from tuplewire_topology.coordination.executor_reports import (
    CALL_TIMEOUT_SECONDS,
    ProgramReporter,
    component_statuses,
    metric_families,
)
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.statistics import Failure, ProcessReport
from tuplewire_topology.serial.serializer import from_lists, to_lists
from tuplewire_topology.spark.plan import (
    START_SECONDS,
    SUBMITTER_TASK,
    Member,
    Plan,
    RunToken,
    WorkerRef,
    credentials,
    ensure_worker,
)
from tuplewire_topology.spark.rows import DEAD_LETTERS, ROWS_KEY, Batcher, FailedRows, Output, as_tuples

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import BarrierTaskContext

_CLOSE_SECONDS = 30.0
_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class Submission(VersionChecked):
    """A topology in the form that Spark sends to the PySpark tasks. mapInArrow calls it in each task.

    run_id: names this run, so that workers do not take two runs for restarts of each other. n_members: the
    number of PySpark tasks. workers: addresses, used in turn; if empty, each task uses its nearest worker.
    has_rows: True if the input is for a Rows spout. token: required by the workers that the run starts.
    """

    name: str
    run_id: str
    topology: Topology
    conf: Mapping[str, Any]
    n_members: int
    output: Output
    workers: Sequence[str] = ()
    submitter: WorkerRef | None = None
    has_rows: bool = False
    token: RunToken = field(default_factory=RunToken)

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task; yield rows of Output.stage_schema()."""
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        if not self.has_rows:
            for _ in rows:
                pass
        with ExitStack() as stack:
            token_file = stack.enter_context(self.token.as_file())
            try:
                plan = self._join(stack, context, rank, token_file)
            except TuplewireError as error:
                yield Batcher(self.output).failure(rank, error)  # after an exception, Spark would try again
                return
            if plan is not None:
                yield from _TopologyMember(self, plan, rank, token_file, rows).run()

    def _join(self, stack: ExitStack, task: BarrierTaskContext, rank: int, token_file: Path) -> Plan | None:
        """Exchange addresses; return the plan, or None if another task has a problem. Raises its own."""
        worker_ref, own_error, submitter_version = None, None, 0
        infos = task.getTaskInfos()
        try:
            if len(infos) != self.n_members:
                raise ConfigError(
                    f"Spark runs {len(infos)} PySpark tasks in place of {self.n_members}: "
                    "do not change the number of partitions"
                )
            host = infos[rank].address.rpartition(":")[0]
            address = self.workers[rank % len(self.workers)] if self.workers else None
            worker_ref = stack.enter_context(ensure_worker(address, host, self.name, token_file))
            if rank == 0 and self.submitter is not None and self.submitter.worker_id != worker_ref.worker_id:
                # Each generation increases the assignment version.
                access = credentials(token_file, is_own=self.submitter.is_own)
                with ControlClient(self.submitter.peer_address, START_SECONDS, credentials=access) as control:
                    submitter_version = control.status().assignment_version
        except TuplewireError as error:
            own_error = error
        own_info = Member(task.taskAttemptId(), worker_ref, submitter_version)
        texts = task.allGather(json.dumps(to_lists(own_info)))
        member_infos = [from_lists(Member, json.loads(text)) for text in texts]
        if own_error is not None:  # raised only now, because the other tasks wait for allGather
            raise own_error
        if any(each.worker_ref is None for each in member_infos):
            return None
        try:
            return Plan(self.topology, self.run_id, member_infos, self.submitter)
        except ConfigError:
            if rank == 0:  # all tasks get the same error, and one report is enough
                raise
            return None


class _TopologyMember:
    """A joined PySpark task. Raises UnreachableError or RefusedError if a worker rejects the assignment."""

    def __init__(
        self, submission: Submission, plan: Plan, rank: int, token_file: Path, rows: Iterator[pa.RecordBatch]
    ) -> None:
        self._submission = submission
        self._token_file = token_file
        self._plan = plan
        self._rank = rank
        self._worker_ref = plan.worker_refs[rank]
        self._batcher = Batcher(submission.output)
        self._inbox = ControlInbox()
        self._failed_rows = FailedRows()
        self._first_error: Exception | None = None
        self._is_finished = False
        self._is_aborted = False
        self._push_assignment()
        client, task = self._create_client("control"), plan.control_task(rank)
        self._control = ControlChannel(client, submission.run_id, task, self._receive, self._inbox.fail)
        self._group = self._create_group(rows)

    def run(self) -> Iterator[pa.RecordBatch]:
        """Run the executors to the end, and yield output. Yields errors: raising would rerun the stage."""
        access = credentials(self._token_file, is_own=self._worker_ref.is_own)
        control = ControlClient(self._worker_ref.address, CALL_TIMEOUT_SECONDS, credentials=access)
        with self._control, ProgramReporter(control, self._program_report):
            coordinator = None
            if self._rank == 0:
                levels = self._submission.topology.tick_levels(self._submission.conf)
                coordinator = Coordinator(self._submission.n_members, time.monotonic(), levels)
                self._submit(ControlKind.STARTED, self._plan.control_task(0), self._submission.n_members)
            try:
                self._group.start()
                self._send(self._plan.control_task(0), ControlKind.READY)
            except TuplewireError as error:
                self._record_error(error)
                self._send_report(0)
            yield from self._run_loop(coordinator)
            yield from self._finish()
            self._submit(ControlKind.CLOSED)

    def _create_client(self, purpose: str, **session: Any) -> Client:
        return Client(
            self._worker_ref.address,
            topology=self._plan.topology_name,
            worker_id=self._worker_ref.worker_id,
            client_id=f"{self._submission.run_id}-{self._rank}-{purpose}",
            incarnation=self._plan.generation + 1,  # increases when Spark runs the stage again
            credentials=credentials(self._token_file, is_own=self._worker_ref.is_own),
            **session,
        )

    def _program_report(self) -> control_pb2.ReportProgramRequest:
        """Return a report of the executors. Thread-safe."""
        plan, group = self._plan, self._group
        return control_pb2.ReportProgramRequest(
            topology=plan.topology_name,
            expected_worker_id=self._worker_ref.worker_id,
            program=f"{self._submission.run_id}-{self._rank}",
            assignment_version=plan.version,
            components=component_statuses(self._submission.topology, group.executors, plan.task_offset),
            metrics=metric_families(group.statistics(), group.heartbeats.last),
        )

    def _push_assignment(self) -> None:
        with ExitStack() as stack:
            controls = []
            for address, worker_ref in self._plan.assignment_targets(self._rank):
                access = credentials(self._token_file, is_own=worker_ref.is_own)
                controls.append(stack.enter_context(ControlClient(address, credentials=access)))
            for control in controls:
                control.update_assignment(self._plan.assignment())
            for control in controls:  # a worker is ready only after it has connected to the others
                control.wait_ready(START_SECONDS)

    def _create_group(self, rows: Iterator[pa.RecordBatch]) -> ExecutorGroup:
        conf = dict(self._submission.conf)
        session = asdict(TopologySettings.from_conf(conf).session)
        if session["overflow"] is Overflow.FAIL:
            session["overflow"] = Overflow.BLOCK  # executors wait for free space, as in every runtime
        if self._submission.has_rows:
            conf[ROWS_KEY] = (rows, self._failed_rows, self._queue_dead_letter)
        topology = self._submission.topology
        return ExecutorGroup(
            topology,
            self._plan.tasks_by_rank[self._rank],
            topology_id=self._submission.name,
            conf=conf,
            link=Link(
                self._create_client("tuples", **session),
                task_offset=self._plan.task_offset,
                spout_tasks=topology.spout_tasks,
            ),
            on_error=self._failed_rows.add_error,
            on_dead_letter=self._queue_dead_letter,
            on_emit=self._queue_output,
        )

    def _queue_output(self, emitted: Sequence[EmittedTuples]) -> None:
        if included := list(filter(self._submission.output.includes, emitted)):
            self._inbox.put_tuples(included)

    def _queue_dead_letter(self, letter: DeadLetter) -> bool:
        """Add a dead letter to the output, waiting for free space. Runs in an executor's thread.

        Returns False for a tuple that could not be sent: it has failed, and its spout may emit it again.
        """
        if letter.tries:
            self._inbox.put_tuples([as_tuples(letter)])
        return letter.tries > 0

    # --- control messages -----------------------------------------------------------------------------

    def _receive(self, message: ControlMessage) -> None:
        if message.generation == self._plan.generation:
            self._inbox.put_message(message)

    def _record_error(self, error: Exception) -> None:
        """Record the first error. A failure of the executors comes first, as it causes other errors."""
        self._first_error = self._first_error or self._group.failure or error

    def _send(self, control_task: int, kind: ControlKind, *values: Any) -> None:
        message = ControlMessage(self._submission.run_id, self._plan.generation, self._rank, kind, values)
        self._control.send(control_task, message)

    def _submit(self, kind: ControlKind, *values: Any) -> None:
        if self._submission.submitter is not None:
            self._send(SUBMITTER_TASK, kind, *values)

    def _send_report(self, wave: int) -> None:
        report = self._group.report(new_epoch=wave == 1)
        tallies = [each.tally.snapshot() for each in self._group.executors]
        emitted, executed = sum(each.emitted for each in tallies), sum(each.executed for each in tallies)
        self._first_error = self._first_error or self._group.failure
        if self._first_error is not None:
            report = ProcessReport(is_idle=False, sent=0, received=0, failure=Failure.of(self._first_error))
        counts = emitted, executed, self._failed_rows.dead_letter_count
        self._send(self._plan.control_task(0), ControlKind.REPORT, wave, to_lists(report), *counts)

    # --- orders and output --------------------------------------------------------------------------------

    def _run_loop(self, coordinator: Coordinator | None) -> Iterator[pa.RecordBatch]:
        while not self._is_finished:
            if coordinator is not None:
                for order in coordinator.next_orders(time.monotonic()):
                    self._broadcast(order)
            seconds = _WAIT_SECONDS if coordinator is None else coordinator.wait_seconds(time.monotonic())
            messages, emitted = self._inbox.take_all(seconds)
            yield from self._batches(emitted)
            for each in messages:
                if coordinator is not None and each.kind in COORDINATOR_KINDS:
                    coordinator.handle_message(each, time.monotonic())
                else:
                    self._handle_order(each)

    def _broadcast(self, order: Order) -> None:
        if order.kind is ControlKind.PROGRESS:
            self._submit(order.kind, *order.values)
            return
        for rank in range(self._submission.n_members):
            self._send(self._plan.control_task(rank), order.kind, *order.values)

    def _handle_order(self, message: ControlMessage) -> None:
        if message.kind is ControlKind.GET_REPORT:
            (wave,) = message.values
            self._send_report(wave)
        elif message.kind in {ControlKind.CLOSE, ControlKind.ABORT}:
            self._is_finished = True
            self._is_aborted = message.kind is ControlKind.ABORT
        else:
            if message.kind is ControlKind.SET_STATE and not message.values[1]:
                self._inbox.discard()  # a cancelled job: bolts must not wait until Spark reads their output
            Order(message.kind, message.values).execute(self._group)

    def _batches(self, emitted: Sequence[EmittedTuples]) -> Iterator[pa.RecordBatch]:
        self._failed_rows.dead_letter_count += sum(each.source.component == DEAD_LETTERS for each in emitted)
        try:
            yield from self._batcher.batches(emitted)
        except TuplewireError as error:
            self._record_error(error)
            self._inbox.discard()

    def _finish(self) -> Iterator[pa.RecordBatch]:
        """Close the executors, and yield the last rows: the remaining output, and the report or failure."""
        if self._is_aborted:
            self._inbox.discard()
        try:
            self._group.close(0.0 if self._is_aborted else _CLOSE_SECONDS)
            self._group.raise_if_failed()
        except TuplewireError as error:
            if not self._is_aborted:  # after an abort, the cause is already reported
                self._record_error(error)
        _, emitted = self._inbox.take_all(0.0)
        yield from self._batches(emitted)
        if self._first_error is not None:
            yield self._batcher.failure(self._rank, self._first_error)
        else:
            yield self._batcher.report(self._group.statistics(), self._failed_rows)
