"""The page of settings: it is what the code declares, and leaves nothing out."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tuplewire.config import SessionSettings
from tuplewire.topology.settings import TopologySettings
from tuplewire_service.launching.settings import LaunchSettings
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.settings import key_of
from tuplewire_service.messaging.zmq.settings import ZmqSettings
from tuplewire_service.server.config import SETTINGS
from tuplewire_service.server.settings_page import page

PAGE = Path(__file__).parents[2] / "service" / "SETTINGS.md"


def test_current() -> None:
    """The page in the repository is the one that the code makes: run `make settings` when it is not."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_setting() -> None:
    """Every setting of a worker, a session, a topology, its processes and a transport has its row."""
    keys = {line.split("|")[1].strip(" `") for line in page().splitlines() if line.startswith("| `")}
    assert set(SETTINGS) <= keys
    assert {each.name for each in fields(SessionSettings)} <= keys
    for stormy in (TopologySettings, LaunchSettings):
        assert {each.metadata["key"] for each in fields(stormy)} <= keys
    for settings in (GrpcSettings, ZmqSettings):
        assert {key_of(each) for each in fields(settings)} <= keys


def test_every_row_is_whole() -> None:
    """Each row has a type and an effect in words."""
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    assert all(len(row) == 5 and row[2] and row[4].strip(" |") for row in rows)
