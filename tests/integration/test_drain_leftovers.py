"""What a drain cannot pass on is counted by reason, printed and exported; the worker ends in time with 0."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from helpers.restartable import drained_ledger
from helpers.topology import TOPOLOGY, has_ended, ledger, metric, numbered
from helpers.traffic import client_of

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.server.launch import LocalWorkers
from tuplewire_service.testing import eventually


def test_a_peer_that_never_comes_back(tmp_path: Path) -> None:
    """What waits for it, and what waits for a consumer, is all there: in the log and in the last scrape."""
    with LocalWorkers(2, TOPOLOGY, directory=tmp_path, flags=["--drain-seconds=1"]) as workers:
        workers.assign({0: [1], 1: [2]})
        near, far = workers.endpoints
        os.kill(far.process_id, signal.SIGKILL)
        with client_of(near.address) as sender:
            sender.send(numbered(2, range(70)))
            sender.send(numbered(1, range(30)))
            sender.flush(10)
        assert ledger(near).pending == 100
        os.kill(near.process_id, signal.SIGTERM)
        scraped = []
        with contextlib.suppress(OSError):  # until the admin port is gone
            while True:
                scraped.append(metric(near, 'tuplewire_dropped_messages_total{reason="shutdown"}'))
        assert scraped[-1] == 100
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(100, 0, {"shutdown": 100}, 0)
        eventually(lambda: has_ended(near), 10, "ended")
        assert workers.stop() == [0, -signal.SIGKILL]
