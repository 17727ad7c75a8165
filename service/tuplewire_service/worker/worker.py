"""The worker: its life from start to drain, around a router and the servers that feed it.

Source: Storm's `Worker`. A user of IContext like anybody else: its server connection feeds the router, whose
client connections carry what belongs elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from tuplewire.errors import DrainingError
from tuplewire.group import TaskGroup
from tuplewire.loop import watched
from tuplewire.session.delivery import Done
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.messaging.base import IContext, Intake
from tuplewire_service.worker import refusals
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.servers import Servers
from tuplewire_service.worker.settings import WorkerSettings
from tuplewire_service.worker.status import WorkerSnapshot, WorkerState
from tuplewire_service.worker.timekeeper import Timekeeper

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0


class Worker:
    """One worker of a topology. Every method belongs to the event loop, unless it says otherwise."""

    def __init__(
        self,
        settings: WorkerSettings,
        programs: IContext,
        incarnation: int | None = None,
        peers: IContext | None = None,
    ) -> None:
        """Prepare one.

        programs: the transport that programs use. peers: the one between workers; None: the same.
        """
        self.settings = settings
        self.incarnation = incarnation or time.time_ns()
        self.state = WorkerState.STARTING
        self._clock = asyncio.get_running_loop().time
        self.servers = Servers(programs, peers, settings.topology)
        self._listeners: list[Callable[[], None]] = []
        self._tickers: list[asyncio.Task[None]] = []
        self._router = router = Router(
            settings,
            self.incarnation,
            peers or programs,
            draining=lambda: self.state is WorkerState.DRAINING,
            consumed=self._consumed,
        )
        self.times = Timekeeper(
            router.queues, router.connections, self.servers, router.place_of, settings.metrics_tasks
        )

    # --- life ------------------------------------------------------------------------------------

    async def start(self, port: int, peers_port: int = 0) -> None:
        """Bind the port, and that of the peers' own transport; BindError when that fails."""
        await self.servers.start(port, peers_port, self._router)
        self._tickers = [
            watched(asyncio.create_task(self._tick(), name="tick")),
            watched(asyncio.create_task(self.times.look_around(), name="look around")),
        ]

    async def _tick(self) -> None:
        while True:
            self._check_ready()
            self._report_load()
            self._router.refresh()
            await asyncio.sleep(_TICK_SECONDS if self.state is WorkerState.READY else _TICK_SECONDS / 20)

    def _check_ready(self) -> None:
        if self.state is WorkerState.STARTING and not self.not_ready_because:
            self._enter(WorkerState.READY)

    def _enter(self, state: WorkerState) -> None:
        self.state = state
        logger.info("worker.state", extra={"state": state.value})
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever the state changes."""
        self._listeners.append(listener)

    @property
    def not_ready_because(self) -> str:
        """What is missing, in words; empty when nothing is."""
        if self.state in {WorkerState.DRAINING, WorkerState.STOPPED}:
            return f"the worker is {self.state.value}"
        if self.assignment is None:
            return str(refusals.no_assignment(self.settings.worker_id))
        if self.state is WorkerState.STARTING and (missing := self._router.connections.not_ready):
            return f"not connected yet to {', '.join(missing)}"
        return ""

    async def drain(self, deadline_seconds: float) -> LedgerSnapshot:
        """Finish and stop: take nothing new, deliver and pass on what is held, close; return the balance.

        Moves come first, for at most half of the time: what waits here for them, or elsewhere after we have
        passed it on, may wait for messages that other workers have for us, and who comes in our place knows
        of no move. That holds for those that begin meanwhile, too.

        What nobody has taken by the deadline is counted as dropped{shutdown}. Its senders are not told that
        it is done with: those that keep it (mode `processed`) send it again to whoever takes our place.
        """
        now = self._clock()
        deadline = now + deadline_seconds
        moves_deadline = now + deadline_seconds / 2
        router = self._router
        self._enter(WorkerState.DRAINING)

        def stays_open() -> bool:
            return router.passing and self._clock() < moves_deadline

        def finished() -> bool:
            return stays_open() or not (router.moving_tasks or router.held_messages)

        while True:
            await self.servers.stop_intake(Intake.WORKERS)
            await router.until(lambda: not router.passing, moves_deadline)
            await self.servers.stop_intake(Intake.LEAVING_WORKERS)
            await router.until(finished, deadline)
            if not stays_open():
                await self.servers.stop_intake(Intake.NOBODY)
                await router.until(finished, deadline)  # what has come before that
            if not stays_open():
                break
        for ticker in self._tickers:
            ticker.cancel()
        await router.close(max(0.1, deadline - self._clock()))
        await self.servers.close()
        self._enter(WorkerState.STOPPED)
        return router.ledger()

    # --- assignment, publications, load --------------------------------------------------------------

    @property
    def assignment(self) -> Assignment | None:
        """The assignment in force."""
        return self._router.assignment

    def update_assignment(self, assignment: Assignment) -> bool:
        """Put a newer assignment in force; False when this version is in force already.

        Raises StaleAssignmentError for an older version, ConfigError for another topology.
        """
        changed = self._router.update(assignment)
        if changed:
            self._check_ready()
        return changed

    def publish(self, sink: str, epoch: int, piece: int, groups: Sequence[TaskGroup], *, last: bool) -> int:
        """See Router.publish; raises DrainingError, too."""
        if self.state in {WorkerState.DRAINING, WorkerState.STOPPED}:
            raise DrainingError("the worker is draining; publish again later, or at another one")
        return self._router.publish(sink, epoch, piece, groups, last=last)

    def loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """See Router.loads."""
        return self._router.loads(tasks)

    def _consumed(self, done: Sequence[Done]) -> None:
        self.times.done(done)

    def _report_load(self) -> None:
        if self.state is WorkerState.READY and (loads := self._router.local_loads()):
            self.servers.send_load_metrics(loads)

    def snapshot(self) -> WorkerSnapshot:
        """Return the worker as it is."""
        router, statistics = self._router, self.servers.statistics()
        return WorkerSnapshot(
            worker_id=self.settings.worker_id,
            incarnation=self.incarnation,
            topology=self.settings.topology,
            state=self.state,
            assignment_version=router.version,
            ledger=router.ledger(),
            peers=router.connections.snapshot(),
            tasks=router.queues.snapshot(),
            received=statistics.received,
            timings=self.times.timings(),
            redelivered_messages=router.queues.redelivered_messages,
            refused=dict(statistics.refused),
            addresses=tuple(self.servers.addresses),
            peer_addresses=tuple(self.servers.peer_addresses),
            moving_tasks=router.moving_tasks,
            not_ready_because=self.not_ready_because,
        )
