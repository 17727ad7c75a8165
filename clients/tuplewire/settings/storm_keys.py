"""Keys of Storm's configuration that have no meaning here, or another one. Source: Storm's `Config`.

A topology that moves here from Storm brings its configuration along. A key that changes nothing is accepted,
and a warning says once why. A key that would protect or keep something which nothing here protects or keeps
is refused, and the error says what to write instead. Keys that are settings here are not in these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_JVM = "there is no JVM"
_BATCHES = "messages gather while a connection is busy, and queues are bounded by the receive_queue settings"
_BACKPRESSURE = "backpressure is always on, by credit for each task"
_WAITING = "what waits sleeps until there is something to do"
_PLACED = "Spark or Kubernetes places workers and bounds them"
_METRICS = "metrics are Prometheus', at the admin address"
_LOGS = "the log is set by log_level and log_format"
_NETTY = "its transport is not here; `grpc` has settings of its own, tuplewire.grpc.*"
_MULTILANG = "there are no multilang components; programs of other languages connect to a worker"
_TRIDENT = "there is no Trident; Spark's queries are exactly-once"
_DAEMON = "there is no such daemon"
_ACKERS = "topology.acker.executors says how many acker tasks there are, with one executor for each"
_STATE = "bolts keep no state here"

_WITHOUT_EFFECT: Mapping[str, str] = {
    "backpressure.disruptor.": _BACKPRESSURE,
    "storm.cluster.metrics.": _METRICS,
    "storm.cluster.state.store": _DAEMON,
    "storm.messaging.netty.": _NETTY,
    "storm.resource.isolation.": _PLACED,
    "supervisor.blobstore.": _DAEMON,
    "supervisor.childopts": _JVM,
    "supervisor.cpu.capacity": _PLACED,
    "supervisor.enable": _DAEMON,
    "supervisor.heartbeat.frequency.secs": _DAEMON,
    "supervisor.localizer.": _DAEMON,
    "supervisor.memory.capacity.mb": _PLACED,
    "supervisor.monitor.frequency.secs": _DAEMON,
    "supervisor.queue.size": _DAEMON,
    "supervisor.supervisors": _DAEMON,
    "supervisor.supervisors.commands": _DAEMON,
    "supervisor.thrift.": _DAEMON,
    "supervisor.worker.heartbeats.max.timeout.secs": _DAEMON,
    "supervisor.worker.timeout.secs": "nimbus.task.timeout.secs says when an executor counts as stuck",
    "task.credentials.poll.secs": _DAEMON,
    "task.heartbeat.frequency.secs": "worker.heartbeat.frequency.secs is for executors, too",
    "task.refresh.poll.secs": _DAEMON,
    "topology.acker.cpu.": _PLACED,
    "topology.acker.resources.": _PLACED,
    "topology.acker.tasks": _ACKERS,
    "topology.auto-credentials": _DAEMON,
    "topology.backpressure.": _BACKPRESSURE,
    "topology.batch.flush.interval.millis": _BATCHES,
    "topology.blobstore.map": "pass files by Spark, or by a volume",
    "topology.bolt.wait.": _WAITING,
    "topology.bolts.message.id.field.name": _STATE,
    "topology.bolts.outgoing.overflow.buffer.enable": _BATCHES,
    "topology.bolts.watermark.event.interval.ms": "a tuple's time moves its stream's watermark at once",
    "topology.builtin.metrics.bucket.size.secs": _METRICS,
    "topology.classpath": _JVM,
    "topology.component.": _PLACED,
    "topology.debug": _LOGS,
    "topology.disable.loadaware": "load goes with the acknowledgements, and costs no message",
    "topology.disruptor.": _BATCHES,
    "topology.enable.v2.metrics.tick": _METRICS,
    "topology.error.throttle.interval.secs": "each error is told, and counted",
    "topology.enable.message.timeouts": "topology.message.timeout.secs is 0 for tuples without a timeout",
    "topology.eventlogger.": _LOGS,
    "topology.executor.overflow.limit": _BATCHES,
    "topology.executor.send.buffer.size": _BATCHES,
    "topology.fall.back.on.java.serialization": _JVM,
    "topology.groups": "who may do what says the permissions file of a worker",
    "topology.isolate.": _PLACED,
    "topology.kryo.": _JVM,
    "topology.localityaware.": _PLACED,
    "topology.logging.sensitivity": _LOGS,
    "topology.max.error.report.per.interval": "each error is told, and counted",
    "topology.max.replication.wait.time.sec": _DAEMON,
    "topology.max.task.parallelism": "a component has the tasks that its declaration says",
    "topology.metrics.": _METRICS,
    "topology.min.replication.count": _DAEMON,
    "topology.multilang.": _MULTILANG,
    "topology.optimize": _BATCHES,
    "topology.priority": _PLACED,
    "topology.producer.batch.size": _BATCHES,
    "topology.ras.": _PLACED,
    "topology.readonly.": "who may do what says the permissions file of a worker",
    "topology.receiver.buffer.size": (
        "in Storm it is how many messages a thread takes at once; a task's queue is bounded by "
        "topology.executor.receive.buffer.size"
    ),
    "topology.scheduler.": _PLACED,
    "topology.shellbolt.": _MULTILANG,
    "topology.skip.missing.kryo.registrations": _JVM,
    "topology.spout.recvq.skips": _WAITING,
    "topology.spout.wait.": _WAITING,
    "topology.spread.components": _PLACED,
    "topology.state.": _STATE,
    "topology.stats.": _METRICS,
    "topology.submitter.principal": _DAEMON,
    "topology.subprocess.": _MULTILANG,
    "topology.transfer.": _BATCHES,
    "topology.trident.": _TRIDENT,
    "topology.tuple.serializer": "tuples are MessagePack",
    "topology.users": "who may do what says the permissions file of a worker",
    "topology.v2.metrics.tick.interval.seconds": _METRICS,
    "topology.worker.cpu.": _PLACED,
    "topology.worker.gc.childopts": _JVM,
    "topology.worker.logwriter.childopts": _LOGS,
    "topology.worker.max.heap.size.mb": _JVM,
    "topology.worker.receiver.thread.count": "a worker receives on its event loop",
    "topology.worker.shared.thread.pool.size": "there is no shared pool of threads",
    "topology.worker.timeout.secs": "nimbus.task.timeout.secs says when an executor counts as stuck",
    "worker.gc.childopts": _JVM,
    "worker.heap.memory.mb": _JVM,
    "worker.log.level.reset.poll.secs": _LOGS,
    "worker.max.timeout.secs": _DAEMON,
    "worker.metrics": _METRICS,
    "worker.profiler.": _JVM,
}
"""Why each key changes nothing; one that ends with a dot stands for all that begin so."""

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
        "would call nobody: count in the spouts and bolts, or read /metrics (docs/how-to/from-storm.md)"
    ),
    "topology.bolts.late.tuple.stream": "has one place here: late tuples go to the stream `late`",
    "topology.bolts.tuple.timestamp.": _WINDOW,
    "topology.bolts.window.": _WINDOW,
    "topology.state.provider": "would keep nothing: keep state in a Spark query, or in a store of your own",
    "topology.tasks": "has one place here: write set_num_tasks() at the component",
}
"""What to do about keys that nothing here can stand for, unless they are off: null, false or empty."""

_IN_MEMORY = "org.apache.storm.state.InMemoryKeyValueStateProvider"
_OFF: tuple[Any, ...] = (None, False, "", "false", [], {}, _IN_MEMORY)
"""Also Storm's default for state, which keeps as little there: it dies with its worker."""

_TRANSPORTS: Mapping[str, str] = {"netty": "grpc", "zmq": "zmq", "local": "local"}
"""Ours, by the package of Storm's."""

_warned: set[str] = set()


def is_storms(key: str, value: Any) -> bool:
    """Return whether Storm has a key that is no setting here, and deal with it.

    Warns once for each key that has no effect. Raises ConfigError for one whose effect nothing here has.
    """
    refusal = _entry(_REFUSED, key)
    if refusal is not None and value not in _OFF:
        raise ConfigError(f"{key} {refusal}")
    reason = "it is off, or Storm's default" if refusal is not None else _entry(_WITHOUT_EFFECT, key)
    if reason is not None and key not in _warned:
        _warned.add(key)
        logger.warning("setting.no_effect", extra={"key": key, "reason": reason})
    return reason is not None


def _entry(entries: Mapping[str, str], key: str) -> str | None:
    """Return what stands for a key: under itself, or under how it begins."""
    begins = (key[: at + 1] for at, each in enumerate(key) if each == ".")
    return next((entries[each] for each in (key, *begins) if each in entries), None)


def our_transport(name: str) -> str | None:
    """Return the transport that stands for a class of Storm's, such as `...messaging.netty.Context`."""
    parts = name.split(".")
    if ".messaging." not in name or not {"storm", "backtype"} & set(parts[:3]):
        return None
    return next((ours for package, ours in _TRANSPORTS.items() if package in parts), None)
