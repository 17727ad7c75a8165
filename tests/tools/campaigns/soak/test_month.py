"""Two short days of `make soak`, without any dependence on timing."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.soak.account import Extent
from campaigns.soak.month import Month

SHORT = Extent(days=2, generations=4, programs=30, households=2, pairs=0, most_memory=1.3, resume_seconds=5.0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_month_leaves_nothing_behind(tmp_path: Path) -> None:
    """Hundreds of short-lived programs lose and duplicate no messages, and workers do not grow."""
    month = Month(7, SHORT, directory=tmp_path).run()
    assert month.faults == []
    assert month.account.lived["programs"] == SHORT.days * SHORT.generations * SHORT.programs
