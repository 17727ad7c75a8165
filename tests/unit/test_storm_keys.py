"""Keys of Storm's configuration that are no settings here: accepted with a note, or refused with advice."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire.settings import storm_keys
from tuplewire_service.config.config_sources import load
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.cluster import cluster_of

FROM_STORM: dict[str, Any] = {
    "java.library.path": "/usr/lib",
    "nimbus.seeds": ["localhost"],
    "storm.cluster.mode": "local",
    "storm.messaging.netty.authentication": False,
    "storm.messaging.netty.buffer_size": 5242880,
    "storm.messaging.netty.tls.enable": False,
    "storm.resource.isolation.plugin": "org.apache.storm.container.cgroup.CgroupManager",
    "storm.resource.isolation.plugin.enable": False,
    "storm.zookeeper.servers": ["localhost"],
    "supervisor.childopts": "-Xmx256m",
    "supervisor.cpu.capacity": 400.0,
    "supervisor.slots.ports": [0, 0, 0, 0],
    "supervisor.supervisors.commands": [],
    "supervisor.worker.timeout.secs": 30,
    "task.heartbeat.frequency.secs": 3,
    "topology.acker.executors": None,
    "topology.auto.task.hooks": [],
    "topology.backpressure.enable": True,
    "topology.debug": False,
    "topology.disruptor.wait.strategy": "com.lmax.disruptor.BlockingWaitStrategy",
    "topology.enable.message.timeouts": True,
    "topology.executor.receive.buffer.size": 1024,
    "topology.max.task.parallelism": None,
    "topology.metrics.consumer.register": [{"class": "org.apache.storm.metric.LoggingMetricsConsumer"}],
    "topology.name": "words",
    "topology.receiver.buffer.size": 8,
    "topology.scheduler.strategy": "org.apache.storm.scheduler.resource.strategies.Any",
    "topology.state.checkpoint.interval.ms": 1000,
    "topology.state.provider": "org.apache.storm.state.InMemoryKeyValueStateProvider",
    "topology.state.provider.config": None,
    "topology.tasks": None,
    "topology.transfer.buffer.size": 1024,
    "topology.v2.metrics.tick.interval.seconds": 60,
    "topology.worker.gc.childopts": "",
    "topology.workers": 2,
    "ui.port": 8080,
    "worker.heap.memory.mb": 768,
    "zmq.hwm": 0,
}
"""Much of what a cluster of Storm hands to a topology."""


@pytest.fixture(autouse=True)
def _all_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which notes the process has written."""
    monkeypatch.setattr(storm_keys, "_warned", set())


def test_a_configuration_of_storm_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """What has a meaning here counts; what changes nothing is noted, once, with the reason."""
    for _ in range(2):
        assert TopologySettings.from_conf(FROM_STORM).workers == 2
        assert cluster_of(FROM_STORM)
        TransportFactory.make_context(FROM_STORM).term()
    notes = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(notes) == len(set(notes))
    told = {note.split("key=")[1].split()[0] for note in notes}
    assert {"topology.debug", "topology.receiver.buffer.size", "storm.messaging.netty.buffer_size"} <= told
    assert not told & {"supervisor.slots.ports", "topology.workers", "zmq.hwm", "nimbus.seeds"}
    assert "topology.executor.receive.buffer.size" in next(note for note in notes if ".receiver." in note)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("storm.messaging.netty.tls.enable", True, "tls_certificate"),
        ("storm.messaging.netty.tls.keystore.path", "/etc/keys.jks", "tls_certificate"),
        ("storm.messaging.netty.authentication", True, "tokens"),
        ("storm.resource.isolation.plugin.enable", True, "pod's limits"),
        ("topology.state.provider", "org.apache.storm.redis.state.RedisKeyValueStateProvider", "Spark query"),
        ("topology.auto.task.hooks", ["a.Hook"], "count in the spouts and bolts"),
        ("topology.bolts.late.tuple.stream", "later", "`late`"),
        ("topology.bolts.tuple.timestamp.field.name", "time", "`window`"),
        ("topology.bolts.window.length.count", 10, "`window`"),
        ("topology.tasks", 4, "set_num_tasks"),
    ],
)
def test_what_nothing_here_stands_for_is_refused(key: str, value: Any, advice: str) -> None:
    """A key that would protect, bound or keep something is never swallowed."""
    for read in (TopologySettings.from_conf, cluster_of, TransportFactory.make_context):
        with pytest.raises(ConfigError, match=f"{key} .*{advice}"):
            read({key: value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("topology.max.spout.pendign", "topology.max.spout.pending"),
        ("zmq.lingr.millis", "zmq.linger.millis"),
        ("storm.messaging.transprot", "storm.messaging.transport"),
        ("supervisor.slot.ports", "supervisor.slots.ports"),
    ],
)
def test_typing_errors_are_still_found(key: str, meant: str) -> None:
    """A key that neither we nor Storm know is an error, which names the nearest."""
    reads = (TopologySettings.from_conf, cluster_of, TransportFactory.make_context)
    with pytest.raises(ConfigError, match=meant):
        [read({key: 1}) for read in reads]


def test_a_file_of_a_worker(tmp_path: Path) -> None:
    """A queue of Storm's default of 8, which is a batch there, makes no queue of 8 messages."""
    file = tmp_path / "worker.toml"
    file.write_text('"topology.receiver.buffer.size" = 8\n"topology.debug" = false\n', encoding="utf-8")
    assert load({}, {}, file).config.receive_queue_messages == 131_072
    file.write_text('"topology.executor.receive.buffer.size" = 64\n', encoding="utf-8")
    assert load({}, {}, file).config.receive_queue_messages == 64


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("org.apache.storm.messaging.netty.Context", "grpc"),
        ("backtype.storm.messaging.netty.Context", "grpc"),
        ("org.apache.storm.messaging.local.Context", "local"),
        ("backtype.storm.messaging.zmq", "zmq"),
    ],
)
def test_transports_of_storm_have_a_hint(name: str, ours: str, tmp_path: Path) -> None:
    """A class of Storm's is answered by the name of what stands for it here."""
    with pytest.raises(ConfigError, match=f"class of Storm's: write '{ours}'"):
        TransportFactory.make_context({TRANSPORT_KEY: name})
    file = tmp_path / "worker.toml"
    file.write_text(f'{TRANSPORT_KEY} = "{name}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=f"class of Storm's: write '{ours}'"):
        load({}, {}, file)


def test_a_transport_of_null_is_the_default() -> None:
    """As for every key, null is as good as not there."""
    context = TransportFactory.make_context({TRANSPORT_KEY: None})
    assert type(context).__name__ == "GrpcContext"
    context.term()


class Broken:
    """A plug-in whose constructor fails."""

    def __init__(self) -> None:
        raise OSError("no such device")


def test_a_failing_plug_in_is_named() -> None:
    """What its constructor raises is told with the name that the configuration has."""
    with pytest.raises(ConfigError, match=r"Broken' of .* cannot be made: OSError: no such"):
        TransportFactory.make_context({TRANSPORT_KEY: f"{__name__}:Broken"})
