"""The settings of transports: which keys they take out of a configuration, and which they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.settings import TransportSettings
from tuplewire_service.messaging.zmq.settings import ZmqSettings


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (TransportSettings, "tuplewire.transport.sesion"),
        (GrpcSettings, "tuplewire.transport.sesion"),
        (GrpcSettings, "tuplewire.grpc.session"),
        (ZmqSettings, "tuplewire.zmq.max_stream"),
    ],
)
def test_unknown_key(settings: type[TransportSettings], key: str) -> None:
    """A key that is nearly one of ours is an error that lists those that there are."""
    with pytest.raises(
        ConfigError, match=rf"unknown setting '{key}'; known are: tuplewire\.transport\.worker_id"
    ):
        settings.from_conf({key: 1})


def test_keys_of_others() -> None:
    """What belongs to another transport, or to nobody here, is left alone."""
    conf: dict[str, Any] = {"tuplewire.zmq.max_streams": 1, "topology.workers": 2, "mine": 3}
    assert GrpcSettings.from_conf(conf).host == "127.0.0.1"
    assert ZmqSettings.from_conf(conf).max_streams == 1
