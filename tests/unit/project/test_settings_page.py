"""The settings page contains every setting that the code declares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.settings_page import page

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import Settings, settings_of
from tuplewire.spark.options import SinkOptions, SourceOptions
from tuplewire.tracing import TracingSettings
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.grpc.grpc_transport import GrpcSettings
from tuplewire_service.messaging.zmq.zmq_sockets import ZmqSettings
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.launching import LaunchSettings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
PROGRAMS = (WorkerConfig, Credentials, TracingSettings, SessionSettings, TopologySettings, LaunchSettings)
TRANSPORTS = (GrpcSettings, ZmqSettings)
SPARK = (SourceOptions, SinkOptions)


def test_current() -> None:
    """The page equals the generated one: run `make settings` if it does not."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("settings", [*PROGRAMS, *TRANSPORTS, *SPARK])
def test_every_setting(settings: type[Settings]) -> None:
    """Every setting of workers, sessions, topologies, processes, transports and Spark has an entry."""
    keys = re.findall(r"^- \*\*`(.+?)`\*\* \(", page(), re.MULTILINE)
    assert {each.key for each in settings_of(settings).values()} <= set(keys)


def test_every_entry_is_whole() -> None:
    """Each entry describes the allowed values and the effect."""
    entries = re.findall(r"^- \*\*`.+?`\*\* (.*?)(?=^- |^\n|\Z)", page(), re.MULTILINE | re.DOTALL)
    assert len(entries) == page().count("\n- **`") > 80
    assert all(re.match(r"\(\w.*?\):\s+\S", entry, re.DOTALL) for entry in entries)
