"""Control of a worker process that runs executors, and its restarts. Source: Storm's `Supervisor` and `Slot`.

Used by distributed_topology.py; topology_program.py answers the calls. Owns the process and the client of its
worker. Thread-safe. Design: docs/design/topologies.md (control of processes).
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, TuplewireError, UnreachableError, fresh_copy, to_tuplewire_error
from tuplewire.identity.credentials import Credentials
from tuplewire.packing.packing import READ_ERRORS, pack_values, read_value
from tuplewire.processes.child import Child, Command, LaunchError
from tuplewire.processes.worker_processes import Endpoint, wait_for_addresses
from tuplewire.session.backoff import Backoff
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire.text.events import event_logger
from tuplewire.wire import control_pb2
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.clusters.launching import LaunchSettings
from tuplewire_topology.clusters.topology_program import CallKind
from tuplewire_topology.coordination.control_channel import ControlKind
from tuplewire_topology.coordination.coordinator import Order
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.statistics import (
    ExecutorStatistics,
    Failure,
    ProcessFailedError,
    ProcessReport,
)
from tuplewire_topology.serial.serializer import from_lists

logger = event_logger(__name__)

_MIN_DELAY_SECONDS = 0.5
_MAX_DELAY_SECONDS = 30.0
_CALL_TIMEOUT_SECONDS = 30.0
_STOP_MARGIN_SECONDS = 10.0


class WorkerProcess:
    """Starts, restarts, calls and ends the process of a worker. Thread-safe.

    `endpoint` has its addresses after wait_for_addresses(), `start_count` counts starts, and `child` is the
    newest process. From open_tasks() until stop(), one that fails is restarted, at growing intervals.
    """

    endpoint: Endpoint

    def __init__(
        self,
        command: Command,
        settings: LaunchSettings,
        *,
        listen: str,
        address_file: Path,
        credentials: Credentials,
    ) -> None:
        """Start the process. `command` has neither --listen nor --address-file.

        listen: the address to bind. For port 0, it uses a free port, and keeps it after a restart.
        address_file: the file for its addresses. credentials: for calls of its worker.
        """
        self.name = command.name
        self.start_count = 0
        self._failure: TuplewireError | None = None
        self._given_up: TuplewireError | None = None
        self._command = command
        self._host, self._port = split_host_port(listen)
        self._address_file = address_file
        self._credentials = credentials
        self._settings = settings
        self._assignment = control_pb2.Assignment()
        self._control: ControlClient | None = None
        self._remaining_restarts = settings.max_restarts
        self._backoff = Backoff(_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.child = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True)

    def _start(self) -> Child:
        self._address_file.unlink(missing_ok=True)  # a killed process leaves it
        flags = [f"--listen={join_host_port(self._host, self._port)}", f"--address-file={self._address_file}"]
        child = Child(replace(self._command, arguments=[*self._command.arguments, *flags]))
        self.start_count += 1
        if self.start_count > 1:
            try:
                self.wait_for_bound(child)
                self._open_tasks()
            except TuplewireError:
                child.wait_or_kill(time.monotonic())
                raise
        return child

    def _watch(self) -> None:
        try:
            error = self._keep_running()
        except BaseException as failed:  # noqa: BLE001 - otherwise no restart, and no report
            error = to_tuplewire_error(failed)
        self._given_up = error and (self._failure or error)  # the program's error says more than an exit code

    def _keep_running(self) -> TuplewireError | None:
        """Restart the process until it is stopped, or return the reason why it is not restarted."""
        while (code := self.child.wait()) is not None and not self._stopping.is_set():
            error = self._exit_error(code)
            child: Child | None = None
            while child is None:
                if code == 0 or not self._remaining_restarts:  # 0: it was stopped, and did not fail
                    return error
                self._remaining_restarts -= 1
                delay = self._backoff.next()
                extra = {"worker": self.name, "exit_code": code, "delay_seconds": delay}
                logger.warning("process.restarting", extra=extra)
                if self._stopping.wait(delay):
                    return None
                try:
                    child = self._start()
                except TuplewireError as failed:  # a restart that fails counts
                    error = failed
            with self._lock:
                self.child.wait_or_kill(time.monotonic())  # it has exited; this closes its standard input
                self.child = child
                if self._stopping.is_set():
                    child.process.terminate()
        return None

    def _exit_error(self, code: int | None) -> TuplewireError:
        end = "does not respond" if code is None else f"ended with code {code}"
        return LaunchError(f"{self.name} {end}\n{self.child.log_tail()}")

    def wait_for_bound(self, child: Child | None = None) -> None:
        """Wait until the process has bound its port; LaunchError, with the end of its log, if it fails."""
        deadline = time.monotonic() + self._settings.start_seconds
        self.endpoint = wait_for_addresses(child or self.child, self._address_file, deadline)
        self._port = split_host_port(self.endpoint.address)[1]  # a restart must keep the assigned address
        if self._control is not None:
            self._control.close()
        # A new client after a restart, because gRPC would wait before it connects again.
        self._control = ControlClient(self.endpoint.address, credentials=self._credentials)

    def open_tasks(self, assignment: control_pb2.Assignment) -> None:
        """Apply the first assignment, wait until all tasks are open, and supervise the process from then on.

        Raises ProcessFailedError if a task cannot be opened, and LaunchError if the process exits.
        """
        self._assignment = assignment
        try:
            self._open_tasks()
        except UnreachableError as error:
            raise self._exit_error(self.child.wait(self._settings.stop_timeout_seconds)) from error
        self._thread.start()

    def _open_tasks(self) -> None:
        self._client.update_assignment(self._assignment)
        # The answer comes once the tasks are open.
        self._call(ControlKind.GET_REPORT, 0, seconds=self._settings.start_seconds + _CALL_TIMEOUT_SECONDS)

    def update_assignment(self, assignment: control_pb2.Assignment) -> None:
        """Send an assignment; a process that is being restarted gets it afterwards."""
        self._assignment = assignment
        # apply_order() raises the failure, if it is final.
        with contextlib.suppress(UnreachableError, ClosedError):
            self._client.update_assignment(assignment)

    def assignment(self) -> control_pb2.Assignment | None:
        """Return the current assignment; None if the process does not answer."""
        with contextlib.suppress(UnreachableError, ClosedError):
            return self._client.get_assignment()
        return None

    @property
    def _client(self) -> ControlClient:
        if self._control is None:
            raise ClosedError(f"{self.name} has not bound its port yet; call wait_for_bound() first")
        return self._control

    def _call(self, kind: str, *values: Any, seconds: float = _CALL_TIMEOUT_SECONDS) -> Any:
        """Call the program, and return its answer. Raises ProcessFailedError if it has failed."""
        answer = self._client.call_program(pack_values([str(kind), *values]), seconds)
        try:
            failure, value = read_value(answer, 0)[0]
        except (*READ_ERRORS, TypeError) as error:
            raise LaunchError(f"{self.name} sends an invalid answer to {kind!r}: {error}") from error
        if failure is not None:
            self._failure = ProcessFailedError(self.name, Failure(*failure))
            raise self._failure
        return value

    def apply_order(self, order: Order) -> ProcessReport | None:
        """Send an order; return the process's report for GET_REPORT, otherwise None.

        A restarting process is reported as not idle. Raises its error if restarts are off or have failed.
        """
        try:
            report = self._call(order.kind, *order.values)
        except (UnreachableError, ClosedError, ProcessFailedError):
            self.raise_if_failed()
            report = None
        if order.kind is not ControlKind.GET_REPORT:
            return None
        if report is None:  # it does not answer, or has no tasks yet
            return ProcessReport(is_idle=False, sent=0, received=0)
        return from_lists(ProcessReport, report)

    def raise_if_failed(self) -> None:
        """Raise the failure of the process, if it is not restarted."""
        if self._failure is not None and not self._settings.max_restarts:
            raise fresh_copy(self._failure)
        if self._given_up is not None:
            raise fresh_copy(self._given_up)

    def statistics(self) -> tuple[list[ExecutorStatistics], list[ExecutorHeartbeat]]:
        """Return snapshots of its executors, and their activity at the last heartbeat."""
        statistics, beats = self._call(CallKind.STATISTICS)
        executors = [from_lists(ExecutorStatistics, each) for each in statistics]
        return executors, [from_lists(ExecutorHeartbeat, each) for each in beats]

    def ledger(self) -> LedgerSnapshot:
        """Return the ledger of its worker, in messages."""
        ledger = self._client.status(max_tasks=0).ledger
        return LedgerSnapshot(ledger.accepted, ledger.acknowledged, dict(ledger.dropped), ledger.pending)

    def move_captured(self, captured: CapturedTuples) -> None:
        """Move its collected tuples to `captured`; ProcessFailedError if a message cannot carry a value."""
        chunk = self._call(CallKind.CAPTURED_TUPLES, True)
        while chunk is not None:
            component, stream, rows = chunk
            captured.record_values(component, stream, [read_value(row, 0)[0] for row in rows])
            chunk = self._call(CallKind.CAPTURED_TUPLES, False)

    def stop(self, seconds: float) -> int:
        """Drain for up to `seconds`, and kill the process if it does not exit then; return the exit code."""
        self._stopping.set()  # the next exit is expected, and is not a failure
        if self._control is not None:
            with self._control, contextlib.suppress(TuplewireError):  # it has exited, or is killed below
                self._control.drain(max(0.1, seconds))
            self.child.wait(seconds + _STOP_MARGIN_SECONDS)
        deadline = time.monotonic() + _STOP_MARGIN_SECONDS
        with self._lock:
            self.child.process.terminate()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.child.wait_or_kill(deadline)
