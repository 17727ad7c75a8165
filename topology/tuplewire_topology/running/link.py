"""The connection from the executors of a process to other processes: a client of a worker.

Used by executor_group.py. Owns the client. Thread-safe. Source: Storm's `IContext`, as its worker uses it.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

from tuplewire.client import Client
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    FlushTimeoutError,
    RefusedMessagesError,
    TaskNotLocalError,
    TuplewireError,
    to_tuplewire_error,
)
from tuplewire.text.events import event_logger
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings

logger = event_logger(__name__)

BLOCKED_LOG_SECONDS = 5.0
"""The wait of an executor for free space after which it is logged, then each BLOCKED_REPEAT_SECONDS."""
BLOCKED_REPEAT_SECONDS = 60.0

OnReceive = Callable[[TaskGroup, Callable[[], None]], None]
"""Accepts messages in order, without waiting; calls the function once they are processed."""

OnFailure = Callable[[TuplewireError], None]


class InProcessWorker(Protocol):
    """The worker in the process of the executors."""

    def missing_connections(self) -> str:
        """Return the missing required connections to other workers, as text; empty if none is missing."""

    def loads(self) -> Mapping[int, float]:
        """Return the known loads of all tasks, 0 to 1."""

    def report_loads(self, loads: Mapping[int, float]) -> None:
        """Report the loads of the tasks in this process."""

    def dropped_messages(self) -> int:
        """Return the number of messages that the worker has dropped."""

    def create_client(self, n_tasks: int, prefetch_messages: int) -> Client:
        """Return a new client of the worker, with a send buffer for `n_tasks` tasks."""


class Link:
    """Sends and receives the tuples of executors through a client, and closes it at the end.

    Messages are acknowledged once their tuples are executed, so the worker delivers unprocessed ones again
    if this process dies. The tuples emitted for them are then in the client: it delivers them while this
    process lives, and they are lost with it.

    A spout's executor receives only the outcomes of its tuples. They are acknowledged on arrival: a spout
    that waits for free space does not read them, and the tasks that report them must not wait for it.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_offset: int = 0,
        spout_tasks: Container[int] = (),
        worker: InProcessWorker | None = None,
    ) -> None:
        """Use a client of the worker that has the tasks. Its `overflow` must not be "fail".

        task_offset: added to every task id on the wire, to distinguish several runs of a topology. worker: if
        it is in this process, it provides loads and the state of connections.
        """
        self.worker = worker
        self._client = client
        self._spout_tasks = spout_tasks
        client.tracing_allowed = False  # tuples have their own spans
        self._task_offset = task_offset
        self._closed = False
        self._subscriptions: dict[range, Callable[[], None]] = {}

    @classmethod
    def for_worker(cls, worker: InProcessWorker, topology: Topology, conf: Mapping[str, Any]) -> Self:
        """Return a link to the worker in this process."""
        settings = TopologySettings.from_conf(conf)
        client = worker.create_client(len(topology.tasks), settings.receive_queue_tuples)
        return cls(client, spout_tasks=topology.spout_tasks, worker=worker)

    def subscribe(self, tasks: Sequence[range], receive: OnReceive, on_failure: OnFailure) -> None:
        """Deliver the messages of tasks, a range per executor. `on_failure` gets the error that ends this."""
        for each in tasks:
            shifted = range(each.start + self._task_offset, each.stop + self._task_offset)
            on_group, on_end = partial(self._on_group, receive, on_failure), partial(self._on_end, on_failure)
            self._subscriptions[each] = self._client.subscribe(shifted, on_group, on_end)

    def _on_group(
        self, receive: OnReceive, on_failure: OnFailure, group: TaskGroup, acknowledge: Callable[[], None]
    ) -> None:
        (group,) = self._with_offset([group], -self._task_offset)
        try:
            if group.task in self._spout_tasks:  # outcomes: see the class
                receive(group, lambda: None)
                acknowledge()
            else:
                receive(group, acknowledge)
        except ClosedError:
            # The executor has stopped. Its messages wait for the next consumer of the task.
            return
        except Exception as error:  # noqa: BLE001 - a defect must end the executors, not the stream
            self._on_end(on_failure, to_tuplewire_error(error))

    def _on_end(self, on_failure: OnFailure, error: TuplewireError) -> None:
        # Not a failure: the task has moved, and the program in this process follows the assignment.
        moved = self.worker is not None and isinstance(error, TaskNotLocalError)
        if not self._closed and not moved:
            on_failure(error)

    def unsubscribe(self, tasks: range) -> None:
        """End the subscription to the tasks of an executor that has stopped."""
        if (close := self._subscriptions.pop(tasks, None)) is not None:
            close()

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Send, waiting for free space without limit. Raises MessageTooLargeError and ClosedError."""
        batch = TaskMessageBatch.from_groups(self._with_offset(groups, self._task_offset))
        began = time.monotonic()
        log_after = BLOCKED_LOG_SECONDS
        while True:
            try:
                return self._client.send(batch, timeout=log_after)
            except BufferFullError:
                log_after = BLOCKED_REPEAT_SECONDS  # later reports are less frequent
                tasks = sorted({group.task for group in groups})
                seconds = round(time.monotonic() - began)
                logger.warning("executors.blocked", extra={"tasks": tasks, "seconds": seconds})

    @staticmethod
    def _with_offset(groups: Sequence[TaskGroup], shift: int) -> Sequence[TaskGroup]:
        if not shift:
            return groups
        return [
            replace(
                group, task=group.task + shift, source=None if group.source is None else group.source + shift
            )
            for group in groups
        ]

    @property
    def pending_messages(self) -> int:
        """The number of sent messages that the worker has not acknowledged."""
        return self._client.ledger().pending

    def lost_messages(self) -> int:
        """Return the number of accepted messages that will never arrive, so far."""
        dropped = sum(self._client.ledger().dropped.values())
        return dropped if self.worker is None else dropped + self.worker.dropped_messages()

    def abort(self) -> None:
        """Stop immediately: senders that wait for free space get a ClosedError."""
        self._closed = True
        self._client.close(0.0)

    def close(self, timeout: float) -> None:
        """Deliver nothing more, and wait for the acknowledgement of sent messages for `timeout` seconds.

        Then close the client. Raises the errors of Client.flush(). With a worker in this process, a timeout
        and refused messages are not errors: the worker counts and logs them.
        """
        deadline = time.monotonic() + timeout
        self._closed = True
        try:
            for tasks in list(self._subscriptions):
                self.unsubscribe(tasks)
            self._client.flush(max(0.0, deadline - time.monotonic()))
        except (ClosedError, FlushTimeoutError, RefusedMessagesError):
            if self.worker is None:
                raise
        finally:
            self._client.close(0.0)
