"""Files that users edit may begin with a byte order mark, which Windows editors write."""

from __future__ import annotations

import json
from pathlib import Path

from tuplewire_service.config.config_sources import load, read_conf
from tuplewire_service.security.permissions import read_rules
from tuplewire_service.worker.assignment import load_assignment

MARK = "\ufeff"


def test_settings_permissions_and_assignments(tmp_path: Path) -> None:
    """Settings, permissions and assignments are read as if the mark were absent."""
    conf = tmp_path / "conf.json"
    conf.write_text(MARK + '{"topology.debug": true}', encoding="utf-8")
    assert read_conf(str(conf)) == {"topology.debug": True}
    settings = tmp_path / "worker.toml"
    settings.write_text(MARK + '# für alle\nworker_id = "w9"\n', encoding="utf-8")
    assert load({}, {}, settings).config.worker_id == "w9"
    rules = tmp_path / "rules.toml"
    rules.write_text(MARK + '# für alle\n[[client]]\ntokens = ["etl"]\nsend = "*"\n', encoding="utf-8")
    read_rules(rules)
    assignment = tmp_path / "assignment.json"
    content = {"version": 1, "topology": "t", "workers": [{"worker_id": "w", "address": "h:1", "tasks": [1]}]}
    assignment.write_text(MARK + json.dumps(content), encoding="utf-8")
    assert load_assignment(assignment).version == 1
