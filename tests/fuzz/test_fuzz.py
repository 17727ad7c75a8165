"""A few seconds of `make fuzz`, with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.attacker import LEVELS
from fuzz.campaign import campaign

SEED = 20_131
SECONDS = 5.0


@pytest.mark.slow
def test_hostile_input_on_every_level_hurts_nobody(tmp_path: Path) -> None:
    """Under attack the worker stays up and small, names each refusal, and a good session notices nothing."""
    report = campaign(tmp_path, SEED, SECONDS, print)
    assert report.faults == []
    assert sum(report.produced.sent.values()) > 0
    assert all(sum(report.tallies[level].counts.values()) > 20 for level in LEVELS)
    refusals = {name for tally in report.tallies.values() for name in tally.counts}
    assert {"MALFORMED", "WRONG_TOPOLOGY", "STALE_INCARNATION"} <= refusals
