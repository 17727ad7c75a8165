"""Two short days of `make soak`, without any dependence on timing, and three of its restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.soak.account import Extent
from campaigns.soak.month import Month
from campaigns.soak.rolling import WORKERS, RollingRestarts

SHORT = Extent(days=2, generations=4, programs=30, households=2, pairs=0, most_memory=1.3, resume_seconds=5.0)


@pytest.mark.long
def test_a_month_leaves_nothing_behind(tmp_path: Path) -> None:
    """Hundreds of short-lived programs lose and duplicate no messages, and workers do not grow."""
    month = Month(7, SHORT, directory=tmp_path).run()
    assert month.faults == []
    assert month.account.lived["programs"] == SHORT.days * SHORT.generations * SHORT.programs


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
