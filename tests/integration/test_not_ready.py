"""A worker that has no assignment yet: who comes too early waits, and loses nothing."""

from __future__ import annotations

from pathlib import Path

from helpers.topology import assign, metric, numbered, numbers, one_worker
from helpers.traffic import Reader, client_of

from tuplewire_service.testing import eventually

NOT_READY = 'tuplewire_refused_total{code="NOT_READY"}'


def test_clients_of_a_worker_without_assignment_wait_for_it(tmp_path: Path) -> None:
    """A sender and a consumer that connect before the assignment go on once it has come."""
    with (
        one_worker("w", directory=tmp_path) as worker,
        client_of(worker.address) as sender,
        client_of(worker.address) as consumer,
        Reader(consumer.recv([0], timeout=0.2)) as reader,
    ):
        sender.send(numbered(0, range(100)))
        eventually(lambda: metric(worker, NOT_READY) >= 2)
        assert sender.ledger().pending == 100
        assign(worker, 1, {("w", worker.address): [0]})
        sender.flush(10)
        reader.has(100)
        assert numbers(reader.got) == list(range(100))
        assert sender.ledger().acknowledged == 100
