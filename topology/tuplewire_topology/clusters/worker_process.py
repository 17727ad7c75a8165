"""The controlling side of a worker process, and the channel. Source: Storm's `Container` and `Slot`.

Used by distributed_topology.py; topology_program.py has the other end. Owns the process and its supervisor.
WorkerProcess is thread-safe, Channel is not. Design: docs/design/topologies.md (control by a socket pair).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from tuplewire.errors import MalformedError, TuplewireError, UnreachableError
from tuplewire.packing.packing import FAULTS, pack_values, read_value
from tuplewire.processes.child import Child, Command, LaunchError
from tuplewire.processes.supervisor import Supervisor
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire_topology.clusters.capture import Captured
from tuplewire_topology.clusters.launch_settings import LaunchSettings
from tuplewire_topology.coordination.termination import ProcessFailedError, to_report
from tuplewire_topology.running.heartbeat import ExecutorBeat, to_beat
from tuplewire_topology.running.idle import Failure, ProcessReport
from tuplewire_topology.running.statistics import ExecutorStatistics, to_statistics

_MOST_BYTES = 256 * 1024 * 1024


class Channel:
    """One end of a socket pair. Not thread-safe. Raises UnreachableError once the other end is closed.

    A message has a kind and values, as MessagePack, because pickles would run code of another user.
    """

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, kind: str, *values: Any) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(pack_values([kind, *values]))
        except OSError as error:
            raise UnreachableError("the process at the other end of the channel has exited") from error

    def receive(self, timeout: float | None) -> tuple[str, list[Any]] | None:
        """Return a message as kind and values, or None after `timeout` seconds. Raises MalformedError."""
        try:
            if not self._connection.poll(timeout):
                return None
            payload = self._connection.recv_bytes(_MOST_BYTES)
        except (EOFError, OSError) as error:
            raise UnreachableError("the process at the other end of the channel has exited") from error
        try:
            (kind, *values), _ = read_value(payload, 0)
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes on the channel are no message: {error}") from error
        if not isinstance(kind, str):
            raise MalformedError(f"a message on the channel is of the kind {kind!r}")
        return kind, values

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._connection.close()


_ANSWER_SECONDS = 30.0
_STOP_MARGIN_SECONDS = 10.0


class WorkerProcess:
    """Starts, restarts, queries and ends the process of a worker. Thread-safe.

    `command` gets options for the address and the channel. `listen` is the address to bind; for port 0, the
    process uses a free port, and keeps it after a restart.
    """

    def __init__(self, command: Command, settings: LaunchSettings, listen: str) -> None:
        self.name = command.name
        self.address = ""
        self.peer_address = self.metrics_url = ""
        self.starts = 0
        self.failure: TuplewireError | None = None
        self.given_up: TuplewireError | None = None
        self.active = False
        self._command = command
        self._host, self._port = split_host_port(listen)
        self._settings = settings
        self._assignment: Mapping[str, Any] | None = None
        self._channel: Channel
        self._lock = threading.RLock()
        self._supervisor = Supervisor(self._start, settings.restarts, self._give_up)

    def _start(self) -> Child:
        """Start the process; after a restart, also restore its assignment and activity."""
        with self._lock:
            if self.starts:  # a restart: the old process has exited
                self._channel.close()
            ours, theirs = socket.socketpair()
            self._channel = Channel(ours.detach())
            with theirs:  # closed here once inherited, so that the exit of the child ends the channel
                words = [*self._command.words, f"--listen={join_host_port(self._host, self._port)}"]
                words.append(f"--control={theirs.fileno()}")
                child = Child(replace(self._command, words=words, descriptors=[theirs.fileno()]))
            self.starts += 1
            if self.starts > 1:
                try:
                    self.await_bound(child)
                    self._follow()
                    if self.active:
                        self.tell("activate")
                except TuplewireError:
                    child.end(time.monotonic())  # the supervisor counts a failed restart
                    raise
            return child

    def _give_up(self, error: TuplewireError) -> None:
        self.given_up = self.failure or error  # the program's error explains more than an exit code

    def await_bound(self, child: Child | None = None) -> None:
        """Wait until the process has bound its port; LaunchError, with the end of its log, if it fails."""
        child = child or self._supervisor.child
        try:
            _, bound = self._receive("bound", self._settings.start_seconds)
            self.address, self.peer_address, self.metrics_url = bound
            self._port = split_host_port(self.address)[1]  # a restart must keep the assigned address
        except UnreachableError as error:
            code = child.wait(self._settings.stop_seconds)
            raise LaunchError(f"{self.name} ended with code {code}\n{child.last_words()}") from error

    def follow(self, assignment: Mapping[str, Any]) -> None:
        """Apply an assignment in the process, and wait for it; the first one starts the supervision."""
        first = self._assignment is None
        with self._lock:
            self._assignment = assignment
            self._follow()
        if first:  # an exit before this is an error of the start
            self._supervisor.watch()

    def _follow(self) -> None:
        if self._assignment is not None:
            self.tell("assign", self._assignment)
            self._receive("following", self._settings.start_seconds + _ANSWER_SECONDS)

    def switch(self, *, active: bool) -> None:
        """Activate or deactivate the spouts of the process, also after restarts."""
        with self._lock:
            self.active = active
            with contextlib.suppress(UnreachableError):  # report() raises the failure, if there is no restart
                self.tell("activate" if active else "deactivate")

    def tell(self, kind: str, *values: Any) -> None:
        """Send a message to the process; UnreachableError if it has exited."""
        with self._lock:
            self._channel.send(kind, *values)

    def _ask(self, kind: str, *values: Any) -> list[Any]:
        """Send a message, and return the values of the answer, which has the same kind."""
        with self._lock:
            self.tell(kind, *values)
            return self._receive(kind, _ANSWER_SECONDS)[1]

    def _receive(self, wanted: str, timeout: float, otherwise: str = "") -> tuple[str, list[Any]]:
        """Return the next message, if its kind is `wanted` or `otherwise`.

        Raises a reported failure, and LaunchError for another message or a timeout.
        """
        message = self._channel.receive(timeout)
        if message is None:
            raise LaunchError(
                f"{self.name} has not answered for {timeout:g} s\n{self._supervisor.child.last_words()}"
            )
        if message[0] == "failed":
            self.failure = ProcessFailedError(self.name, Failure(*message[1]))
            raise self.failure
        if message[0] not in {wanted, otherwise}:
            raise LaunchError(
                f"{self.name} answers {message[0]!r} where {wanted!r} was to come: two releases?"
            )
        return message

    def report(self, wave: int) -> ProcessReport | None:
        """Return the state of the process, or None during a restart. Raises the errors of check()."""
        try:
            return to_report(self._ask("report", wave)[1:])
        except (UnreachableError, ProcessFailedError):
            self.check()
            return None

    def check(self) -> None:
        """Raise the failure of the process, if it is not restarted."""
        if self.failure is not None and not self._settings.restarts:
            raise self.failure
        if self.given_up is not None:
            raise self.given_up

    def statistics(self) -> list[ExecutorStatistics]:
        """Return snapshots of its executors."""
        return list(map(to_statistics, self._ask("statistics")))

    def beats(self) -> list[ExecutorBeat]:
        """Return the activity of its executors at its last heartbeat."""
        return list(map(to_beat, self._ask("beats")))

    def ledger(self) -> LedgerSnapshot:
        """Return its ledger, in messages."""
        return LedgerSnapshot(*self._ask("ledger"))

    def collect(self, captured: Captured) -> None:
        """Move its collected tuples to `captured`; ProcessFailedError if a message cannot carry a value."""
        with self._lock:
            self.tell("collect")
            while True:
                kind, values = self._receive("rows", _ANSWER_SECONDS, otherwise="collected")
                if kind == "collected":
                    return
                try:
                    component, stream, rows = values
                    captured.add_values(component, stream, [read_value(row, 0)[0] for row in rows])
                except (*FAULTS, TypeError) as error:
                    raise LaunchError(f"{self.name} sends an invalid result: {error}") from error

    def stop(self, seconds: float) -> int:
        """Drain for up to `seconds`, and kill the process if it does not exit then; return the exit code."""
        self._supervisor.no_more()
        with contextlib.suppress(UnreachableError):
            self.tell("close", seconds)
        self._supervisor.child.wait(seconds + _STOP_MARGIN_SECONDS)
        code = self._supervisor.stop(time.monotonic() + _STOP_MARGIN_SECONDS)
        self._channel.close()
        return code
