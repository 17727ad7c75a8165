"""The link of executors to the worker that they are in: no socket, no copy, only another thread.

Out, messages enter the worker's router as those of a program do. In, the receive queues of their tasks are
consumed here. So what holds for programs holds for executors: credit, moves, the ledger, the metrics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import ClosedError
from tuplewire.group import TaskGroup, check_sizes
from tuplewire.session.consume import Cursor
from tuplewire.topology.description import ComponentKind, Topology
from tuplewire.topology.running.executor_worker import ExecutorWorker
from tuplewire.topology.running.link import Failed, Link, Receive
from tuplewire.topology.running.outgoing import outbound_tasks
from tuplewire.topology.topology_settings import TopologySettings
from tuplewire_service.executors.entrance import Entrance
from tuplewire_service.messaging.base import ReceiveCount, ServerStatistics
from tuplewire_service.messaging.subscription import SubscribeRequest
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.servers import IProgram
from tuplewire_service.worker.worker import Worker

logger = logging.getLogger(__name__)

_TURN_BYTES = 256 * 1024
"""How much is handed to executors before the event loop has its turn again."""


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
        spouts = [
            task
            for each in topology.components.values()
            if each.kind is ComponentKind.SPOUT
            for task in topology.tasks_of(each.id)
        ]
        self._entrance = Entrance(worker, frozenset(spouts))
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
        self._subscription = worker.router.queues.subscribe(request, self._wake)
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
        self._subscription.progress([self._cursor(task, acknowledged[task]) for task in tasks])

    def close(self) -> None:
        """End it: what is not executed waits for whoever has the tasks next."""
        self._subscription.close()
