"""A worker's admin port: probes and metrics."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers import eventually
from helpers.admin import get, scrape
from helpers.program import Threads
from helpers.tools import require_tool
from helpers.worker_process import Running, assignment_for
from prometheus_client import CollectorRegistry

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_service.metrics.admin_server import AdminServer


def test_probes_and_page(worker: Running) -> None:
    """/livez succeeds, /readyz reports a missing assignment until there is one, and / lists the pages."""
    assert worker.get("/livez") == (200, "live\n")
    code, reason = worker.get("/readyz")
    assert code == 503
    assert "assignment" in reason
    with ControlClient(worker.address) as client:
        client.update_assignment(assignment_for(worker))
        client.wait_ready(10)
    assert worker.get("/readyz") == (200, "ready\n")
    assert "/metrics" in worker.get("/")[1]
    assert worker.get("/nowhere")[0] == 404


def test_the_wildcard_is_ipv6_and_ipv4(tmp_path: Path) -> None:
    """The address [::] also accepts IPv4 on both ports, regardless of the system's default."""
    flags = ["--listen=[::]:0", "--admin=[::]:0", "--allow-plaintext"]
    with WorkerProcesses(1, "wide", directory=tmp_path, flags=flags) as local:
        (worker,) = local.endpoints
        port = worker.address.rpartition(":")[2]
        livez = worker.metrics_url.replace("/metrics", "/livez")
        for host in ("127.0.0.1", "[::1]"):
            assert get(livez.replace("[::]", host))[0] == 200
            with ControlClient(f"{host}:{port}") as control:
                assert control.status().topology == "wide"


def test_the_admin_port_does_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel does not support IPv6, [::] means every IPv4 address, as in gRPC."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = AdminServer("[::]:0", CollectorRegistry(), lambda: "", lambda: "")
    try:
        assert server.address.startswith("0.0.0.0:")
        url = f"http://{server.address}/metrics"
        assert get(url.replace("0.0.0.0", "127.0.0.1"))[0] == 200  # noqa: S104
    finally:
        server.close()


def _admin(worker: Running) -> tuple[str, int]:
    url = urlsplit(worker.bound["metrics_url"])
    return str(url.hostname), int(url.port or 0)


def test_many_idle_admin_connections_do_not_hold_the_end_up(worker: Running) -> None:
    """Connections with unfinished requests are limited in number, and closed when the worker exits."""
    with contextlib.ExitStack() as connections:
        address = _admin(worker)
        slow = [connections.enter_context(socket.create_connection(address, timeout=20)) for _ in range(50)]
        threads = Threads()
        connections.callback(threads.end)

        def go_on() -> None:
            while not threads.stop.wait(0.1):
                for each in slow:
                    with contextlib.suppress(OSError):  # all but a few are closed
                        each.send(b"x")

        threads.start(go_on)
        assert worker.end() == 0


def test_slow_admin_connections_keep_no_probe_away(shared: Running) -> None:
    """Clients that never finish their requests cannot make the worker's probes fail."""
    with contextlib.ExitStack() as connections:
        for _ in range(40):
            slow = connections.enter_context(socket.create_connection(_admin(shared), timeout=5))
            slow.sendall(b"GET /livez HT")
        assert shared.get("/livez") == (200, "live\n")
        assert shared.get("/readyz")[0] == 503


def test_metrics_have_every_reason(worker: Running) -> None:
    """The metrics for dashboards and alerts exist from the first scrape, and counters start at 0."""
    with ControlClient(worker.address) as client:
        client.update_assignment(assignment_for(worker, version=3))
        client.wait_ready(10)
    code, text = worker.get("/metrics")
    assert code == 200
    for reason in ("unknown_task", "refused", "closed", "shutdown"):
        assert f'tuplewire_dropped_messages_total{{reason="{reason}"}} 0.0' in text
    assert 'tuplewire_refused_messages_total{code="UNKNOWN_TASK"} 0.0' in text
    for sample in (
        "tuplewire_accepted_messages_total 0.0",
        "tuplewire_acknowledged_messages_total 0.0",
        "tuplewire_worker_pending_messages 0.0",
        "tuplewire_ready 1.0",
        "tuplewire_assignment_version 3.0",
        "tuplewire_assignment_refused 0.0",
        'tuplewire_queue_messages{task="0"} 0.0',
        'tuplewire_queue_capacity_messages{task="1"} 131072.0',
    ):
        assert f"\n{sample}\n" in text
    assert 'topology="default",version="' in text
    assert "# EOF" not in worker.get("/metrics", "application/openmetrics-text; version=1.0.0")[1]


def test_promtool_finds_nothing(worker: Running) -> None:
    """Prometheus' own checker accepts names, units and help."""
    promtool = require_tool("promtool", "Debian's package prometheus")
    with ControlClient(worker.address) as client:
        client.update_assignment(assignment_for(worker))
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=worker.get("/metrics")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_ledger_and_metrics_count_what_flowed(tmp_path: Path) -> None:
    """Both workers' metrics match the sent messages; messages that a drain drops are counted and logged."""
    flags = ["--drain-seconds=0.5"]
    with WorkerProcesses(2, "pair", directory=tmp_path, flags=flags) as workers:
        workers.assign({0: [0], 1: [1]})
        near, far = workers.endpoints
        with Client(near.unix_address, topology="pair") as client:
            for _ in range(3):
                client.send(TaskMessageBatch.from_columns([0, 1, 1], [b"abc", b"d", b"e"]))
            client.flush(10)
        eventually(lambda: 'queue_messages{task="1"} 6.0' in scrape(far.metrics_url), 10, "arrived")
        # The acknowledgement of the last frame between the workers may still be in transit.
        eventually(lambda: "acknowledged_messages_total 6.0" in scrape(near.metrics_url), 10, "acknowledged")
        sent = scrape(near.metrics_url)
        assert 'tuplewire_received_messages_total{source="client"} 9.0' in sent
        assert 'tuplewire_received_bytes_total{source="client"} 15.0' in sent
        assert 'tuplewire_sent_messages_total{peer="worker-1"} 6.0' in sent
        assert 'tuplewire_sent_bytes_total{peer="worker-1"} 6.0' in sent
        assert 'tuplewire_connection_up{peer="worker-1"} 1.0' in sent
        assert 'tuplewire_pending_messages{peer="worker-1"} 0.0' in sent
        assert "tuplewire_worker_pending_messages 3.0" in sent
        assert 'tuplewire_received_messages_total{source="worker-0"} 6.0' in scrape(far.metrics_url)
        assert workers.stop() == [1, 1]
    balance = "accepted 9 = acknowledged 6 + dropped shutdown 3 + pending 0"
    assert f'ledger="{balance}"' in (tmp_path / "worker-0.log").read_text()
