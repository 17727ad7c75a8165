"""The worker: its life cycle from start to drain, around a router and the servers that feed it.

It uses IContext like any program: the server connections feed the router, and the router's client connections
carry messages for other workers. Used by process/worker_runtime.py, and the services of control/.
Owns the router, servers, sinks and periodic tasks. Call only from the event loop.
Source: Storm's `Worker`. Design: docs/design/drain.md.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

import tuplewire
from tuplewire.connection.loop import report_errors, run_in_thread
from tuplewire.errors import DrainingError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.events import event_logger
from tuplewire.text.formatting import encodable
from tuplewire.tracing import get_tracing
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.messaging_pb2 import Departure
from tuplewire_service.messaging.base import AcceptedPeers, IContext
from tuplewire_service.messaging.streamed_transport import StreamedContext
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import LOCAL, find_id_mismatch, own_endpoints
from tuplewire_service.worker.servers import Servers, require_streamed
from tuplewire_service.worker.sinks import Sinks
from tuplewire_service.worker.timekeeper import Timekeeper
from tuplewire_service.worker.worker_observer import WorkerObserver
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)

_TICK_SECONDS = 1.0
_DEPARTURE_NOTICE_SECONDS = 1.0
"""Seconds that a drain waits for connections that it needs only to announce its departure."""
_POLL_SECONDS = 0.01
HIGH_LOAD = 0.9
"""A task becomes congested at this load (a full queue has load 1) ..."""
LOW_LOAD = 0.4
"""... and remains so until its load falls to this value. The gap prevents flapping."""


def find_congested(loads: Mapping[int, float], before: Collection[int]) -> frozenset[int]:
    """Return the congested tasks, from the current loads (0 if missing) and the previously congested tasks.

    The worker only reports them, because credit limits the senders. Source: Storm's `BackPressureTracker`,
    with its settings `backpressure.disruptor.high.watermark` and `backpressure.disruptor.low.watermark`.
    """
    return frozenset(
        task for task, load in loads.items() if load >= HIGH_LOAD or (load > LOW_LOAD and task in before)
    )


class WorkerState(enum.StrEnum):
    """The states of a worker's life cycle."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class AttachedProgram(Protocol):
    """The program in the worker's process, such as executors. Its properties are read on the event loop."""

    @property
    def not_ready_reason(self) -> str:
        """The reason that it is not ready, as text; empty if it is ready."""

    @property
    def is_busy(self) -> bool:
        """True if it holds messages, or may still send some."""

    def disconnect(self) -> None:
        """Send and receive nothing more, at the end of a drain. It may block: not for the event loop."""


class Worker:
    """One worker of a topology. Call only from the event loop, unless a method states otherwise."""

    def __init__(
        self,
        settings: WorkerSettings,
        program_context: IContext,
        incarnation: int,
        peer_context: IContext | None = None,
        advertised_address: str = "",
        own_program_context: StreamedContext | None = None,
    ) -> None:
        """Create a worker.

        Args:
            program_context: The transport that programs use.
            incarnation: The start of the process, in nanoseconds since 1970.
            peer_context: The transport between workers; None: the same.
            advertised_address: The address for other processes, with or without a port; empty: the bound one.
            own_program_context: The transport for a program in this process; None: there is none.

        Raises:
            ConfigError: A transport is not a StreamedContext.
        """
        program_context = require_streamed(program_context)
        peer_context = None if peer_context is None else require_streamed(peer_context)
        self.settings = settings
        self.incarnation = incarnation
        self.state = WorkerState.STARTING
        self.waits_for = "the drain to begin"
        """The current wait of drain(), as text."""
        self.delivery_finished = asyncio.Event()
        """Set when drain() has delivered or dropped all messages, before it closes the servers."""
        self.predecessor_possibly_lost = 0
        """Maximum number of messages lost with the previous process of this worker."""
        self.get_assignment_problem: Callable[[], str] = lambda: ""
        """Returns the reason that the assignment file is not in use, or an empty string."""
        self.on_state_change: Callable[[], object] = lambda: None
        self._clock = asyncio.get_running_loop().time
        self._membership_deadline = 0.0  # the time until which a membership moves tasks of this worker
        self.servers = Servers(program_context, peer_context, own_program_context, settings.topology)
        self.program: AttachedProgram | None = None
        """The program in this process: readiness includes it, and a drain waits for its work."""
        self.program_loads: Mapping[int, float] = {}
        """The loads of the program's tasks, 0 to 1; a load counts if it exceeds that of the queue."""
        self.congested_tasks: frozenset[int] = frozenset()
        self._advertised_address = advertised_address
        self._intake = AcceptedPeers.ALL
        self._intake_lock = asyncio.Lock()
        self._periodic_tasks: list[asyncio.Task[None]] = []
        tracing = get_tracing()
        self.router = Router(
            settings,
            self.incarnation,
            peer_context or program_context,
            lambda: self.state is WorkerState.DRAINING,
            self._on_departures,
            None if tracing is None else WorkerObserver(tracing, settings.worker_id),
        )
        self.sinks = Sinks(settings, self.router)
        self.timekeeper = Timekeeper(self.router, self.servers, settings.metrics_series)

    async def start(self, port: int, peers_port: int = 0) -> None:
        """Bind the port, and the port of a separate transport for peers. Raises BindError."""
        await self.servers.start(port, peers_port, self.router)
        self._check_worker_id()
        self._periodic_tasks = [
            report_errors(asyncio.create_task(self._tick(), name="tick")),
            report_errors(asyncio.create_task(self.timekeeper.sample_periodically(), name="sample times")),
        ]

    async def _tick(self) -> None:
        while True:
            self._check_ready()
            await self._update_intake()
            self._report_load()
            self.router.refresh_connections()
            self.sinks.resume()
            self.router.changed.set()
            # React faster during the start and the drain.
            await asyncio.sleep(_TICK_SECONDS if self.state is WorkerState.READY else _TICK_SECONDS / 20)

    def _check_ready(self) -> None:
        if self.state is WorkerState.STARTING and not self.not_ready_reason:
            self._enter_state(WorkerState.READY)
        elif self.state is WorkerState.READY and self.router.table.id_mismatch:
            # A later assignment may no longer name this worker.
            self._enter_state(WorkerState.STARTING)

    def _check_worker_id(self) -> None:
        if self.assignment is None:
            return
        endpoints = [*own_endpoints(self.servers.addresses, self._advertised_address)]
        endpoints += own_endpoints(self.servers.peer_addresses)
        reason = find_id_mismatch(self.assignment, self.settings.worker_id, endpoints)
        if reason and reason != self.router.table.id_mismatch and self.state is not WorkerState.DRAINING:
            logger.error("worker.id_mismatch", extra={"reason": reason})
        self.router.table.id_mismatch = reason

    async def _update_intake(self) -> None:
        """Refuse programs while the assignment does not name this worker: they keep their messages."""
        async with self._intake_lock:
            # A drain sets the intake without this method.
            intake = AcceptedPeers.WORKERS if self.router.table.id_mismatch else AcceptedPeers.ALL
            if intake is not self._intake and self.state in {WorkerState.STARTING, WorkerState.READY}:
                self._intake = intake
                await self.servers.set_accepted_peers(intake)

    def _on_departures(self, departures: Sequence[Departure], new: Sequence[Departure]) -> None:
        for each in departures:
            self.sinks.publications.merge(each.sink_epochs)
        for server in self.servers.all_servers:
            server.send_service.announce_departures(new)

    def _enter_state(self, state: WorkerState) -> None:
        self.state = state
        logger.info("worker.state_changed", extra={"state": state.value})
        self.on_state_change()

    @property
    def not_ready_reason(self) -> str:
        """The reason that the worker is not ready; empty if it is ready."""
        if self.state in {WorkerState.DRAINING, WorkerState.STOPPED}:
            return f"the worker is {self.state.value}"
        if (error := self.router.not_ready_error) is not None:
            return str(error)
        if self.state is WorkerState.STARTING and (missing := self.router.connections.disconnected_workers):
            return f"not connected yet to {', '.join(missing)}"
        if self.state is WorkerState.READY and (problem := self.get_assignment_problem()):
            return problem  # it still serves the previous assignment, but a rollout must stop here
        return "" if self.program is None else self.program.not_ready_reason

    async def drain(self, deadline_seconds: float) -> LedgerSnapshot:
        """Refuse new messages step by step, deliver or forward held ones, close, and return the ledger.

        0. If a membership polls this worker, it moves the tasks to other workers. All may still send.
        1. Moves, forwarded messages and staged messages of sinks get at most half of the time. Only workers
           may send, and the program in this process.
        2. Consumers and other workers accept held messages. Only draining workers and the program may send.
        3. The same, while no worker may send.
        4. If stage 1 has new work, it starts again, within the same half of the time.
        5. The departure is announced, and the connections and servers are closed.

        Unconsumed messages count as dropped{shutdown} at the deadline. They are not released, so senders in
        mode `processed` resend them. See docs/design/drain.md.
        """
        now = self._clock()
        deadline = now + deadline_seconds
        moves_deadline = now + deadline_seconds / 2
        router = self.router
        router.rejections.send_immediately()
        self._enter_state(WorkerState.DRAINING)
        router.refresh_connections()  # connections for the departure notice open during the drain
        # 0. Once a worker has no tasks, its restart does not affect senders.
        self.waits_for = "a membership to move the tasks to other workers"
        limit = min(moves_deadline, self._membership_deadline)  # in this order, a caller's NaN has no effect
        await router.wait_until(lambda: not (router.table.local_tasks or router.move_count), limit)

        def has_in_flight() -> bool:
            return bool(router.move_count or router.connections.pending_messages or len(self.sinks.staging))

        def must_repeat() -> bool:
            return has_in_flight() and self._clock() < moves_deadline

        def may_continue() -> bool:
            busy = self.program is not None and self.program.is_busy
            held = router.pending_messages or self.sinks.is_publishing
            return must_repeat() or not (router.move_count or held or busy)

        while True:
            self.waits_for = "programs to end their streams"
            # 1. Held messages may depend on messages that other workers still have to forward.
            async with self._intake_lock:
                await self.servers.set_accepted_peers(AcceptedPeers.WORKERS)
            self.waits_for = "messages in flight to other workers"
            await router.wait_until(lambda: not has_in_flight(), moves_deadline)
            # 2. The messages of another draining worker would be lost with it.
            self.waits_for = "messages that are held, and other workers to end their streams"
            await self.servers.set_accepted_peers(AcceptedPeers.DRAINING_WORKERS)
            await router.wait_until(may_continue, deadline)
            if not must_repeat():
                # 3. Messages that arrive after the last wait would be acknowledged, then dropped.
                await self.servers.set_accepted_peers(AcceptedPeers.OWN_PROGRAM)
                # Wait for messages that were received before the intake stopped.
                await router.wait_until(may_continue, deadline)
            # 4. A worker that restarts does not know the move, so the move must end first.
            if not must_repeat():
                break
        # 5. The program may send messages of its own until now.
        if self.program is not None:
            await run_in_thread(self.program.disconnect)
        for task in self._periodic_tasks:
            task.cancel()
        self.waits_for = "connections to all other workers, to announce the departure"
        router.refresh_connections()
        # Also past the deadline: without a notice, senders wait for this worker while it is assigned.
        notice_deadline = self._clock() + _DEPARTURE_NOTICE_SECONDS if router.must_announce else 0.0
        # No event reports that a connection has opened.
        while router.connections.disconnected_workers and self._clock() < notice_deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        self.waits_for = "connections to other workers to close"
        publications = self.sinks.publications
        timeout = max(0.1, deadline - self._clock())
        await router.close(timeout, publications.reportable_epochs(), publications.unpublished_by_task())
        self.delivery_finished.set()
        self.waits_for = "servers to close"
        await self.servers.close()
        self.waits_for = "transports to end"
        self._enter_state(WorkerState.STOPPED)
        return router.ledger()

    def on_membership_poll(self, interval: float) -> None:
        """Let a drain wait for a membership that moves tasks, and polls every `interval` seconds."""
        if self.state is not WorkerState.DRAINING:  # there may be no other worker for the tasks
            self._membership_deadline = self._clock() + 2 * interval

    async def abort(self) -> None:
        """Stop immediately, like a killed process: nothing is forwarded, and no peer is notified."""
        for task in self._periodic_tasks:
            task.cancel()
        self.state = WorkerState.STOPPED
        await asyncio.to_thread(self.servers.abort)
        await asyncio.to_thread(self.router.connections.abort)

    @property
    def assignment(self) -> Assignment | None:
        """The current assignment; None before the first one."""
        return self.router.table.assignment

    def update_assignment(self, assignment: Assignment, *, force: bool = False) -> bool:
        """Apply a newer assignment; return False for the current one. See Assignment.replaces()."""
        before = self.assignment
        changed = self.router.update_assignment(assignment, force=force)
        if changed:
            self.timekeeper.on_assignment(assignment)
            self.sinks.on_assignment(before, assignment)
            self._check_worker_id()
            self._check_ready()
        return changed

    def check_sinks(self, *, is_continuation: bool) -> None:
        """Check that sinks may start an epoch here, or continue one (`is_continuation`).

        A worker that has left the assignment continues, and forwards the messages. Raises DrainingError while
        the worker drains or after it stopped, and NotReadyError while no assignment names it.
        """
        refused = {WorkerState.STOPPED} if is_continuation else {WorkerState.DRAINING, WorkerState.STOPPED}
        if self.state in refused:
            raise DrainingError("the worker is draining; write again later, or at another one")
        if not (is_continuation and self.assignment) and (error := self.router.not_ready_error) is not None:
            raise error

    def loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """Return the known loads, 0 to 1, of these tasks; of all tasks by default."""
        table, queues = self.router.table, self.router.queues
        wanted = set(tasks) or table.owner_by_task.keys()
        loads = {task: queues.load(task) for task in wanted if task in queues.by_task}
        remote_tasks = wanted - loads.keys()
        for other in table.other_owners:
            loads.update(self.router.connections.loads(other.peer, remote_tasks.intersection(other.tasks)))
        return loads

    def _report_load(self) -> None:
        """Send loads and congestion to senders. Congestion is repeated while it lasts; else peers drop it."""
        queues = self.router.queues
        loads = queues.changed_loads()
        for task, load in self.program_loads.items():
            if task in queues.by_task:
                loads[task] = max(load, loads.get(task, 0.0))
        before, self.congested_tasks = self.congested_tasks, find_congested(loads, self.congested_tasks)
        relieved = before - self.congested_tasks
        if self.state is not WorkerState.READY:
            return
        status = self.settings.worker_id, sorted(self.congested_tasks), sorted(relieved)
        for server in self.servers.all_servers:
            if loads:
                server.send_load_metrics(loads)
            if relieved or self.congested_tasks:
                server.send_backpressure_status(*status)

    async def most_relevant_tasks(self, max_tasks: int) -> Sequence[int]:
        """Return the `max_tasks` most relevant tasks; see ReceiveQueues.most_relevant()."""
        blocking = self.timekeeper.recent_blocking_seconds
        local = [int(task) for task, where in blocking if where == LOCAL and task.isdecimal()]
        return await self.router.queues.most_relevant(self.congested_tasks.union(local), max_tasks)

    def status(self, tasks: Iterable[int] | None = None) -> pb.GetStatusResponse:
        """Return a consistent status of these tasks, without sessions and consumers; None: of all tasks."""
        router, rejections = self.router, self.router.rejections
        status = pb.GetStatusResponse(
            worker_id=self.settings.worker_id,
            incarnation=self.incarnation,
            topology=self.settings.topology,
            version=tuplewire.__version__,
            state=f"WORKER_STATE_{self.state.name}",
            assignment_version=router.assignment_version,
            newest_assignment_version=max(router.assignment_version, router.newest_peer_version),
            ledger=pb.Ledger(**asdict(router.ledger())),
            predecessor_possibly_lost_messages=self.predecessor_possibly_lost,
            sinks=self.sinks.status(),
            taps=router.taps.status(),
            rejections=rejections.rejection_count,
            rejected_waiting_messages=len(rejections.waiting_copies),
            dead_letter_task=self.settings.dead_letter_task,
            redelivered_messages=router.queues.redelivered_messages,
            local_task_count=len(router.queues.by_task),
            moving_task_count=router.move_count,
            not_ready_reason=encodable(self.not_ready_reason),
            assignment_refused=bool(self.get_assignment_problem()),
        )
        self.servers.add_to(status)
        self.timekeeper.add_to(status)
        router.connections.add_to(status)
        router.queues.add_to(status, tasks, self.congested_tasks)
        return status
