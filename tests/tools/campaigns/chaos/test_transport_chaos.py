"""A short chaos run on each transport: every kind of fault it can have, and every promise kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from campaigns.chaos.transports import TransportCampaign, plan, weights_of

SEED = 4
"""One whose cuts and silences are not followed by a restart, which would repair what they break."""
SECONDS = 9.0
EVERY_SECONDS = 0.5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
def test_a_short_run(transport: str, tmp_path: Path) -> None:
    """Nothing is lost, doubled or disordered, and every balance adds up."""
    planned = Counter(fault.kind for fault in plan(transport, SEED, SECONDS, EVERY_SECONDS))
    assert set(planned) == set(weights_of(transport))
    outcome = TransportCampaign(transport, SEED, SECONDS, every=EVERY_SECONDS, directory=tmp_path).run()
    told = "\n".join(outcome.report())
    assert outcome.ok, told
    assert outcome.faults == planned
    assert outcome.verdict.received > 10_000
    assert len(outcome.senders) == 3, told
    for ledger in outcome.senders.values():
        assert ledger.balanced, told
        assert ledger.accepted == ledger.acknowledged, told
