"""A subscription to tasks: the messages that have arrived, from one worker or from several.

One thread (or coroutine) at a time takes batches and acknowledges them. The executors of topologies get the
batches from the loop instead (Callbacks). With WorkerConnections, it finds the workers of its tasks, and
follows them. Used by clients, their subscriptions, request_reply.py and task_states.py. Owns the
buffer, which the prefetch settings bound, and a stream to each worker (consuming_end.py). Thread-safe,
except the methods for the loop. Design: docs/design/moves.md ("Subscriptions follow tasks").
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from functools import partial

from tuplewire.connection.consuming_end import Callbacks, ConsumingEnd, Inbox
from tuplewire.connection.grpc_channel import WorkerConnections
from tuplewire.connection.loop import report_errors
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.stream import StreamOpener
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import ClosedError, RefusedError, TuplewireError, UnreachableError, fresh_copy
from tuplewire.session.backoff import Backoff
from tuplewire.session.consume import ArrivedBatch, RejectedMessage
from tuplewire.settings.addresses import Peer
from tuplewire.settings.config import SessionSettings
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 2.0
_MAX_QUERIED = 3
"""The maximum number of workers to request the assignment from, to find the workers of other tasks."""


class Receiver(Inbox):
    """One subscription to tasks. Thread-safe, except the methods below "on the loop"."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        tasks: Iterable[int],
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        open_stream: StreamOpener,
        expected_id: str = "",
        callbacks: Callbacks | None = None,
        connections: WorkerConnections | None = None,
    ) -> None:
        """Describe a subscription at the worker at an address. For other arguments see ReconnectingSession.

        callbacks: get the messages; None: take() returns them. connections: connects to the tasks' owners;
        None: only to this worker.
        """
        super().__init__(identity, settings, loop, callbacks, follows=connections is not None)
        self.address = address
        self.tasks = tuple(tasks)
        self.failure: TuplewireError | None = None
        self.is_closed = False
        self._open_stream = open_stream
        own_stream = ConsumingEnd(self, address, open_stream, expected_id, self.tasks)
        self._streams: tuple[ConsumingEnd, ...] = (own_stream,)
        """Replaced as a whole, because consumers read it from other threads."""
        self._tasks_without_stream: frozenset[int] = frozenset()
        """The tasks without a stream: their owner is not known yet."""
        self._broken_since = time.monotonic()
        self._admission_timed_out = False
        """True if the workers have not accepted this consumer within connect_timeout_seconds."""
        self._admission_timer: asyncio.TimerHandle | None = None
        self.connections = connections
        self._owners = TaskOwners(identity.topology, address)
        self._highest_version = 0
        """The highest version of the assignments so far."""
        self._own_id = expected_id
        """The id of the worker at the client's own address, if known."""
        self._refusing_address: str | None = None
        """The address of the last worker that refused a stream, or moved tasks away."""
        self._search_task: asyncio.Task[None] | None = None
        self._running = False
        """True if streams may be opened: not before the start, during a fork, or after the end."""

    @property
    def state(self) -> str:
        """The state of the subscription, as text."""
        if self.is_closed:
            return "closed"
        if self.failure is not None:
            return f"ended: {self.failure}"
        if self._tasks_without_stream:
            return f"looking for the worker of task {min(self._tasks_without_stream)}"
        return next((each.connection_state for each in self._streams if not each.connected), "connected")

    @property
    def connected(self) -> bool:
        """True if every task has a stream to its worker."""
        return not self._tasks_without_stream and all(each.connected for each in self._streams)

    def __repr__(self) -> str:
        return f"<Receiver {self.address} buffered={len(self.buffer)} {self.state}>"

    # --- for consumers -----------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> ArrivedBatch | None:
        """Return the next batch, or None after `timeout` seconds. Do not call this on the event loop.

        Without a timeout, wait indefinitely once all workers have accepted it. Raises ClosedError,
        or the error that ended the subscription. Raises UnreachableError if a worker was unreachable for the
        whole timeout; without one, if not all workers have accepted it within connect_timeout_seconds.
        """
        with self.lock:
            batch = self.buffer_changed.wait_for(partial(self._pop_or_raise, timeout), timeout)
        return batch or self._none_or_raise(timeout)

    async def take_async(self, timeout: float | None = None) -> ArrivedBatch | None:
        """Do the same as take, on any event loop. A cancelled call takes no batch."""
        found = await self.buffer_changed.wait_for_async(partial(self._pop_or_raise, timeout), timeout)
        return found or self._none_or_raise(timeout)

    def wait_until_admitted(self) -> None:
        """Wait until the workers accept this, or a batch is here. Raises the errors of take()."""
        with self.lock:
            self.buffer_changed.wait_for(self.is_admitted)

    def is_admitted(self) -> bool:
        """Return True once the workers accept this, or a batch is here; with the lock. Errors: take()."""
        if not self.admitted and not self.buffer:
            self._pop_or_raise(None)
        return self.admitted or bool(self.buffer)

    def _pop_or_raise(self, timeout: float | None) -> ArrivedBatch | None:
        # After the end, the buffer lacks messages that an acknowledgement of later ones would include.
        if self.failure is not None:
            raise fresh_copy(self.failure)
        if self.is_closed:
            raise ClosedError(f"the subscription at {self.address} is closed")
        if self.buffer:
            return self.buffer.popleft()
        if timeout is None and self._admission_timed_out:
            raise self._unreachable_error(self.settings.connect_timeout_seconds)
        return None

    def _none_or_raise(self, timeout: float | None) -> ArrivedBatch | None:
        # A connection without messages is not an error, even if it existed only for a part of the time.
        if timeout is not None and not self.connected and time.monotonic() - self._broken_since >= timeout:
            raise self._unreachable_error(timeout)
        return None

    def _unreachable_error(self, seconds: float) -> UnreachableError:
        lost = [(each.address, each.connection_state) for each in self._streams if not each.connected]
        address, state = (lost or [(self.address, self.state)])[0]
        return UnreachableError(f"no worker at {address} for {seconds:g} s: {state}")

    def requeue(self, arrived: ArrivedBatch) -> None:
        """Make take() return these messages again. Otherwise, a later acknowledgement would include them."""
        with self.lock:
            if arrived.deliveries and self.failure is None:
                self.buffer.appendleft(arrived)

    def acknowledge(self, arrived: ArrivedBatch, rejected: Sequence[RejectedMessage] = ()) -> None:
        """Acknowledge a batch, unless its worker has failed or its tasks have moved; see ConsumeSession."""
        for stream in self._streams:
            if stream.session is arrived.session:
                stream.acknowledge(arrived, rejected)

    # --- for streams, on the loop; see Inbox -----------------------------------------------------

    def on_connected(self, stream: ConsumingEnd) -> None:
        if stream.address == self.address:
            self._own_id = stream.worker_id
        if self.connected:
            self._stop_admission_timer()
            with self.lock:
                self.admitted, self._admission_timed_out = True, False
                self.buffer_changed.notify_all()

    def on_lost(self, stream: ConsumingEnd, error: TuplewireError) -> None:
        self._mark_broken()
        self._start_search(stream.address if isinstance(error, RefusedError) else None)

    def on_moved(self, stream: ConsumingEnd, tasks: Iterable[int]) -> None:
        if self.follows:
            self._mark_broken()
            moved = frozenset(tasks) & frozenset(stream.tasks)
            self._tasks_without_stream |= moved
            stream.set_tasks(task for task in stream.tasks if task not in moved)
            self._start_search(stream.address)

    def on_failed(self, error: TuplewireError) -> None:
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
            # These messages can no longer be acknowledged; the worker delivers them to the task's consumer.
            self.buffer.clear()
            self.buffer_changed.notify_all()
        self._stop_admission_timer()
        for stream in self._streams:
            report_errors(self.loop.create_task(stream.close(), name="close"))
        if self.callbacks is not None and not self.is_closed:
            self.callbacks.on_failure(error)

    # --- life, on the loop ---------------------------------------------------------------------

    def resume(self) -> None:
        """Start to connect, at first or after a fork, unless it was closed."""
        if self.is_closed or self.failure is not None:
            return
        self._running = True
        for stream in self._streams:
            stream.start()
        # An admitted consumer waits through restarts of any length; see docs/design/sessions.md.
        if not self.admitted and math.isfinite(seconds := self.settings.connect_timeout_seconds):
            self._admission_timer = self.loop.call_later(seconds, self._on_admission_timeout)
        if self._tasks_without_stream:
            self._start_search(self.address)

    def _on_admission_timeout(self) -> None:
        """Wake callers without a timeout: the workers have not accepted this consumer."""
        with self.lock:
            self._admission_timed_out = True
            self.buffer_changed.notify_all()
        if self.callbacks is not None:
            self.callbacks.on_failure(self._unreachable_error(self.settings.connect_timeout_seconds))

    def _stop_admission_timer(self) -> None:
        if self._admission_timer is not None:
            self._admission_timer.cancel()

    def _mark_broken(self) -> None:
        if self.connected:
            self._broken_since = time.monotonic()

    async def close(self) -> None:
        """Close the subscription after reporting all acknowledgements, in at most three seconds."""
        with self.lock:
            self.is_closed = True
            self.buffer_changed.notify_all()
        self._stop_search()
        await asyncio.gather(*(stream.close() for stream in self._streams))

    def _stop_search(self) -> None:
        self._running = False
        self._stop_admission_timer()
        if self._search_task is not None:
            self._search_task.cancel()
            self._search_task = None
        if self.connections is not None:
            self.connections.close_polls(final=self.is_closed)

    async def suspend(self) -> None:
        """Close the streams for a fork."""
        search = self._search_task
        self._stop_search()
        if search is not None:
            await asyncio.wait([search])
        await asyncio.gather(*(stream.suspend() for stream in self._streams))

    # --- the workers of tasks, on the loop -------------------------------------------------------

    def _start_search(self, refused_by: str | None) -> None:
        """Find the workers of the tasks that have no stream, or a broken one.

        refused_by: the address of a worker that refused a stream, or has moved its tasks; queried first.
        """
        self._refusing_address = refused_by or self._refusing_address
        done = self._search_task is None or self._search_task.done()
        if done and self.connections is not None and self._running and self.failure is None:
            search = self._search_owners(self.connections)
            self._search_task = report_errors(self.loop.create_task(search, name="find tasks"))

    async def _search_owners(self, connections: WorkerConnections) -> None:
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        while not self.connected and self.failure is None:
            # Without a refusal, the worker probably still owns its tasks, and the stream returns.
            if self._refusing_address is None:
                await asyncio.sleep(backoff.next())
            refused_by, self._refusing_address = self._refusing_address, None
            try:
                await self._update_owners(connections, (refused_by or self.address, *self._owners.addresses))
            except TuplewireError:
                continue  # its log entries have the reasons
            if not self.connected:
                await self._assign_to_streams(connections)

    async def workers_of(self, tasks: Iterable[int]) -> dict[Peer, list[int]]:
        """Return the tasks at each worker, without unknown ones, by the last assignment.

        The assignment is requested again if it lacks a task. If no worker answers, raises the first error.
        """
        task_ids = list(tasks)
        if self.connections is not None and not self._owners.by_task.keys() >= set(task_ids):
            await self._update_owners(self.connections, self._owners.addresses[:_MAX_QUERIED])
        return self._tasks_by_worker(task_ids)

    def invalidate_owners(self) -> None:
        """Request the assignment again at the next workers_of(): a task moves, or a worker has failed."""
        self._owners.by_task = {}

    def _tasks_by_worker(self, tasks: Iterable[int]) -> dict[Peer, list[int]]:
        return {
            peer._replace(address=self.address) if peer.worker_id == self._own_id else peer: owned
            for peer, owned in self._owners.group_tasks(tasks).items()
        }

    async def _update_owners(self, connections: WorkerConnections, addresses: Iterable[str]) -> None:
        """Request the assignment from the first worker that answers; if none does, raise the first error."""
        problems: list[TuplewireError] = []
        for address in dict.fromkeys(addresses):
            try:
                answer = await connections.assignment(address)
                self._owners.apply(answer.assignment if answer.HasField("assignment") else None, address)
            except TuplewireError as error:
                logger.debug("assignment.request_failed", extra={"address": address, "reason": str(error)})
                problems.append(error)
                continue
            if address == self.address:
                self._own_id = answer.worker_id
            return
        raise problems[0]

    async def _assign_to_streams(self, connections: WorkerConnections) -> None:
        """Assign tasks to streams to their owners. Tasks with a connected stream stay there."""
        # At every await each task is in a stream or in `_tasks_without_stream`: a fork may cancel this.
        # An opening stream stays, too: its worker would mark the first messages as redelivered.
        broken = [each for each in self._streams if not (each.connected or each.opening)]
        tasks = [*self._tasks_without_stream, *(task for each in broken for task in each.tasks)]
        unknown = [task for task in tasks if task not in self._owners.by_task]
        self._highest_version = max(self._highest_version, self._owners.version)
        # A worker with an older assignment may not know the tasks yet.
        if unknown and self._owners.version == self._highest_version:
            self.on_failed(self._owners.unknown_error(unknown))
            return
        owned = {peer: frozenset(owned_tasks) for peer, owned_tasks in self._tasks_by_worker(tasks).items()}
        for each in broken:
            kept = owned.get(self._peer_of(each), frozenset()).intersection(each.tasks)
            if not each.connected and len(kept) < len(each.tasks):
                self._tasks_without_stream |= frozenset(each.tasks) - kept
                await self._change_tasks(each, kept)
        for peer, owned_tasks in owned.items():
            added = self._tasks_without_stream & owned_tasks
            stream = next((each for each in self._streams if self._peer_of(each) == peer), None)
            if stream is not None and stream.opening:
                continue  # the next round adds the tasks
            self._tasks_without_stream -= added
            if added and stream is not None:
                await self._change_tasks(stream, added.union(stream.tasks))
            elif added:
                is_own = peer.address == self.address
                opener = self._open_stream if is_own else connections.stream_opener(peer.address)
                stream = ConsumingEnd(self, peer.address, opener, peer.worker_id, sorted(added))
                self._streams = (*self._streams, stream)
                stream.start()

    def _peer_of(self, stream: ConsumingEnd) -> Peer:
        is_own = stream.address == self.address
        return Peer(stream.worker_id or (self._own_id if is_own else ""), stream.address)

    async def _change_tasks(self, stream: ConsumingEnd, tasks: frozenset[int]) -> None:
        """Restart a session with other tasks, or end it if there are none."""
        stream.set_tasks(sorted(tasks))
        stream.connected = False  # the worker does not know the tasks yet
        if not tasks:
            self._streams = tuple(each for each in self._streams if each is not stream)
            stream.is_closed = True
        await stream.suspend()
        if not stream.is_closed:
            stream.start()
