"""Prometheus metrics of a worker, made from its status at each scrape. Reference: docs/reference/metrics.md.

The data plane only counts in plain numbers, so metrics cost nothing between scrapes. Used by process/main.py.
Owns the names and totals of series. Their number is bounded. A total restarts only if its name was unused.
Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.session.ledger import DropReason
from tuplewire.settings.settings import settings_of
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.messaging_pb2 import ErrorCode
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.reception import OTHER
from tuplewire_service.messaging.sender_sessions import CLIENT_SOURCE
from tuplewire_service.messaging.server_stream import MAX_PENDING_HANDSHAKES
from tuplewire_service.metrics.families import counter, counter_by, gauge, gauge_by, histogram, info
from tuplewire_service.worker.timekeeper import TimeState

_CODES = [name.removeprefix("ERROR_CODE_") for name in ErrorCode.keys()[1:]]  # without UNSPECIFIED
_NUMERIC_METAVARS = ("COUNT", "SIZE", "SECONDS")
_EXPORTED_SETTINGS = [  # for comparisons between workers: sizes and times, but no names, paths or secrets
    "transport",
    *(name for name, each in settings_of(WorkerConfig).items() if each.kind.metavar in _NUMERIC_METAVARS),
]


class Series:
    """The series of a label: the name of each key, and the totals of each name.

    The first `limit` keys have their own name, the others are `other`. A key keeps its name while it exists.
    A new key, never one counted as `other`, replaces a removed one. A total includes removed sources until
    the last source of the name is removed.
    """

    def __init__(self, limit: int, always_named: Collection[str] = ()) -> None:
        """Start without keys. The keys in `always_named` have their own name regardless of the limit."""
        self._limit = limit
        self._always = frozenset(always_named)
        self._named_keys: set[str] = set()
        self._others: set[str] = set()
        self._last: dict[Hashable, tuple[str, Sequence[int]]] = {}
        self._removed_totals: dict[str, list[int]] = {}

    def names_of(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the name of each key. The argument must contain all current keys."""
        keys = list(keys)
        self._named_keys.intersection_update(keys)
        self._others.intersection_update(keys)
        for key in keys:
            if not (key in self._always or key in self._named_keys or key in self._others):
                (self._named_keys if len(self._named_keys) < self._limit else self._others).add(key)
        return {key: OTHER if key in self._others else key for key in keys}

    def add_up(self, sources: Mapping[Hashable, tuple[str, Sequence[int]]]) -> dict[str, list[int]]:
        """Return the totals by name. `sources` has the name and the counts of each current source."""
        ended = self._removed_totals
        for key in self._last.keys() - sources.keys():
            _add(ended, *self._last[key])
        self._last = dict(sources)
        names = {name for name, _ in sources.values()} | {OTHER}
        self._removed_totals = {name: counts for name, counts in ended.items() if name in names}  # bounded
        totals = {name: counts.copy() for name, counts in self._removed_totals.items()}
        for name, counts in sources.values():
            _add(totals, name, counts)
        return totals


def _add(totals: dict[str, list[int]], name: str, counts: Sequence[int]) -> None:
    before = totals.get(name)
    totals[name] = list(counts) if before is None else [a + b for a, b in zip(before, counts, strict=True)]


class WorkerCollector(Collector):
    """Makes metric families from statuses. Remembers the tasks and peers that have their own series."""

    def __init__(
        self, read: Callable[[], pb.GetStatusResponse], config: WorkerConfig, memory_limit_bytes: int
    ) -> None:
        """Export the status that `read` returns on any thread; its exceptions fail the scrape."""
        self._read = read
        self._config = {name: str(getattr(config, name)) for name in _EXPORTED_SETTINGS}
        self._memory_limit = memory_limit_bytes
        self._capacity = config.receive_queue_messages
        self._lock = threading.Lock()  # scrapes can run in parallel
        max_series = config.metrics_series
        self._tasks = Series(max_series)
        self._peers = Series(max_series)
        # Metrics are public. With permission rules, only operators and an identity itself may see its name.
        self._identities = Series(0 if config.permissions_file else max_series)
        self._lossy_peers = Series(max_series, always_named=(OTHER,))
        self._sources = Series(max_series, always_named=(CLIENT_SOURCE, OTHER))

    def collect(self) -> Iterable[Metric]:
        """Return all families of one status. Thread-safe."""
        with self._lock:
            return list(self._families(self._read()))

    def _families(self, status: pb.GetStatusResponse) -> Iterator[Metric]:
        yield info(
            "build",
            "Versions, worker id and topology of this worker.",
            {
                "version": status.version,
                "python": platform.python_version(),
                "grpc": grpc.__version__,
                "worker_id": status.worker_id,
                "topology": status.topology,
            },
        )
        yield info(
            "config", "Effective settings of this worker: transport, sizes, counts and times.", self._config
        )
        yield gauge("ready", "1 if the worker is ready, else 0.", int(not status.not_ready_reason))
        yield gauge("memory_limit_bytes", _MEMORY_LIMIT, self._memory_limit)
        if status.HasField("smallest_window_messages"):
            yield gauge("smallest_window_messages", _SMALLEST_WINDOW, status.smallest_window_messages)
        for make, families in _UNLABELLED.items():
            for name, help_text in families.items():
                yield make(name, help_text, attrgetter(_FIELD_OF.get(name, name))(status))
        for name, (help_text, label, known) in _KNOWN_LABELS.items():
            # A 0 for each missing value lets Prometheus see its first increase.
            counts = {**dict.fromkeys(map(str, known), 0), **attrgetter(_FIELD_OF.get(name, name))(status)}
            yield counter_by(name, help_text, label, counts.items())
        sessions = {"connected": status.sharing_session_count, "resumable": status.resumable_session_count}
        yield gauge_by("senders", _SENDERS, "state", sessions.items())
        staged = {"memory": status.sinks.memory_bytes, "disk": status.sinks.disk_bytes}
        yield gauge_by("staged_bytes", _STAGED, "place", staged.items())
        yield from self._received_families(status.received)
        yield self._identity_family(status.identities)
        yield self._lost_family(status.possibly_lost_messages)
        yield from self._peer_families(status.peers)
        yield from self._task_families(status.tasks)
        family = CounterMetricFamily("tuplewire_blocking_seconds", _BLOCKING, labels=["task", "place"])
        for each in status.blocking:
            family.add_metric([each.task, each.place], each.seconds)
        yield family

    def _identity_family(self, identities: Mapping[str, pb.IdentitySessions]) -> Metric:
        names = self._identities.names_of(identities)
        family = GaugeMetricFamily("tuplewire_identity_senders", _IDENTITIES, labels=["identity", "state"])
        for state, field in (("connected", "sharing"), ("resumable", "resumable")):
            sums = Counter[str]()
            for identity, counts in identities.items():
                sums[names[identity]] += getattr(counts, field)
            for name, count in sums.items():
                family.add_metric([name, state], count)
        return family

    def _received_families(self, received: Iterable[pb.ReceiveCount]) -> Iterator[Metric]:
        names = self._sources.names_of(count.source for count in received)
        by_name = self._sources.add_up(
            {c.source: (names[c.source], (c.messages, c.frames, c.bytes)) for c in received}
        )
        yield from _columns(_RECEIVED, "source", by_name)

    def _lost_family(self, possibly_lost: Mapping[str, int]) -> Metric:
        names = self._lossy_peers.names_of(possibly_lost)
        by_name = Counter[str]()
        for worker_id, lost in possibly_lost.items():
            by_name[names[worker_id]] += lost
        return counter_by("peer_possibly_lost_messages", _POSSIBLY_LOST, "peer", by_name.items())

    def _peer_families(self, peers: Sequence[pb.PeerStatus]) -> Iterator[Metric]:
        names = self._peers.names_of(peer.worker_id for peer in peers)
        rows: dict[Hashable, tuple[str, Sequence[int]]] = {}
        pending = Counter[str]()
        up: dict[str, int] = {}
        for peer in peers:
            ledger, name = peer.ledger, names[peer.worker_id]
            sent = (peer.sent_messages, peer.sent_frames, peer.sent_bytes, peer.reconnects)
            settled = (ledger.acknowledged, sum(ledger.dropped.values()))
            rows[peer.connection_number] = (name, (*sent, ledger.accepted, *settled))
            pending[name] += ledger.pending
            up[name] = min(up.get(name, 1), int(peer.connected))  # `other`: 1 only if all are connected
        yield from _columns(_SENT, "peer", self._peers.add_up(rows))
        yield gauge_by("peer_pending_messages", _PENDING, "peer", pending.items())
        yield gauge_by("connection_up", _UP, "peer", up.items())

    def _task_families(self, tasks: Sequence[pb.TaskStatus]) -> Iterator[Metric]:
        names = self._tasks.names_of([str(task.task) for task in tasks])
        # `other` has the sums of its tasks; `subscribed` is 1 only if all of them have a consumer.
        messages, queued_bytes = Counter[str](), Counter[str]()
        subscribed: dict[str, int] = {}
        oldest: dict[str, float] = {}
        counts: dict[Hashable, tuple[str, Sequence[int]]] = {}
        for name, task in zip(names.values(), tasks, strict=True):
            messages[name] += task.queued_messages
            queued_bytes[name] += task.queued_bytes
            subscribed[name] = min(subscribed.get(name, 1), int(task.subscribed))
            oldest[name] = max(oldest.get(name, 0.0), task.oldest_seconds)
            at = task.task, task.base_sequence  # the counts of a task that returns start at zero
            counts[at] = name, (task.received_messages, task.acknowledged_messages)
        capacity = {name: count * self._capacity for name, count in Counter(names.values()).items()}
        columns: Sequence[Mapping[str, float]] = (messages, queued_bytes, capacity, subscribed, oldest)
        for (family, help_text), values in zip(_QUEUE, columns, strict=True):
            yield gauge_by(family, help_text, "task", values.items())
        yield from _columns(_TASK_COUNTS, "task", self._tasks.add_up(counts))
        yield gauge("fullest_queue_ratio", _FULLEST, max((task.load for task in tasks), default=0.0))


_UNLABELLED: Mapping[Callable[[str, str, Any], Metric], Mapping[str, str]] = {
    gauge: {
        "assignment_version": "Version of the current assignment; 0: none yet.",
        "newest_assignment_version": "Newest known assignment version of any worker; above the current one: "
        "this worker lags.",
        "assignment_refused": "1 while the assignment file is not applied because it could not be read or "
        "used, else 0.",
        "silent_streams": "Streams without a first message yet; beyond "
        f"{MAX_PENDING_HANDSHAKES:,}, the oldest is refused.",
        "pending_messages": "Accepted messages that are neither acknowledged nor dropped yet.",
        "rejected_waiting_messages": "Copies of rejected messages, including dead letters, that wait for "
        "their delay, or for a worker with their task.",
        "predecessor_possibly_lost_messages": "Upper bound on messages that may be lost with the previous "
        "process of this worker.",
        "published_waiting_messages": "Messages published by Spark's sinks that wait for space in their "
        "tasks' queues, or for an owner.",
        "taps": "Open taps (tuplewire tap).",
    },
    counter: {
        "grpc_server_restarts": "Restarts of gRPC's server at the same addresses after a failure.",
        "accepted_messages": "Messages accepted from clients and peers.",
        "acknowledged_messages": "Messages forwarded or delivered, and acknowledged by the receiver.",
        "rejections": "Rejections of messages by consumers.",
        "redelivered_messages": "Messages delivered that may have been delivered before, to this "
        "or another consumer.",
        "staging_waits": "Requests of Spark's sinks that found no space for staging; they retry within two "
        "seconds.",
        "tapped_messages": "Copies of messages that taps have shown.",
        "tap_omitted_messages": "Messages that a tap omitted because of its rate or limits; their delivery "
        "is not affected.",
    },
    histogram: {
        "queue_wait_seconds": "Time from a message's arrival in a receive queue to its first delivery.",
        "send_to_ack_seconds": "Time from sending a message to another worker to its acknowledgement.",
        "end_to_end_seconds": "Time from acceptance by the sender to acknowledgement by a consumer here, by "
        "both hosts' clocks.",
        "event_loop_lag_seconds": "Delay of the event loop at a probe that is due four times a second.",
    },
}
"""The help of the families without labels, by type and name."""
_FIELD_OF = {
    "pending_messages": "ledger.pending",
    "published_waiting_messages": "sinks.waiting_messages",
    "taps": "taps.open_taps",
    "accepted_messages": "ledger.accepted",
    "acknowledged_messages": "ledger.acknowledged",
    "dropped_messages": "ledger.dropped",
    "staging_waits": "sinks.waits",
    "tapped_messages": "taps.shown_messages",
    "tap_omitted_messages": "taps.omitted_messages",
    "queue_wait_seconds": "queue_wait",
    "send_to_ack_seconds": "send_to_ack",
    "end_to_end_seconds": "end_to_end",
    "event_loop_lag_seconds": "loop_lag",
}
"""The field of the status for each family that has another name."""
_AGE = "Time that the worker has spent in each state; the sum of all states is its age."
_KNOWN_LABELS: Mapping[str, tuple[str, str, Iterable[str]]] = {
    "refused_streams": ("Streams that were refused, or failed, by error code.", "code", _CODES),
    "refused_messages": ("Individually refused messages, by error code.", "code", _CODES),
    "dropped_messages": ("Accepted messages that were dropped, by reason.", "reason", DropReason),
    "state_seconds": (_AGE, "state", TimeState),
}
"""The help, the label and its known values, of families that have a sample for each of these values."""
_MEMORY_LIMIT = "Memory limit of the process: the limit of its control groups, or the machine's memory."
_SMALLEST_WINDOW = "Maximum number of outstanding messages of each sender to the fullest task."
_SENDERS = "Senders by state: connected, or since at most 3 s disconnected, and resumable."
_PENDING = "Messages for another worker that it has not acknowledged yet."
_UP = "1 while the session with another worker is established, else 0; for `other`: with all."
_FULLEST = "Fill level of the fullest receive queue, in messages or bytes, from 0 to 1."
_STAGED = "Bytes that Spark's sinks have staged, or published without queue space, by place: memory or disk."
_POSSIBLY_LOST = "Upper bound on messages that another worker acknowledged and that may be lost with it."
_BLOCKING = (
    "Time that a task has blocked others; place: local, or the worker that accepts no messages for it."
)
_IDENTITIES = "Senders by identity, from token or certificate, and by state; see tuplewire_senders."
_TASK_COUNTS = (
    ("task_received_messages", "Messages received for a task."),
    ("task_acknowledged_messages", "Messages acknowledged by a task's consumer."),
)
_SOURCE = "by source: a worker's id, executors for the program in this process, or client for others."
_RECEIVED = (
    ("received_messages", f"Messages received, {_SOURCE}"),
    ("received_frames", f"Frames received, {_SOURCE}"),
    ("received_bytes", f"Payload bytes received, {_SOURCE}"),
)
_SENT = (
    ("sent_messages", "Messages sent to another worker."),
    ("sent_frames", "Frames sent to another worker."),
    ("sent_bytes", "Payload bytes sent to another worker."),
    ("reconnects", "Times that the connection to another worker was established again."),
    ("peer_accepted_messages", "Messages accepted for another worker."),
    ("peer_acknowledged_messages", "Messages acknowledged by another worker."),
    ("peer_dropped_messages", "Messages for another worker that were dropped."),
)
_QUEUE = (
    ("queue_messages", "Messages in a task's receive queue: waiting, or delivered and not acknowledged."),
    ("queue_bytes", "Payload bytes in a task's receive queue."),
    ("queue_capacity_messages", "Maximum number of messages in a task's receive queue."),
    ("queue_subscribed", "1 while a consumer is subscribed to the task, else 0; for `other`: to all tasks."),
    (
        "queue_oldest_seconds",
        "Age of the oldest message in a task's receive queue since its sender accepted it; 0: empty queue.",
    ),
)


def _columns(
    families: Iterable[tuple[str, str]], label: str, rows: Mapping[str, Sequence[int]]
) -> Iterator[Metric]:
    for column, (family, help_text) in enumerate(families):
        yield counter_by(family, help_text, label, [(name, row[column]) for name, row in rows.items()])
