"""A short chaos run with every kind of fault keeps every guarantee. `make chaos` has longer runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from campaigns.chaos.transports import TransportChaos
from campaigns.chaos.workers import WorkerChaos
from helpers.control_faults import Fate

SEED = 2
"""A seed with lost and duplicated control messages at a worker that has traffic for seconds."""
SECONDS = 9.75
EVERY_SECONDS = 0.6
TRANSPORT_SEED = 4
"""A seed with cuts and silences that are not followed by a restart, which would hide their effects."""


def _chaos(seed: int, seconds: float) -> WorkerChaos:
    return WorkerChaos(seed, seconds, directory=Path(), transport="grpc")


def test_the_same_seed_gives_the_same_faults() -> None:
    """The same seed repeats the plan, and another changes it; every kind occurs before any repeats."""
    first = list(_chaos(SEED, 300).plan())
    weights = WorkerChaos.weights
    assert list(_chaos(SEED, 300).plan()) == first
    assert list(_chaos(SEED + 1, 300).plan()) != first
    assert list(_chaos(SEED, 150).plan()) == [fault for fault in first if fault.at < 150]
    assert Counter(fault.kind for fault in first[: len(weights)]) == Counter(weights.keys())
    assert 200 < len(first) < 400


def _run(chaos: WorkerChaos | TransportChaos) -> None:
    """Run it: each kind of fault happens as planned, and every ledger is balanced."""
    planned = Counter(fault.kind for fault in chaos.plan())
    assert set(planned) == set(chaos.weights)
    chaos.run()
    told = "\n".join((*chaos.report(), *chaos.faults))
    assert chaos.ok, told
    assert chaos.done == planned
    assert set(chaos.ledgers) == set(chaos.modes), told
    workers = chaos.workers.values() if isinstance(chaos, WorkerChaos) else ()
    for ledger in (*workers, *chaos.ledgers.values()):
        assert ledger is not None, told
        assert ledger.balanced, told
        assert ledger.pending == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", pytest.param("zmq", marks=pytest.mark.long)])
def test_a_short_run(transport: str, tmp_path: Path) -> None:
    """Each kind of fault happens; no message is lost, duplicated or out of order beyond the guarantee."""
    chaos = WorkerChaos(SEED, SECONDS, transport=transport, every=EVERY_SECONDS, directory=tmp_path)
    _run(chaos)
    if transport == "grpc":  # the lost messages between workers are gRPC's own
        assert chaos.control[Fate.LOST]
        assert chaos.control[Fate.DOUBLED]
    assert chaos.verdict.accepted > 10_000
    assert sum(ledger.accepted for ledger in chaos.ledgers.values()) == chaos.verdict.accepted


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
def test_a_short_run_on_a_transport(transport: str, tmp_path: Path) -> None:
    """No message is lost, duplicated or out of order, and every ledger is balanced."""
    chaos = TransportChaos(TRANSPORT_SEED, 9.0, transport=transport, every=0.5, directory=tmp_path)
    _run(chaos)
    assert chaos.verdict.received > 10_000
    assert all(ledger.accepted == ledger.acknowledged for ledger in chaos.ledgers.values())
