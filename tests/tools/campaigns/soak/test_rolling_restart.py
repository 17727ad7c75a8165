"""Three restarts of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.soak.rolling import WORKERS, RollingRestarts


@pytest.mark.slow
@pytest.mark.long
def test_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """Three workers are restarted in turn: all messages arrive once, in order, and every ledger is clean."""
    rolling = RollingRestarts(len(WORKERS), 10.0, directory=tmp_path, progress=2000)
    assert {action.target for action in rolling.plan()} == set(WORKERS)
    rolling.run()
    assert rolling.faults == []
    assert rolling.done["restart"] == len(WORKERS)
    assert sum(rolling.steady.produced.sent.values()) > 0
