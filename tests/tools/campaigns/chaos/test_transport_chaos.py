"""A short chaos run on each transport, with all its kinds of fault, keeps every guarantee."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from campaigns.chaos.transports import TransportChaos

SEED = 4
"""A seed with cuts and silences that are not followed by a restart, which would hide their effects."""
SECONDS = 9.0
EVERY_SECONDS = 0.5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
def test_a_short_run(transport: str, tmp_path: Path) -> None:
    """No message is lost, duplicated or out of order, and every ledger is balanced."""
    chaos = TransportChaos(SEED, SECONDS, transport=transport, every=EVERY_SECONDS, directory=tmp_path)
    planned = Counter(fault.kind for fault in chaos.plan())
    assert set(planned) == set(chaos.weights)
    chaos.run()
    told = "\n".join((*chaos.report(), *chaos.faults))
    assert chaos.ok, told
    assert chaos.done == planned
    assert chaos.verdict.received > 10_000
    assert len(chaos.ledgers) == 3, told
    for ledger in chaos.ledgers.values():
        assert ledger.balanced, told
        assert ledger.accepted == ledger.acknowledged, told
