"""The contents of a worker's state file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuplewire_service.process.state_file import StateFile


@pytest.mark.parametrize("number", [10**400, 2**53 + 1, -1, 1.5, True, "5", None])
def test_absurd_numbers_are_not_used(tmp_path: Path, number: object) -> None:
    """Invalid counts are ignored, because metrics would report them permanently."""
    file = tmp_path / "state.json"
    state = {"worker_id": "w", "incarnation": 1, "ended": False, "unretained_messages": number}
    file.write_text(json.dumps(state), encoding="utf-8")
    assert StateFile(file, "w", 2).predecessor_lost == 0
    file.write_text(json.dumps(state | {"unretained_messages": 7}), encoding="utf-8")
    assert StateFile(file, "w", 2).predecessor_lost == 7
