"""The transfer of tuples between executors, within a process by reference, else serialized over the link.

Used by executor_worker.py and its executors. A tuple is serialized once for all of its target tasks. Owns the
counts of received bytes. Thread-safe. Design: docs/design/acking.md. Source: Storm's `WorkerTransfer` and
`transferLocal`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuplewire.errors import ClosedError, MalformedTupleError, MessageError
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire_topology.acking.acker_tasks import check_id
from tuplewire_topology.authoring.description import ACKER_COMPONENT, Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples, Tuple
from tuplewire_topology.running.idle import IdleWatch
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.running.tuple_observer import take_contexts, with_contexts
from tuplewire_topology.serial.serializer import TupleSerializer

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing

logger = event_logger(__name__)

Undeliverable = Callable[[Tuple, Exception], None]


@dataclass(slots=True, eq=False)
class Transfer:
    """Sends columns to local queues or over the link, and queues received tuples. Thread-safe.

    The owner adds and removes `queues`. `ackers` are the tasks that message IDs may name, if there are any.
    """

    topology: Topology
    link: Link | None
    settings: TopologySettings
    tracing: Tracing | None
    queues: dict[int, ReceiveQueue] = field(default_factory=dict)
    idle: IdleWatch = field(default_factory=IdleWatch)
    ackers: range | None = field(init=False)
    serializer: TupleSerializer = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sizes: Counter[tuple[int | None, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        has_ackers = ACKER_COMPONENT in self.topology.components
        self.ackers = self.topology.tasks_of(ACKER_COMPONENT) if has_ackers else None
        self.serializer = TupleSerializer(self.topology)

    @property
    def not_connected(self) -> str:
        """See Link."""
        return "" if self.link is None else self.link.not_connected

    def send(self, columns: Sequence[AddressedTuples], undeliverable: Undeliverable) -> None:
        """Send columns, in order for each task, waiting for free space. Call this on an executor's thread.

        The tuples of a column have one source. Raises ClosedError if a target executor has stopped.
        """
        known: dict[Tuple, bytes] = {}  # serialized tuples of this call
        remote: list[TaskGroup] = []
        for column in columns:
            queue = self.queues.get(column.task)
            if queue is None:
                remote += self._group(column, known, undeliverable)
                continue
            if self.settings.always_serialize:
                payloads = self._payloads(column, known, undeliverable)
                column = AddressedTuples(column.task, list(map(self.serializer.deserialize, payloads)))  # noqa: PLW2901
            self.idle.sent(len(column.tuples))
            # Never wait for the own queue, which only this thread empties, nor as the acker, because a spout
            # may be waiting for it (docs/design/acking.md).
            if column.tuples and (
                queue is self.queues.get(column.tuples[0].source_task)
                or column.tuples[0].source_component == ACKER_COMPONENT
            ):
                queue.publish_to_overflow(column)
            else:
                try:
                    queue.publish(column)
                except ClosedError:
                    if self.queues.get(column.task) is queue:
                        raise
                    self.idle.executed(len(column.tuples))  # removed here: send to the new worker
                    remote += self._group(column, known, undeliverable)
        if remote:
            self.idle.handed(sum(map(len, remote)))  # before the send: no receiver may count them first
            if self.link is None:
                raise MessageError(
                    f"task {remote[0].task} is not in this process, which has no link to others"
                )
            self.link.send(remote)

    def _group(
        self, column: AddressedTuples, known: dict[Tuple, bytes], undeliverable: Undeliverable
    ) -> list[TaskGroup]:
        payloads = self._payloads(column, known, undeliverable)
        if not payloads:
            return []
        group = TaskGroup.joined(column.task, column.tuples[0].source_task, payloads)
        return [with_contexts(group, column.tuples) if self.tracing is not None else group]

    def _payloads(
        self, column: AddressedTuples, known: dict[Tuple, bytes], undeliverable: Undeliverable
    ) -> list[bytes]:
        payloads = []
        for message in column.tuples:
            payload = known.get(message)
            if payload is None:
                try:
                    payload = known[message] = self.serializer.serialize(message)
                except MessageError as error:
                    undeliverable(message, error)
                    continue
            payloads.append(payload)
        return payloads

    def send_outcomes(self, column: AddressedTuples) -> None:
        """Queue ticks and outcomes, which no component has emitted, without waiting."""
        self.idle.sent(len(column.tuples))
        self.queues[column.task].publish_to_overflow(column)

    def receive(self, group: TaskGroup, done: Callable[[], None]) -> None:
        """Queue tuples from other processes without waiting; the credit of their senders bounds them.

        Calls `done` once they are processed. Raises ClosedError if the executor of the task has stopped.
        Source: Storm's `DeserializingConnectionCallback`.
        """
        if self.settings.size_metrics:
            with self._lock:
                self._sizes[group.source, group.task] += len(group.data)
        if tuples := self._tuples(group):
            queue = self.queues.get(group.task)
            if queue is None:
                raise ClosedError(f"task {group.task} no longer has an executor here")
            self.idle.taken(len(tuples))
            queue.publish_to_overflow(AddressedTuples(group.task, tuples, done))
        else:  # no readable tuple: without an acknowledgement it would be delivered again
            done()

    def _tuples(self, group: TaskGroup) -> list[Tuple]:
        """Return the readable tuples of a group; count and log the others."""
        tuples = []
        for payload in group.payloads():
            try:
                message = self.serializer.deserialize(payload)
                if message.message_id and self.ackers is not None:
                    check_id(message.message_id, self.ackers)
                tuples.append(message)
            except MalformedTupleError as error:
                extra = {"source": group.source, "task": group.task, "reason": str(error)}
                logger.warning("tuple.malformed", extra=extra)
                # Its sender has counted it, and the sums must be equal at the end.
                self.idle.taken(1, lost=True)
        if self.tracing is not None:
            take_contexts(group, tuples)
        return tuples

    def received_bytes(self, tasks: range) -> Mapping[str, int]:
        """Return the bytes received for tasks, by component. Source: see TopologySettings.size_metrics."""
        sizes: Counter[str] = Counter()
        with self._lock:
            for (source, task), size in self._sizes.items():
                if task in tasks:
                    sizes["" if source is None else self.topology.component_of(source).id] += size
        return sizes
