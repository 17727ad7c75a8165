"""Keys of Storm's configuration that have no meaning here, or a different one. Source: Storm's `Config`.

A topology from Storm keeps its configuration. A key without an effect is accepted, with one warning that
explains the reason. A key that would protect or store something is refused if nothing here does so, and the
error describes the replacement. Keys that are settings here are not in these tables.

Used by settings.py, worker_config.py and factory.py. Owns the logged keys. Thread-safe.
Design: docs/design/rows-and-memory.md (settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_KEYS_WITHOUT_EFFECT: Mapping[str, str] = {
    "backpressure is always on, by credit for each task": "backpressure.disruptor. topology.backpressure.",
    "metrics are Prometheus', at the admin address": (
        "executor.metrics.frequency.secs storm.cluster.metrics. topology.builtin.metrics.bucket.size.secs "
        "topology.enable.send.iconnection.metrics topology.enable.v2.metrics.tick topology.metrics. "
        "topology.stats. topology.v2.metrics.tick.interval.seconds topology.worker.metrics worker.metrics"
    ),
    "there is no such daemon": (
        "storm.cluster.state.store supervisor.blobstore. supervisor.enable "
        "supervisor.heartbeat.frequency.secs supervisor.localizer. supervisor.monitor.frequency.secs "
        "supervisor.queue.size supervisor.supervisors supervisor.supervisors.commands "
        "supervisor.thrift. supervisor.worker.heartbeats.max.timeout.secs "
        "topology.max.replication.wait.time.sec topology.min.replication.count "
        "topology.submitter.principal topology.worker.nimbus. worker.max.timeout.secs"
    ),
    "connections follow each assignment immediately, and are checked every second": "task.refresh.poll.secs",
    "certificates and tokens are files, which are read again when they change": (
        "task.credentials.poll.secs topology.auto-credentials"
    ),
    "a worker runs the version that is installed": (
        "supervisor.worker.default.version supervisor.worker.version. topology.version"
    ),
    "supervisor.run.worker.as.user needs no launcher program": "supervisor.worker.launcher",
    "its transport is not here; `grpc` has settings of its own, tuplewire.grpc.*": "storm.messaging.netty.",
    "Spark or Kubernetes places workers and bounds them": (
        "storm.resource.isolation. supervisor.cpu.capacity supervisor.memory.capacity.mb "
        "supervisor.resources. topology.acker.cpu. topology.acker.resources. topology.component. "
        "topology.isolate. topology.localityaware. topology.oci. topology.priority topology.ras. "
        "topology.scheduler. topology.spread.components topology.worker.cpu."
    ),
    "there is no JVM": (
        "supervisor.childopts topology.classpath topology.classpath. "
        "topology.fall.back.on.java.serialization topology.kryo. "
        "topology.skip.missing.kryo.registrations topology.worker.gc.childopts "
        "topology.worker.max.heap.size.mb worker.gc.childopts worker.heap.memory.mb worker.profiler."
    ),
    "nimbus.task.timeout.secs is the time after which an executor counts as stuck": (
        "supervisor.worker.timeout.secs topology.worker.timeout.secs"
    ),
    "worker.heartbeat.frequency.secs is for executors, too": "task.heartbeat.frequency.secs",
    "topology.acker.executors is the number of acker tasks, with one executor for each": (
        "topology.acker.tasks"
    ),
    "messages gather while a connection is busy, and queues are bounded by the receive_queue settings": (
        "topology.bolts.outgoing.overflow.buffer.enable topology.disruptor. "
        "topology.executor.overflow.limit topology.executor.send.buffer.size "
        "topology.optimize topology.producer.batch. topology.transfer."
    ),
    "pass files by Spark, or by a volume": "topology.blobstore.map worker.blob.update.poll.interval.secs",
    "executors without work sleep until a message arrives": (
        "topology.bolt.wait. topology.spout.recvq.skips topology.spout.wait."
    ),
    "bolts keep no state here": "topology.bolts.message.id.field.name topology.state.",
    "a tuple's time moves its stream's watermark at once": "topology.bolts.watermark.event.interval.ms",
    "the log is set by log_level and log_format": (
        "topology.debug topology.event.logger.register topology.eventlogger. topology.logging. "
        "topology.worker.logwriter.childopts worker.log.level.reset.poll.secs"
    ),
    "load_aware_shuffle_grouping chooses by the load, which acknowledgements report": (
        "topology.disable.loadaware topology.disable.loadaware.messaging topology.upstream.feedback."
    ),
    "each error is reported, and counted": (
        "topology.error.throttle.interval.secs topology.max.error.report.per.interval"
    ),
    "topology.message.timeout.secs is 0 for tuples without a timeout": "topology.enable.message.timeouts",
    "the permissions file of a worker grants permissions": (
        "topology.groups topology.readonly. topology.users"
    ),
    "a component has the tasks of its declaration": "topology.max.task.parallelism",
    "there are no multilang components; programs of other languages connect to a worker": (
        "topology.multilang. topology.shellbolt. topology.subprocess."
    ),
    (
        "in Storm it is the batch size of a thread; a task's queue is bounded by "
        "topology.executor.receive.buffer.size"
    ): ("topology.receiver.buffer.size"),
    "there is no Trident; Spark's queries are exactly-once": ("topology.transactional.id topology.trident."),
    "tuples are MessagePack, uncompressed": "topology.tuple.compression. topology.tuple.serializer",
    "a worker receives on its event loop": "topology.worker.receiver.thread.count",
    "there is no shared pool of threads": "topology.worker.shared.thread.pool.size",
}
"""The keys without an effect, by reason. A key that ends with a dot stands for all keys with that prefix."""
_REASON_BY_KEY = {key: reason for reason, keys in _KEYS_WITHOUT_EFFECT.items() for key in keys.split()}

_TLS = (
    "would be ignored, and messages would travel in the open: set tls_certificate, tls_key and tls_ca of the "
    "workers in place of it (docs/how-to/secure.md)"
)
_WINDOW = "has one place here: give the WindowedBolt its `window` (docs/how-to/topology.md)"
_REFUSED: Mapping[str, str] = {
    "storm.messaging.netty.authentication": (
        "would be ignored: give workers certificates or tokens in place of it (docs/how-to/secure.md)"
    ),
    "storm.messaging.netty.tls.": _TLS,
    "storm.resource.isolation.plugin.enable": (
        "would bound nothing: bound memory and CPU where workers run, by Spark's settings or a pod's limits"
    ),
    "topology.auto.task.hooks": (
        "names classes of Java: call context.add_task_hook() in open() or prepare() "
        "(docs/how-to/from-storm.md)"
    ),
    "topology.bolts.late.tuple.stream": "has one place here: late tuples go to the stream `late`",
    "topology.bolts.tuple.timestamp.": _WINDOW,
    "topology.bolts.window.": _WINDOW,
    "topology.state.provider": "would keep nothing: keep state in a Spark query, or in a store of your own",
    "topology.tasks": "has one place here: write set_num_tasks() at the component",
}
"""Hints for keys without an equivalent here, which are refused unless off: null, false or empty."""

_IN_MEMORY = "org.apache.storm.state.InMemoryKeyValueStateProvider"
_OFF: tuple[Any, ...] = (None, False, "", "false", [], {}, _IN_MEMORY)
"""Includes Storm's default for state, which is in memory and lost with its worker in Storm, too."""

_TRANSPORTS: Mapping[str, str] = {"netty": "grpc", "zmq": "zmq", "local": "local"}
"""Tuplewire's transports by the package of Storm's."""

_warned: set[str] = set()


def accept_storm_key(key: str, value: Any) -> bool:
    """Return True for a key of Storm without an effect here, and log one warning for each.

    Raises ConfigError for an effect that is missing here.
    """
    refusal = _entry(_REFUSED, key)
    if refusal is not None and value not in _OFF:
        raise ConfigError(f"{key} {refusal}")
    reason = "it is off, or Storm's default" if refusal is not None else _entry(_REASON_BY_KEY, key)
    if reason is not None and key not in _warned:
        _warned.add(key)
        logger.warning("setting.no_effect", extra={"key": key, "reason": reason})
    return reason is not None


def _entry(entries: Mapping[str, str], key: str) -> str | None:
    """Return the entry of a key or of its prefix, or None."""
    begins = (key[: at + 1] for at, each in enumerate(key) if each == ".")
    return next((entries[each] for each in (key, *begins) if each in entries), None)


def refuse_storm_transport(name: str) -> None:
    """Raise ConfigError, with the transport to use, for a Storm class like `...messaging.netty.Context`."""
    parts = name.split(".")
    if ".messaging." in name and {"storm", "backtype"} & set(parts[:3]):
        for ours in (ours for package, ours in _TRANSPORTS.items() if package in parts):
            raise ConfigError(f"{name!r} is a class of Storm: write {ours!r} instead")
