"""A short chaos run: every kind of fault, and every promise kept. `make chaos` makes longer ones."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from campaigns.chaos.campaign import Campaign
from campaigns.chaos.faults import WEIGHTS, plan
from campaigns.chaos.run import report
from helpers.control_faults import Fate

SEED = 2
"""One whose lost and doubled control messages meet a worker that has traffic for seconds."""
SECONDS = 13.0
EVERY_SECONDS = 0.8


def test_the_same_seed_gives_the_same_faults() -> None:
    """A run can be repeated, and another seed is another run; each kind comes before any comes again."""
    first = list(plan(SEED, 300, 1.0))
    assert list(plan(SEED, 300, 1.0)) == first
    assert list(plan(SEED + 1, 300, 1.0)) != first
    assert list(plan(SEED, 150, 1.0)) == [fault for fault in first if fault.at < 150]
    assert Counter(fault.kind for fault in first[: len(WEIGHTS)]) == Counter(WEIGHTS.keys())
    assert 200 < len(first) < 400


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", pytest.param("zmq", marks=pytest.mark.long)])
def test_a_short_run(transport: str, tmp_path: Path) -> None:
    """Each kind of fault happens; nothing is lost, doubled or disordered beyond the guarantee."""
    planned = Counter(fault.kind for fault in islice(plan(SEED, SECONDS, EVERY_SECONDS), 100))
    assert set(planned) == set(WEIGHTS)
    outcome = Campaign(SEED, SECONDS, transport=transport, every=EVERY_SECONDS, directory=tmp_path).run()
    told = "\n".join(report(outcome))
    assert outcome.ok, told
    assert outcome.faults == planned
    if transport == "grpc":  # between workers it is gRPC's own messages that are lost
        assert outcome.control[Fate.LOST]
        assert outcome.control[Fate.DOUBLED]
    assert outcome.verdict.accepted > 10_000
    assert sum(ledger.accepted for ledger in outcome.producers.values()) == outcome.verdict.accepted
    for ledger in (*outcome.workers.values(), *outcome.producers.values()):
        assert ledger is not None, told
        assert ledger.balanced, told
        assert ledger.pending == 0, told
