"""The link of executors to the worker that they are in: no socket, no copy, only another thread.

Out, messages enter the worker's router as those of a program do: bounded for each task, and in one step. In,
the receive queues of their tasks are consumed here. So what holds for programs holds for executors: credit,
moves, the ledger, the metrics.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Container, Mapping, Sequence

from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import ClosedError
from tuplewire.session.consume import Cursor
from tuplewire.settings.config import AckMode
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import TaskGroup, check_sizes
from tuplewire_service.messaging.base import ReceiveCount, ReceivedBatch, ServerStatistics
from tuplewire_service.messaging.subscription import SubscribeRequest
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.servers import IProgram
from tuplewire_service.worker.worker import Worker
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.link import BLOCKED_AGAIN_SECONDS, BLOCKED_SECONDS, Failed, Link, Receive
from tuplewire_topology.running.outgoing import outbound_tasks

logger = event_logger(__name__)

_TURN_BYTES = 256 * 1024
"""How much is handed to executors before the event loop has its turn again."""


class _Outstanding:
    """What one task was sent, and is not done with."""

    __slots__ = ("messages", "size_bytes", "waiting")

    def __init__(self) -> None:
        self.messages = self.size_bytes = self.waiting = 0


class Entrance:
    """The inbound session of a worker's own executors; see InboundSession. From any thread.

    In the mode `processed` what was sent is kept until it is executed, and sent again should a worker die.
    free: tasks to which nobody waits. messages, batches, size_bytes: what has entered. refused: what the
    router did not take, by the error's code. pending: messages that were sent, and are neither released nor
    refused.
    """

    source = sender_id = "executors"
    worker_number = 0

    def __init__(self, worker: Worker, free: Container[int]) -> None:
        settings = worker.settings
        self.wants_releases = settings.session.ack_mode is AckMode.PROCESSED
        self.messages = self.batches = self.size_bytes = 0
        self.refused: Counter[str] = Counter()
        self._router = worker.router
        self._most_messages = settings.receive_queue_messages
        self._most_bytes = settings.receive_queue_bytes
        self._loop = messaging_loop().loop
        self._free = free
        self._changed = threading.Condition()
        self._tasks: dict[int, _Outstanding] = {}
        self._blocked: dict[int, None] = {}
        self._log_rate = LogRate()
        self.pending = 0
        self._gathered: list[TaskGroup] = []
        self._scheduled = False
        self._closed = False

    @property
    def gathered(self) -> bool:
        """Whether something has not entered yet."""
        return bool(self._gathered)

    @property
    def blocked(self) -> Collection[int]:
        """The tasks for which somebody waits for room, the longest first."""
        with self._changed:
            return list(self._blocked)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Accept messages, in order; waits for room as long as it takes. ClosedError once closed.

        A task has room while it has less outstanding than its queue may hold, in messages and in bytes.
        """
        with self._changed:
            for group in groups:
                task = self._tasks.get(group.task)
                if task is None:
                    task = self._tasks[group.task] = _Outstanding()
                if self._full(task) and group.task not in self._free:
                    self._await_room(group.task, task)
                if self._closed:
                    raise ClosedError("the link to the worker is closed")
                task.messages += len(group)
                task.size_bytes += group.size_bytes
                self.pending += len(group)
                self._gathered.append(group)
            self._hand_over()

    def _full(self, task: _Outstanding) -> bool:
        return task.messages >= self._most_messages or task.size_bytes >= self._most_bytes

    def _await_room(self, number: int, task: _Outstanding) -> None:
        self._hand_over()
        began = time.monotonic()
        patience = BLOCKED_SECONDS
        task.waiting += 1
        self._blocked.setdefault(number)
        try:
            while self._full(task) and not self._closed:
                if not self._changed.wait(patience):
                    patience = BLOCKED_AGAIN_SECONDS
                    logger.warning(
                        "executors.blocked",
                        extra={
                            "task": number,
                            "seconds": round(time.monotonic() - began),
                            "messages": task.messages,
                            "bytes": task.size_bytes,
                        },
                    )
        finally:
            task.waiting -= 1
            if not task.waiting:
                del self._blocked[number]

    def _hand_over(self) -> None:
        """Have the event loop take what is gathered."""
        if self._gathered and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._enter)

    def _enter(self) -> None:
        """On the event loop: route what is gathered."""
        with self._changed:
            groups, self._gathered = self._gathered, []
            self._scheduled = False
            self._changed.notify_all()
        self.batches += 1
        self.messages += sum(map(len, groups))
        self.size_bytes += sum(group.size_bytes for group in groups)
        batch = ReceivedBatch.arrived(groups, self)
        self._router.recv(batch)
        for group, error in batch.refusals:
            self.refused[error.code] += len(group)
            self.release(group.task, len(group), group.size_bytes)
            if messages := self._log_rate.due(group.task, len(group)):
                extra = {"task": group.task, "messages": messages, "reason": str(error)}
                logger.warning("messages.refused", extra=extra)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        with self._changed:
            outstanding = self._tasks[task]
            outstanding.messages -= messages
            outstanding.size_bytes -= size_bytes
            self.pending -= messages
            if outstanding.waiting:
                self._changed.notify_all()
            if not outstanding.messages and not outstanding.waiting:
                del self._tasks[task]

    def close(self, timeout: float) -> None:
        """Wait until all that was sent has entered, at most so many seconds; then take nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._gathered, timeout)
            self._closed = True
            self._changed.notify_all()


class WorkerLink(Link, IProgram):
    """Joins executors and the worker whose tasks they run; both sides may use it at once.

    executors: those that it serves; None before they are there. missing: tasks that are sent to, and that
    nobody has.
    """

    def __init__(self, worker: Worker, topology: Topology, settings: TopologySettings) -> None:
        """Join the worker; from any thread."""
        self.executors: ExecutorWorker | None = None
        self.missing: frozenset[int] = frozenset()
        self._worker = worker
        self._loop = messaging_loop()
        self._topology = topology
        self._window_messages = settings.receive_queue_tuples
        # What goes to a spout is what has become of its tuples, which their number bounds; it may be what a
        # spout that waits for room is waiting for.
        self._entrance = Entrance(worker, topology.spout_tasks)
        self._consumers: dict[range, _Consumer] = {}
        self._loads: Mapping[int, float] = {}
        self._own_loads: Mapping[int, float] = {}
        self._loop.call(lambda: worker.host(self))

    # --- for the executors, from any thread ---------------------------------------------------------

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:  # noqa: ARG002
        """See Link. What goes wrong in the worker ends its process."""

        def subscribe() -> None:
            for each in tasks:
                self._consumers[each] = _Consumer(self._worker, each, self._window_messages, receive)
            self._take_over()

        self._loop.call(subscribe)

    def leave(self, tasks: range) -> None:

        def unsubscribe() -> None:
            consumer = self._consumers.pop(tasks, None)
            if consumer is not None:
                consumer.close()
            self._take_over()

        self._loop.call(unsubscribe)

    def _take_over(self) -> None:
        self._worker.router.taken_here = frozenset(task for each in self._consumers for task in each)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """See Link. Waits as long as it takes, as Storm's transfer does, and says so in the log."""
        check_sizes(groups, self._worker.settings.session.max_message_bytes)
        self._entrance.send(groups)

    @property
    def not_ready(self) -> str:
        return self._loop.call(self._not_connected)

    def _not_connected(self) -> str:
        if self._worker.assignment is None:
            return "no assignment yet"
        missing = self._worker.router.connections.not_ready
        return f"no connection to {', '.join(missing)}" if missing else ""

    def loads(self) -> Mapping[int, float]:
        return self._loads

    def report(self, loads: Mapping[int, float]) -> None:
        """See Link: the worker tells the others, once a second."""
        self._own_loads = loads

    @property
    def pending(self) -> int:
        """Messages that were sent, and that nobody has executed yet."""
        return self._entrance.pending

    def lost(self) -> int:
        """See Link. Also what others had sent, and this worker has dropped."""
        dropped = self._loop.call(self._worker.router.ledger).dropped
        return sum(self._entrance.refused.values()) + sum(dropped.values())

    def abort(self) -> None:
        """End at once: whoever waits for room hears that the link is closed."""
        self._entrance.close(0.0)

    def close(self, timeout: float) -> None:
        """See Link. The worker sees off what was accepted when it drains."""
        self._entrance.close(timeout)
        for tasks in list(self._consumers):
            self.leave(tasks)

    # --- for the worker, on its event loop -------------------------------------------------------------

    @property
    def not_ready_because(self) -> str:
        return "the executors are starting" if self.executors is None else self.executors.not_ready

    @property
    def busy(self) -> bool:
        executors = self.executors
        if executors is None or executors.failure is not None:
            return False
        return not executors.idle.empty or self._entrance.gathered

    def assigned(self, assignment: Assignment) -> None:
        """See IProgram. Storm's "Missing assignment for following tasks" is logged once for each set."""
        tasks = assignment.tasks_of(self._worker.settings.worker_id)
        needed = outbound_tasks(self._topology, [task for task in tasks if task in self._topology.tasks])
        missing = frozenset(task for task in needed if task not in assignment.owner_of)
        if missing and missing != self.missing:
            logger.warning("assignment.tasks_missing", extra={"tasks": sorted(missing)})
        self.missing = missing

    def exchange_loads(self, known: Mapping[int, float]) -> Mapping[int, float]:
        self._loads = known
        return self._own_loads

    @property
    def exhausted(self) -> Collection[int]:
        return self._entrance.blocked

    def statistics(self) -> ServerStatistics:
        entrance = self._entrance
        received = ReceiveCount(entrance.source, entrance.messages, entrance.batches, entrance.size_bytes)
        return ServerStatistics([received], 1, refused_messages=dict(entrance.refused))


class _Consumer:
    """Takes what comes for one executor's tasks. Belongs to the event loop, but for done().

    What was taken and is not executed is bounded for each task, by a number and by the bytes that a queue may
    hold; the rest waits in the receive queue, under its senders' credit.
    """

    def __init__(self, worker: Worker, tasks: range, window: int, receive: Receive) -> None:
        self._loop = messaging_loop().loop
        self._receive = receive
        self._window = window
        self._window_bytes = worker.settings.receive_queue_bytes
        self._scheduled = self._telling = False
        self._finished: deque[TaskGroup] = deque()
        request = SubscribeRequest(
            "",
            f"{worker.settings.worker_id} {tasks[0]}",
            worker.incarnation,
            0,
            [self._cursor(task, 0) for task in tasks],
        )
        self._subscription = worker.router.consumers.subscribe(request, self._wake)
        self._acknowledged = dict(self._subscription.starts)
        self._wake()

    def _cursor(self, task: int, acknowledged: int) -> Cursor:
        """Say what is done with, and what there is room for; what is on the way counts until it is done."""
        return Cursor(task, acknowledged, acknowledged, acknowledged + self._window, self._window_bytes)

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._scheduled = False
        deliveries = self._subscription.take(_TURN_BYTES)
        if not deliveries:
            return
        self._wake()  # there may be more
        try:
            self._receive([delivery.group for delivery in deliveries], self.done)
        except ClosedError:
            self.close()  # the executor has ended, and whoever ended it knows why

    def done(self, group: TaskGroup) -> None:
        """Note that messages are executed; in order for each task, from any thread."""
        self._finished.append(group)
        if not self._telling:
            self._telling = True
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False  # first: who comes after this calls for another turn
        acknowledged = self._acknowledged
        tasks: set[int] = set()
        for _ in range(len(self._finished)):
            group = self._finished.popleft()
            acknowledged[group.task] += len(group)
            tasks.add(group.task)
        cursors = [self._cursor(task, acknowledged[task]) for task in tasks]
        while self._subscription.progress(cursors):
            cursors = []  # in the same turn: an executor has taken little

    def close(self) -> None:
        """End it: what is not executed waits for whoever has the tasks next."""
        self._subscription.close()
