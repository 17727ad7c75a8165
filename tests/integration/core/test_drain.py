"""A draining worker forwards its messages or counts them by reason, and exits in time with code 0."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from helpers.restartable import drained_ledger
from helpers.topology import (
    TOPOLOGY,
    collect,
    has_ended,
    ledger,
    messages_of,
    metric,
    numbered,
    numbers,
    one_worker,
)
from helpers.traffic import Feeder, Reader, client_of, deliver

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually


@pytest.mark.parametrize("how", ["signal", "call"])
def test_drain_under_traffic_loses_nothing(tmp_path: Path, how: str) -> None:
    """A worker that drains under traffic forwards all messages that it acknowledged, and exits with 0."""
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path) as workers:
        workers.assign({0: [0], 1: [1]})
        near, far = workers.endpoints
        with (
            client_of(near.address) as sender,
            client_of(far.address) as consumer,
            Reader(consumer.recv([1], timeout=0.2)) as reader,
        ):
            with Feeder(sender, 1) as feeder:
                feeder.goes_on(500)
                if how == "signal":
                    os.kill(near.process_id, signal.SIGTERM)
                else:
                    with ControlClient(near.address) as control:
                        assert control.drain()
                eventually(lambda: has_ended(near), 15, "drained")
                feeder.goes_on()
            taken = sender.ledger().acknowledged
            reader.has(taken)
            sender.close(0)
            assert numbers(reader.got) == list(range(taken))
            assert sender.ledger().accepted == taken + sender.ledger().dropped["closed"]
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(taken, taken, {}, 0)
        assert workers.stop() == [0, 0]


def test_drain_delivers_what_is_queued_to_the_consumer(tmp_path: Path) -> None:
    """A draining worker still serves its consumers, and exits once they have received all messages."""
    with (
        one_worker("w", "--drain-seconds=20", directory=tmp_path, tasks=[0]) as worker,
        client_of(worker.address) as client,
    ):
        deliver(client, numbered(0, range(1000)))
        with client.recv([0], timeout=10) as subscription:
            first = messages_of(next(subscription))
            os.kill(worker.process_id, signal.SIGTERM)
            log = tmp_path / "w-0" / "worker-0.log"
            eventually(lambda: "draining" in log.read_text(), 5)
            rest = collect(subscription, 1000 - len(first)) if len(first) < 1000 else []
            assert numbers(first + rest) == list(range(1000))
            subscription.acknowledge()
            eventually(lambda: "worker.drained" in log.read_text(), 5, "drained")
    assert drained_ledger(log).acknowledged == 1000


def test_drain_counts_what_nobody_took(tmp_path: Path) -> None:
    """Messages that remain at the deadline are counted as dropped{shutdown}, and the exit code is 0."""
    with WorkerProcesses(1, TOPOLOGY, directory=tmp_path, flags=["--drain-seconds=0.3"]) as workers:
        workers.assign({0: [0]})
        with client_of(workers.endpoints[0].address) as client:
            deliver(client, numbered(0, range(70)))
        assert workers.stop() == [0]
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(70, 0, {"shutdown": 70}, 0)


def test_drain_counts_what_a_peer_never_took(tmp_path: Path) -> None:
    """Messages for a dead peer and for a consumer count as dropped in the log and in the last scrape."""
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path, flags=["--drain-seconds=1"]) as workers:
        workers.assign({0: [1], 1: [2]})
        near, far = workers.endpoints
        os.kill(far.process_id, signal.SIGKILL)
        with client_of(near.address) as sender:
            sender.send(numbered(2, range(70)))
            deliver(sender, numbered(1, range(30)))
        assert ledger(near).pending == 100
        os.kill(near.process_id, signal.SIGTERM)
        scraped = []
        with contextlib.suppress(OSError):  # until the admin port is closed
            while True:
                scraped.append(metric(near, 'tuplewire_dropped_messages_total{reason="shutdown"}'))
        assert scraped[-1] == 100
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(100, 0, {"shutdown": 100}, 0)
        eventually(lambda: has_ended(near), 10, "ended")
        assert workers.stop() == [0, -signal.SIGKILL]
