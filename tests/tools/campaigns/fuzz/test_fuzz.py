"""A short `make fuzz`, counted in attacks, with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.fuzz.fuzz import THREADS, Fuzz
from campaigns.fuzz.refused import KINDS

SEED = 20_131
ATTACKS = 100
"""Attacks per thread."""


@pytest.mark.slow
def test_hostile_input_on_every_level_hurts_nobody(tmp_path: Path) -> None:
    """An attacked worker stays up, stays small and names every error; a good session is not affected."""
    fuzz = Fuzz(SEED, directory=tmp_path, attacks=ATTACKS).run()
    assert fuzz.faults == []
    assert sum(fuzz.steady.produced.sent.values()) > 0
    counts = {level: tally.counts for level, tally in fuzz.tallies.items()}
    assert {level: sum(each.values()) for level, each in counts.items()} == {
        level: ATTACKS * threads for level, threads in THREADS.items()
    }
    names = {kind("x").refusal for kind in KINDS.values()}
    assert counts["refused"].keys() == names
    assert all(counts["refused"][name] >= 10 for name in names), counts["refused"]
