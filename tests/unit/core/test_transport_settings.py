"""The settings of transports: accepted and refused configuration keys."""

from __future__ import annotations

from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.grpc.grpc_transport import GrpcSettings
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.messaging.zmq.zmq_settings import ZmqSettings
from tuplewire_service.worker.worker_settings import of_transport


@pytest.mark.parametrize(
    ("settings", "key", "room"),
    [
        (GrpcSettings, "tuplewire.grpc.admit", "tuplewire.grpc.listen"),
        (GrpcSettings, "tuplewire.session.overflw", "tuplewire.session.overflow"),
        (ZmqSettings, "tuplewire.zmq.max_streams", ".*zmq.hwm"),
    ],
)
def test_unknown_key(settings: type[TransportSettings], key: str, room: str) -> None:
    """An unknown key with a prefix of Tuplewire is an error that names the nearest known keys."""
    with pytest.raises(ConfigError, match=rf"unknown setting '{key}'; (did you mean|known are:) {room}"):
        settings.from_conf({key: 1})


@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("tuplewire.transport.receive_messages", -5, "a whole number from 1"),
        ("tuplewire.transport.receive_messages", "many", "a whole number from 1"),
        ("tuplewire.transport.receive_bytes", 0, "a number of bytes from 1"),
        ("tuplewire.transport.max_connections", 0, "a whole number from 1 to 2147483647"),
        ("tuplewire.transport.host", 5, "a text that is not empty"),
        ("tuplewire.transport.incarnation", -1, "a whole number from 0"),
        ("tuplewire.transport.worker_id", 5, "a text"),
        ("tuplewire.session.overflow", "spill", "one of block, fail, drop_oldest"),
        ("storm.messaging.netty.min_wait_ms", 0, "a time in milliseconds, more than 0"),
    ],
)
def test_a_wrong_value_makes_no_context(transport: str, key: str, value: Any, allowed: str) -> None:
    """An invalid value is an error when the context is created, not when it is used."""
    with pytest.raises(ConfigError) as raised:
        TransportFactory.make_context({TRANSPORT_KEY: transport, key: value})
    assert str(raised.value) == f"{key} must be {allowed}, not {value!r}"


@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ({"tuplewire.transport.session": {}}, "unknown setting 'tuplewire.transport.session'"),
        ({"tuplewire.transprot.host": "::1"}, "'tuplewire.transprot.host'; did you mean tuplewire.transport"),
        ({"tuplewire.host": "::1"}, "unknown setting 'tuplewire.host'; known are: tuplewire.grpc"),
    ],
)
def test_an_unknown_key_makes_no_context(transport: str, conf: dict[str, Any], problem: str) -> None:
    """A key with Tuplewire's prefix must be known to an installed transport."""
    with pytest.raises(ConfigError) as raised:
        TransportFactory.make_context({TRANSPORT_KEY: transport, **conf})
    assert problem in str(raised.value)


@pytest.mark.parametrize("name", [5, ["grpc"]])
def test_a_transports_name_is_a_text(name: object) -> None:
    """An invalid transport name is refused like any other invalid value."""
    with pytest.raises(ConfigError, match=r"^storm.messaging.transport must be the name of a transport"):
        TransportFactory.make_context({TRANSPORT_KEY: name})


@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
def test_a_workers_settings_make_a_context(transport: str) -> None:
    """Every transport accepts all settings that a worker passes to it."""
    config = WorkerConfig(
        worker_id="w", resume_seconds=5, max_connections=7, max_connection_seconds=9, keepalive_seconds=3
    )
    conf = TransportSettings(**of_transport(config, 1)).conf()
    TransportFactory.make_context({TRANSPORT_KEY: transport, **conf}).term()


def test_keys_of_others() -> None:
    """Keys of other transports and of users are ignored."""
    conf: dict[str, Any] = {"tuplewire.grpc.listen": ["host:1"], "topology.workers": 2, "mine": 3}
    assert ZmqSettings.from_conf(conf).host == "127.0.0.1"
    assert GrpcSettings.from_conf(conf).listen == ("host:1",)
