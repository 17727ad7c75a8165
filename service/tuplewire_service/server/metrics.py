"""Prometheus metrics, read from a snapshot of the worker at each scrape.

The data plane only counts in plain integers; nothing is paid for metrics between scrapes.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping

import grpc
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import tuplewire
from tuplewire.session.ledger import DropReason
from tuplewire.wire import messaging_pb2
from tuplewire_service.worker.status import PeerSnapshot, TaskSnapshot, WorkerSnapshot

_CODES = [
    name.removeprefix("ERROR_CODE_")
    for name, number in messaging_pb2.ErrorCode.items()
    if number != messaging_pb2.ERROR_CODE_UNSPECIFIED
]


def make_registry(
    read: Callable[[], WorkerSnapshot], assignment_errors: Callable[[], int]
) -> CollectorRegistry:
    """Return a registry of the worker's metrics and those of its process.

    read: returns a snapshot, from any thread; what it raises fails the scrape. assignment_errors: how often
    the assignment file could not be used.
    """
    registry = CollectorRegistry()
    registry.register(WorkerCollector(read, assignment_errors))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class WorkerCollector(Collector):
    """Turns snapshots into metric families."""

    def __init__(self, read: Callable[[], WorkerSnapshot], assignment_errors: Callable[[], int]) -> None:
        self._read = read
        self._assignment_errors = assignment_errors

    def collect(self) -> Iterator[Metric]:
        """Yield every family, all of them from one snapshot."""
        snapshot = self._read()
        yield InfoMetricFamily(
            "tuplewire_build",
            "What runs here.",
            {
                "version": tuplewire.__version__,
                "python": platform.python_version(),
                "grpc": grpc.__version__,
                "worker_id": snapshot.worker_id,
                "topology": snapshot.topology,
            },
        )
        yield _gauge("ready", "1 when the worker is ready, else 0.", not snapshot.not_ready_because)
        yield _gauge(
            "assignment_version",
            "Version of the assignment in force; 0: none yet.",
            snapshot.assignment_version,
        )
        yield _counter(
            "assignment_file_errors",
            "How often the assignment file could not be read or used; the assignment before it stayed.",
            self._assignment_errors(),
        )
        yield from _received(snapshot)
        yield from _ledger(snapshot)
        yield from _peers(snapshot.peers)
        yield from _tasks(snapshot.tasks)


def _received(snapshot: WorkerSnapshot) -> Iterator[Metric]:
    counts = snapshot.received
    source = "source: a worker's id, or client for all programs together."
    yield _counters(
        "received_messages",
        f"Messages received, by {source}",
        "source",
        ((c.source, c.messages) for c in counts),
    )
    yield _counters(
        "received_batches",
        f"Batches received, by {source}",
        "source",
        ((c.source, c.batches) for c in counts),
    )
    yield _counters(
        "received_bytes",
        f"Payload bytes received, by {source}",
        "source",
        ((c.source, c.bytes) for c in counts),
    )
    yield _counters(
        "refused",
        "Streams and messages refused to their sender, by the code of the error.",
        "code",
        _with_zeros(_CODES, snapshot.refused).items(),
    )


def _ledger(snapshot: WorkerSnapshot) -> Iterator[Metric]:
    ledger = snapshot.ledger
    yield _counter("accepted_messages", "Messages taken over from clients and peers.", ledger.accepted)
    yield _counter(
        "acknowledged_messages",
        "Messages passed on and acknowledged by whoever took them.",
        ledger.acknowledged,
    )
    yield _counters(
        "dropped_messages",
        "Accepted messages that were given up, by reason.",
        "reason",
        _with_zeros(DropReason, ledger.dropped).items(),
    )
    yield _gauge(
        "worker_pending_messages",
        "Messages accepted, and neither acknowledged nor dropped yet, in the whole worker.",
        ledger.pending,
    )


def _peers(peers: Iterable[PeerSnapshot]) -> Iterator[Metric]:
    statistics = [(peer.worker_id, peer.statistics) for peer in peers]
    yield _counters(
        "sent_messages",
        "Messages sent to another worker.",
        "peer",
        ((p, s.sent_messages) for p, s in statistics),
    )
    yield _counters(
        "sent_batches",
        "Batches sent to another worker.",
        "peer",
        ((p, s.sent_batches) for p, s in statistics),
    )
    yield _counters(
        "sent_bytes",
        "Payload bytes sent to another worker.",
        "peer",
        ((p, s.sent_bytes) for p, s in statistics),
    )
    yield _counters(
        "reconnects",
        "How often the connection to another worker was made again.",
        "peer",
        ((p, s.reconnects) for p, s in statistics),
    )
    yield _gauges(
        "pending_messages",
        "Messages for another worker that it has not acknowledged yet.",
        "peer",
        ((p, s.ledger.pending) for p, s in statistics),
    )
    yield _gauges(
        "connection_up",
        "1 while the session with another worker is established, else 0.",
        "peer",
        ((peer.worker_id, int(peer.connected)) for peer in peers),
    )


def _tasks(tasks: Iterable[TaskSnapshot]) -> Iterator[Metric]:
    by_task = [(str(task.task), task) for task in tasks]
    yield _gauges(
        "queue_messages",
        "Messages in a task's receive queue: waiting, or delivered and not acknowledged.",
        "task",
        ((name, task.queued_messages) for name, task in by_task),
    )
    yield _gauges(
        "queue_bytes",
        "Payload bytes in a task's receive queue.",
        "task",
        ((name, task.queued_bytes) for name, task in by_task),
    )
    yield _gauges(
        "queue_capacity_messages",
        "Bound of a task's receive queue.",
        "task",
        ((name, task.capacity_messages) for name, task in by_task),
    )
    yield _gauges(
        "queue_subscribed",
        "1 while a consumer is subscribed to the task, else 0.",
        "task",
        ((name, int(task.subscribed)) for name, task in by_task),
    )


def _with_zeros(names: Iterable[str], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts with a 0 for every name that never occurred, so that a first increase is seen."""
    return {**dict.fromkeys(map(str, names), 0), **counts}


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tuplewire_{name}", help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tuplewire_{name}", help_text, value=int(value))


def _counters(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(f"tuplewire_{name}", help_text, labels=[label])
    for child, value in values:
        family.add_metric([child], value)
    return family


def _gauges(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"tuplewire_{name}", help_text, labels=[label])
    for child, value in values:
        family.add_metric([child], value)
    return family
