"""Storm's keys that are not settings: accepted with a note, or refused with advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire.settings import storm_keys
from tuplewire_service.config.config_sources import load, settings_in
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.cluster import cluster_of
from tuplewire_topology.clusters.launching import LaunchSettings

STORM: dict[str, Any] = json.loads(
    Path(__file__).with_name("storm_defaults.json").read_text(encoding="utf-8")
)["defaults"]
"""Every key of Storm's `defaults.yaml` and `Config`, with its default, or null without one."""

FROM_STORM: dict[str, Any] = {
    **STORM,
    "storm.cluster.mode": "local",
    "storm.messaging.transport": "grpc",
    "topology.disruptor.wait.strategy": "com.lmax.disruptor.BlockingWaitStrategy",
    "topology.metrics.consumer.register": [{"class": "org.apache.storm.metric.LoggingMetricsConsumer"}],
    "topology.name": "words",
    "topology.receiver.buffer.size": 8,
    "topology.state.provider": "org.apache.storm.state.InMemoryKeyValueStateProvider",
    "topology.workers": 2,
    "zmq.hwm": 0,
}
"""The same with one of Tuplewire's transports, a topology's values, and keys of earlier Storm releases."""

SETTINGS: dict[str, Any] = {
    "nimbus.task.timeout.secs": 7,
    "storm.cluster.mode": "distributed",
    "storm.local.hostname": "worker-3",
    "storm.log.dir": "/var/log/storm",
    "storm.messaging.netty.buffer.high.watermark": 2 << 20,
    "storm.messaging.netty.max_wait_ms": 7000,
    "storm.messaging.netty.min_wait_ms": 70,
    "storm.messaging.netty.transfer.batch.size": 4096,
    "storm.messaging.transport": "zmq",
    "supervisor.run.worker.as.user": True,
    "supervisor.slots.ports": [6700],
    "supervisor.worker.shutdown.sleep.secs": 7,
    "supervisor.worker.start.timeout.secs": 7,
    "topology.acker.executors": 7,
    "topology.batch.flush.interval.millis": 7,
    "topology.environment": {"A": "b"},
    "topology.executor.receive.buffer.size": 7,
    "topology.max.spout.pending": 7,
    "topology.message.timeout.secs": 7,
    "topology.name": "words",
    "topology.serialized.message.size.metrics": True,
    "topology.sleep.spout.wait.strategy.time.ms": 7,
    "topology.submitter.user": "storm",
    "topology.testing.always.try.serialize": True,
    "topology.tick.tuple.freq.secs": 7,
    "topology.worker.childopts": "-O",
    "topology.workers": 7,
    "worker.childopts": "-O",
    "worker.heartbeat.frequency.secs": 7,
}
"""Storm's keys that are Tuplewire's settings, each with a value that is not the default."""

DAEMONS = (
    *("blacklist.", "blobstore.", "client.", "dev.", "drpc.", "java.", "logs.", "logviewer.", "nimbus."),
    *("num.", "pacemaker.", "resource.", "scheduler.", "storm.", "transactional.", "ui."),
)
"""The prefixes of the keys of Storm's daemons: no topology reads them, and most have no note."""


@pytest.fixture(autouse=True)
def _all_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the notes that the process has logged."""
    monkeypatch.setattr(storm_keys, "_warned", set())


def notes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the logged keys without effect, each with the reason."""
    told = [vars(each) for each in caplog.records if each.getMessage().startswith("setting.no_effect")]
    return [(each["key"], each["reason"]) for each in told]


def test_a_configuration_of_storm_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """Each key is a setting, is noted once, or belongs to a daemon."""
    for _ in range(2):
        assert TopologySettings.from_conf(FROM_STORM).workers == 2
        assert cluster_of(FROM_STORM)
        TransportFactory.make_context(FROM_STORM).term()
    told = [key for key, _ in notes(caplog)]
    assert len(told) == len(set(told))
    assert not SETTINGS.keys() & told
    silent = FROM_STORM.keys() - SETTINGS.keys() - set(told)
    assert not [key for key in silent if key.startswith("storm.messaging.")]
    assert {key for key in silent if not key.startswith(DAEMONS)} == {"zmq.hwm"}
    assert not SETTINGS.keys() - STORM.keys() - {"storm.log.dir"}


@pytest.mark.parametrize(("key", "value"), SETTINGS.items())
def test_settings_of_storm_take_effect(key: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each key changes a setting, without a note that it has no effect."""

    def read(conf: dict[str, Any]) -> list[Any]:
        return [each(conf) for each in (TopologySettings.from_conf, LaunchSettings.from_conf, settings_in)]

    user = {"topology.submitter.user": "nobody"}
    assert read({**user, key: value}) != read(user)
    assert not notes(caplog)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("executor.metrics.frequency.secs", "Prometheus"),
        ("storm.messaging.netty.tls.enable", "Storm's default"),
        ("supervisor.worker.launcher", "supervisor.run.worker.as.user"),
        ("task.credentials.poll.secs", "read again when they change"),
        ("topology.classpath.beginning", "JVM"),
        ("topology.debug", "log_level"),
        ("topology.oci.image", "Kubernetes"),
        ("topology.receiver.buffer.size", "topology.executor.receive.buffer.size"),
        ("topology.tuple.compression.enable", "uncompressed"),
        ("worker.blob.update.poll.interval.secs", "volume"),
    ],
)
def test_the_reason_why_a_key_has_no_effect(key: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """The note names the feature that replaces the key."""
    TopologySettings.from_conf({key: FROM_STORM[key]})
    ((noted, why),) = notes(caplog)
    assert noted == key
    assert reason in why


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("storm.messaging.netty.tls.enable", True, "tls_certificate"),
        ("storm.messaging.netty.tls.keystore.path", "/etc/keys.jks", "tls_certificate"),
        ("storm.messaging.netty.authentication", True, "tokens"),
        ("storm.resource.isolation.plugin.enable", True, "pod's limits"),
        ("topology.state.provider", "org.apache.storm.redis.state.RedisKeyValueStateProvider", "Spark query"),
        ("topology.auto.task.hooks", ["a.Hook"], "call context.add_task_hook"),
        ("topology.bolts.late.tuple.stream", "later", "`late`"),
        ("topology.bolts.tuple.timestamp.field.name", "time", "`window`"),
        ("topology.bolts.window.length.count", 10, "`window`"),
        ("topology.tasks", 4, "set_num_tasks"),
    ],
)
def test_what_nothing_here_stands_for_is_refused(key: str, value: Any, advice: str) -> None:
    """A key for protection, limits or storage is never ignored silently."""
    for read in (TopologySettings.from_conf, cluster_of, TransportFactory.make_context):
        with pytest.raises(ConfigError, match=f"{key} .*{advice}"):
            read({key: value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("topology.max.spout.pendign", "topology.max.spout.pending"),
        ("topology.batch.flush.interval.milis", "topology.batch.flush.interval.millis"),
        ("zmq.lingr.millis", "zmq.linger.millis"),
        ("storm.messaging.transprot", "storm.messaging.transport"),
        ("supervisor.slot.ports", "supervisor.slots.ports"),
    ],
)
def test_typing_errors_are_still_found(key: str, meant: str) -> None:
    """A key that is unknown to Tuplewire and Storm is an error that names the nearest key."""
    reads = (TopologySettings.from_conf, cluster_of, TransportFactory.make_context)
    with pytest.raises(ConfigError, match=meant):
        [read({key: 1}) for read in reads]


def test_a_file_of_a_worker(tmp_path: Path) -> None:
    """Storm's batch size of 8 does not limit the receive queue to 8 messages."""
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
    """For a class of Storm's, the error names the equivalent transport."""
    with pytest.raises(ConfigError, match=f"class of Storm: write '{ours}'"):
        TransportFactory.make_context({TRANSPORT_KEY: name})
    file = tmp_path / "worker.toml"
    file.write_text(f'{TRANSPORT_KEY} = "{name}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=f"class of Storm: write '{ours}'"):
        load({}, {}, file)


class Broken:
    """A plug-in whose constructor fails."""

    def __init__(self) -> None:
        raise OSError("no such device")


def test_a_failing_plug_in_is_named() -> None:
    """The error contains the configured name and the constructor's exception."""
    with pytest.raises(ConfigError, match=r"Broken' of .* cannot be made: OSError: no such"):
        TransportFactory.make_context({TRANSPORT_KEY: f"{__name__}:Broken"})
