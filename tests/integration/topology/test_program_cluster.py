"""Features of all workers in a topology's worker processes: metrics, status, moves, TLS and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.admin import samples
from helpers.certificates import Authority
from helpers.secured import files_of, secret_file
from helpers.words import EXPECTED, LINES
from helpers.worker_process import run_command

from tuplewire import Client, Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TopologyError, TuplewireError
from tuplewire_topology.clusters.cluster import DistributedCluster
from tuplewire_topology.clusters.distributed_topology import DistributedTopology

SECONDS = 120.0


@contextmanager
def running(topology: Any = "helpers.words:topology", **conf: Any) -> Iterator[DistributedTopology]:
    """Run a topology in two processes, and check that they exit with 0."""
    with DistributedCluster() as cluster:
        topology_running = cluster.submit(
            "words", {"topology.workers": 2, **conf}, topology, collect=["count"]
        )
        yield topology_running
    assert set(topology_running.exit_codes) == {0}


def counts_of(topology: DistributedTopology) -> dict[str, int]:
    """Return the counts emitted at the end."""
    return {word: count for word, count, _ in topology.finish(SECONDS).tuples("count")}


def test_metrics_and_status_of_a_worker() -> None:
    """Each worker's metrics and status show received messages by source, their outcome and the executors."""
    with running() as topology:
        assert counts_of(topology) == EXPECTED
        first, second = (samples(url) for url in topology.metrics_urls)
        for read, other in ((first, "words-worker-1"), (second, "words-worker-0")):
            assert read[f'tuplewire_received_messages_total{{source="{other}"}}'] > 0
            assert read['tuplewire_received_messages_total{source="executors"}'] > 0
            assert (
                read["tuplewire_accepted_messages_total"] == read["tuplewire_acknowledged_messages_total"] > 0
            )
            assert read['tuplewire_dropped_messages_total{reason="unknown_task"}'] == 0
            assert read[f'tuplewire_pending_messages{{peer="{other}"}}'] == 0
            assert read[f'tuplewire_reconnects_total{{peer="{other}"}}'] == 0
            assert read["tuplewire_ready"] == 1
        executed = Counter[str]()
        for read in (first, second):
            executed.update(
                {name: int(value) for name, value in read.items() if "executed_tuples_total" in name}
            )
        sample = 'tuplewire_executed_tuples_total{component="split",source="lines",stream="default"}'
        assert executed[sample] == len(LINES)
        for ledger in topology.ledgers().values():
            assert (ledger.balanced, ledger.pending, sum(ledger.dropped.values())) == (True, 0, 0)
        shown = run_command("status", "--address", topology.addresses[0]).stdout
        assert "worker      words-worker-0" in shown
        assert "received    from executors:" in shown
        with pytest.raises(TopologyError, match="there is no worker 2"):
            topology.move_task(topology.topology.tasks_of("split")[0], 2)


def send_one_message(address: str, task: int, credentials: Credentials) -> None:
    """Send a message and flush; a refusal may be raised before the message is sent."""
    client = Client(address, topology="words", credentials=credentials)
    try:
        client.send(task, b"no tuple")
        client.flush(2.0)
    finally:
        client.close(0.0)


def test_certificates_and_tokens(tmp_path: Path) -> None:
    """Workers with TLS and tokens run a topology, and refuse clients without a certificate or a token."""
    authority = Authority()
    worker = files_of(authority.issue("worker.example"), tmp_path / "worker")
    tokens = secret_file(tmp_path / "tokens", "etl open-sesame-open-sesame\n")
    conf = {
        "tuplewire.worker.tls_certificate": worker.tls_certificate,
        "tuplewire.worker.tls_key": worker.tls_key,
        "tuplewire.worker.tls_ca": worker.tls_ca,
        "tuplewire.worker.token_file": str(tokens),
    }
    issued = authority.issue("etl.example")
    stranger = files_of(issued, tmp_path / "stranger", "worker.example")
    known = files_of(
        issued,
        tmp_path / "known",
        "worker.example",
        token_file=secret_file(tmp_path / "t", "open-sesame-open-sesame"),
    )
    with running(**conf) as topology:
        address = topology.addresses[0]
        task = topology.topology.tasks_of("count")[0]
        for credentials in (Credentials(), stranger):
            with (
                pytest.raises(TuplewireError),
                ControlClient(address, 2.0, credentials=credentials) as control,
            ):
                control.status()
            with pytest.raises(TuplewireError):
                send_one_message(address, task, credentials)
        with ControlClient(address, credentials=known) as control:
            assert control.status().worker_id == "words-worker-0"
        assert counts_of(topology) == EXPECTED
        for url in topology.metrics_urls:
            assert 'source="client"' not in str(samples(url)), "nothing of the stranger's came in"
