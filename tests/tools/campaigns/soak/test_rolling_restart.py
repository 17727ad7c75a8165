"""Three restarts of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.soak.rolling import WORKERS, rolling_restart


@pytest.mark.slow
@pytest.mark.long
def test_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """Three workers are restarted in turn: all arrives once, in order, and every balance is clean."""
    restarts = []
    account = rolling_restart(tmp_path, WORKERS, 10.0, lambda _, restart: restarts.append(restart), 2000)
    assert account.faults == []
    assert {restart.worker_id for restart in restarts} == {f"worker-{index}" for index in range(WORKERS)}
    assert sum(account.produced.sent.values()) > 0
