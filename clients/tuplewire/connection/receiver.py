"""A subscription to tasks: the messages that have arrived, from one worker or from several.

One thread (or coroutine) at a time takes batches and acknowledges them. The executors of topologies get the
batches from the loop instead (Push). With OtherWorkers, it finds the workers of its tasks, and follows them.
Used by clients, their subscriptions, task_states.py and the dead-letter command. Owns the buffer, which the
prefetch settings bound, and a stream to each worker (consumer_stream.py). Thread-safe, except the methods for
the loop. Design: docs/design/moves.md ("Subscriptions follow tasks").
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from functools import partial

from tuplewire.connection.consumer_stream import ConsumerStream, Inbox, Push
from tuplewire.connection.grpc_channel import OtherWorkers
from tuplewire.connection.loop import watched
from tuplewire.connection.reconnecting_stream import Identity
from tuplewire.connection.stream import StreamOpener
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import ClosedError, RefusedError, TuplewireError, UnreachableError
from tuplewire.session.consume import Arrived, Rejected
from tuplewire.session.retry import Backoff
from tuplewire.settings.addresses import Peer
from tuplewire.settings.config import RejectOrder, SessionSettings
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 2.0
_MOST_ASKED = 3
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
        receiver_id: str = "",
        push: Push | None = None,
        others: OtherWorkers | None = None,
    ) -> None:
        """Describe a subscription at the worker at an address. For other arguments see ReconnectingStream.

        Args:
            push: Gets the messages; None: take() returns them.
            others: Connects to the tasks' owners; None: only to this worker.
        """
        super().__init__(identity, settings, loop, push, follows=others is not None)
        self.address = address
        self.tasks = tuple(tasks)
        self.failed: TuplewireError | None = None
        self.over = False
        self._open_stream = open_stream
        own = ConsumerStream(self, address, open_stream, receiver_id, self.tasks)
        self._streams: tuple[ConsumerStream, ...] = (own,)
        """Replaced as a whole, because consumers read it from other threads."""
        self._unplaced: frozenset[int] = frozenset()
        """The tasks without a stream: their owner is not known yet."""
        self._broken_since = time.monotonic()
        self._not_admitted = False
        """True if the workers have not accepted this consumer within connect_seconds."""
        self._patience: asyncio.TimerHandle | None = None
        self.others = others
        self._owners = TaskOwners(identity.topology, address)
        self._newest = 0
        """The highest version of the assignments so far."""
        self._own_id = receiver_id
        """The id of the worker at the client's own address, if known."""
        self._refused_at: str | None = None
        """The address of the worker that has reported last that it does not own a task."""
        self._search: asyncio.Task[None] | None = None
        self._running = False
        """True if streams may be opened: not before the start, during a fork, or after the end."""

    @property
    def state(self) -> str:
        """The state of the subscription, as text."""
        if self.over:
            return "closed"
        if self.failed is not None:
            return f"ended: {self.failed}"
        return self._connection

    @property
    def connected(self) -> bool:
        """True if every task has a stream to its worker."""
        return not self._unplaced and all(each.connected for each in self._streams)

    @property
    def _connection(self) -> str:
        broken = next((each.connection for each in self._streams if not each.connected), "connected")
        return f"looking for the worker of task {min(self._unplaced)}" if self._unplaced else broken

    def __repr__(self) -> str:
        return f"<Receiver {self.address} buffered={len(self.buffer)} {self.state}>"

    # --- for consumers -----------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Arrived | None:
        """Return the next batch, or None after `timeout` seconds. Do not call this on the event loop.

        Without a timeout, wait indefinitely once the workers have accepted this consumer. Raises ClosedError,
        or the error that ended the subscription. Raises UnreachableError if a worker was unreachable for the
        whole timeout; without one, if the workers have not accepted this consumer within connect_seconds.
        """
        with self.lock:
            found = self.changed.wait_for(partial(self._next, timeout), timeout)
        return found or self._none_after(timeout)

    async def take_async(self, timeout: float | None = None) -> Arrived | None:
        """Do the same as take, on any event loop. A cancelled call takes no batch."""
        found = await self.changed.wait_for_async(partial(self._next, timeout), timeout)
        return found or self._none_after(timeout)

    def _next(self, timeout: float | None) -> Arrived | None:
        # After the end, the buffer lacks messages that an acknowledgement of later ones would include.
        if self.failed is not None:
            raise self.failed
        if self.over:
            raise ClosedError(f"the subscription at {self.address} is closed")
        if self.buffer:
            return self.buffer.popleft()
        if timeout is None and self._not_admitted:
            raise self._unreachable(self.settings.connect_seconds)
        return None

    def _none_after(self, timeout: float | None) -> Arrived | None:
        # A connection without messages is not an error, even if it existed only for a part of the time.
        if timeout is not None and not self.connected and time.monotonic() - self._broken_since >= timeout:
            raise self._unreachable(timeout)
        return None

    def _unreachable(self, seconds: float) -> UnreachableError:
        for each in self._streams:
            if not each.connected:
                return UnreachableError(f"no worker at {each.address} for {seconds:g} s: {each.problem}")
        return UnreachableError(f"no worker at {self.address} for {seconds:g} s: {self._connection}")

    @property
    def rejects_wait(self) -> bool:
        """True if later messages of a task wait for a rejected one."""
        return self.settings.reject_order is RejectOrder.WAIT

    def put_back(self, arrived: Arrived) -> None:
        """Make take() return these messages again. Otherwise, a later acknowledgement would include them."""
        with self.lock:
            if arrived.deliveries and self.failed is None:
                self.buffer.appendleft(arrived)

    def acknowledge(self, arrived: Arrived, rejected: Sequence[Rejected] = ()) -> None:
        """Acknowledge a batch to its worker; ignore it if the worker has failed, or its tasks have moved.

        rejected: the rejected messages of the batch, in order; see ConsumeWindow.acknowledge.
        """
        for stream in self._streams:
            if stream.window is arrived.window:
                stream.acknowledge(arrived, rejected)

    # --- for streams, on the loop; see Inbox -----------------------------------------------------

    def on_connected(self) -> None:
        own = next((each for each in self._streams if each.address == self.address), None)
        self._own_id = own.worker_id if own is not None and own.connected else self._own_id
        if self.connected:
            self.admitted, self._not_admitted = True, False
            self._stop_patience()

    def on_lost(self, stream: ConsumerStream, error: TuplewireError) -> None:
        if stream.connected:
            self._mark_broken()
        self._find(stream.address if isinstance(error, RefusedError) else None)

    def on_moved(self, stream: ConsumerStream, tasks: Iterable[int]) -> None:
        if self.follows:
            self._mark_broken()
            gone = frozenset(tasks) & frozenset(stream.tasks)
            self._unplaced |= gone
            stream.consume(task for task in stream.tasks if task not in gone)
            self._find(stream.address)

    def on_failed(self, error: TuplewireError) -> None:
        with self.lock:
            if self.failed is not None:
                return
            self.failed = error
            # These messages can no longer be acknowledged; the worker delivers them to the task's consumer.
            self.buffer.clear()
            self.changed.notify_all()
        self._stop_patience()
        for stream in self._streams:
            watched(self.loop.create_task(stream.close(), name="close"))
        if self.push is not None and not self.over:
            self.push.failed(error)

    # --- life, on the loop ---------------------------------------------------------------------

    def start(self) -> None:
        """Start to connect."""
        self._running = True
        for stream in self._streams:
            stream.start()
        # An admitted consumer waits through restarts of any length; see docs/design/sessions.md.
        if not self.admitted and math.isfinite(seconds := self.settings.connect_seconds):
            self._patience = self.loop.call_later(seconds, self._stop_waiting)
        if self._unplaced:
            self._find(self.address)

    def _stop_waiting(self) -> None:
        """Wake callers without a timeout: the workers have not accepted this consumer."""
        with self.lock:
            self._not_admitted = True
            self.changed.notify_all()
        if self.push is not None:
            self.push.failed(self._unreachable(self.settings.connect_seconds))

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _mark_broken(self) -> None:
        if self.connected:
            self._broken_since = time.monotonic()

    async def close(self) -> None:
        """Close the subscription after reporting all acknowledgements, in at most three seconds."""
        with self.lock:
            self.over = True
            self.changed.notify_all()
        self._stop_search()
        await asyncio.gather(*(stream.close() for stream in self._streams))

    def _stop_search(self) -> None:
        self._running = False
        self._stop_patience()
        if self._search is not None:
            self._search.cancel()
            self._search = None
        if self.others is not None:
            self.others.forget()

    async def suspend(self) -> None:
        """Close the streams for a fork."""
        search = self._search
        self._stop_search()
        if search is not None:
            await asyncio.wait([search])
        await asyncio.gather(*(stream.suspend() for stream in self._streams))

    def resume(self) -> None:
        """Connect again after a fork."""
        if not self.over and self.failed is None:
            self.start()

    # --- the workers of tasks, on the loop -------------------------------------------------------

    def _find(self, refused_at: str | None) -> None:
        """Find the workers of the tasks that have no stream, or a broken one.

        refused_at: the address of a worker that does not own its task: it knows the owner.
        """
        self._refused_at = refused_at or self._refused_at
        done = self._search is None or self._search.done()
        if done and self.others is not None and self._running and self.failed is None:
            self._search = watched(self.loop.create_task(self._find_all(self.others), name="find tasks"))

    async def _find_all(self, others: OtherWorkers) -> None:
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS, random.random)
        while not self.connected and self.failed is None:
            # Without a refusal, the worker probably still owns its tasks, and the stream returns.
            if self._refused_at is None:
                await asyncio.sleep(backoff.next())
            asked, self._refused_at = self._refused_at, None
            try:
                await self._look_up(others, (asked or self.address, *self._owners.addresses))
            except TuplewireError:
                continue  # its log entries have the reasons
            if not self.connected:
                await self._place(others)

    async def workers_of(self, tasks: Iterable[int]) -> dict[Peer, list[int]]:
        """Return the tasks at each worker, without unknown ones, by the last assignment.

        It is requested again if it lacks a task. If no worker answers, raises the error of the first one.
        """
        named = list(tasks)
        if self.others is not None and not self._owners.of.keys() >= set(named):
            await self._look_up(self.others, self._owners.addresses[:_MOST_ASKED])
        return self._by_worker(named)

    def forget_workers(self) -> None:
        """Request the assignment again at the next workers_of(): a task moves, or a worker has failed."""
        self._owners.of = {}

    def _by_worker(self, tasks: Iterable[int]) -> dict[Peer, list[int]]:
        return {
            peer._replace(address=self.address) if peer.worker_id == self._own_id else peer: theirs
            for peer, theirs in self._owners.by_worker(tasks).items()
        }

    async def _look_up(self, others: OtherWorkers, addresses: Iterable[str]) -> None:
        """Request the assignment from the first worker that answers; if none does, raise the first error."""
        problems: list[TuplewireError] = []
        for address in dict.fromkeys(addresses):
            try:
                answer = await others.assignment(address)
                self._owners.replace(answer.assignment if answer.HasField("assignment") else None, address)
            except TuplewireError as error:
                logger.debug("subscription.no_assignment", extra={"peer": address, "reason": str(error)})
                problems.append(error)
                continue
            if address == self.address:
                self._own_id = answer.worker_id
            return
        raise problems[0]

    async def _place(self, others: OtherWorkers) -> None:
        """Move tasks to streams to their owners. Tasks with a connected stream stay there."""
        # At every await each task is in one stream or in `_unplaced`, because a fork may cancel this.
        # An opening stream stays, too: its worker would mark the first messages as redelivered.
        broken = [each for each in self._streams if not (each.connected or each.opening)]
        tasks = [*self._unplaced, *(task for each in broken for task in each.tasks)]
        unknown = [task for task in tasks if task not in self._owners.of]
        self._newest = max(self._newest, self._owners.version)
        # A worker with an older assignment may not know the tasks yet.
        if unknown and self._owners.version == self._newest:
            self.on_failed(self._owners.unknown(unknown))
            return
        owned = {peer: frozenset(theirs) for peer, theirs in self._by_worker(tasks).items()}
        for each in broken:
            kept = owned.get(self._peer_of(each), frozenset()).intersection(each.tasks)
            if not each.connected and len(kept) < len(each.tasks):
                self._unplaced |= frozenset(each.tasks) - kept
                await self._replace(each, kept)
        for peer, theirs in owned.items():
            added = self._unplaced & theirs
            stream = next((each for each in self._streams if self._peer_of(each) == peer), None)
            if stream is not None and stream.opening:
                continue  # the next round adds the tasks
            self._unplaced -= added
            if added and stream is not None:
                await self._replace(stream, added.union(stream.tasks))
            elif added:
                own = peer.address == self.address
                opener = self._open_stream if own else others.open_stream(peer.address)
                stream = ConsumerStream(self, peer.address, opener, peer.worker_id, sorted(added))
                self._streams = (*self._streams, stream)
                stream.start()

    def _peer_of(self, stream: ConsumerStream) -> Peer:
        own = stream.address == self.address
        return Peer(stream.worker_id or (self._own_id if own else ""), stream.address)

    async def _replace(self, stream: ConsumerStream, tasks: frozenset[int]) -> None:
        """Let a stream consume other tasks, or end it if there are none."""
        stream.consume(sorted(tasks))
        stream.connected = False  # the worker does not know the tasks yet
        if not tasks:
            self._streams = tuple(each for each in self._streams if each is not stream)
            stream.over = True
        await stream.suspend()
        if not stream.over:
            stream.start()
