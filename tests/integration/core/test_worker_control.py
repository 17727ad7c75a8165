"""A worker's control service, health, assignment and admin port, as programs and the command use them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from helpers import eventually
from helpers.admin import get, scrape
from helpers.http2 import (
    DATA,
    END_STREAM,
    GRPC_PREFIX_BYTES,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    call_headers,
    connected,
    frames_of,
    grpc_message,
    http2_frame,
    window_of,
)
from helpers.program import Threads
from helpers.prometheus import promtool_accepts
from helpers.topology import as_json, workers_with
from helpers.traffic import deliver
from helpers.worker_process import Running, assignment_for, run_command, running
from prometheus_client import CollectorRegistry

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ProtocolError, StaleAssignmentError, UnreachableError, WrongTopologyError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.wire import control_pb2, health_pb2
from tuplewire.wire.health_pb2_grpc import HealthStub
from tuplewire_service.metrics.admin_server import AdminServer
from tuplewire_service.worker.assignment import MAX_STEP, AssignedWorker, Assignment

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_control_over_both_addresses(worker: Running) -> None:
    """Status, assignment and load are served over TCP and over the Unix socket."""
    for address in (worker.address, str(worker.bound["unix_address"])):
        with ControlClient(address) as client:
            status = client.status()
            assert (status.worker_id, status.topology) == ("a", "default")
            assert list(status.addresses) == worker.bound["addresses"]
            assert client.get_assignment() is None
    with ControlClient(worker.address) as client:
        assert client.update_assignment(assignment_for(worker, 2))
        assert not client.update_assignment(assignment_for(worker, 2))
        assert client.get_assignment() == assignment_for(worker, 2)
        assert client.get_loads([0, 1]) == {0: 0.0, 1: 0.0}
        client.wait_ready(10)
        assert client.status().state == control_pb2.WORKER_STATE_READY


def test_control_refusals_are_named(worker: Running) -> None:
    """An older, a foreign or an invalid assignment is refused with a reason, and the current one stays."""
    with ControlClient(worker.address) as client:
        client.update_assignment(assignment_for(worker, 2))
        with pytest.raises(StaleAssignmentError):
            client.update_assignment(assignment_for(worker, 1))
        with pytest.raises(WrongTopologyError, match="other"):
            client.update_assignment(assignment_for(worker, 3, "other"))
        with pytest.raises(ProtocolError, match="version"):
            client.update_assignment(control_pb2.Assignment(topology="default"))
        for worker_id, address, version in (
            *(("a\0", "h:1", 3), ("a", "h\n:1", 3), ("a" * 300, "h:1", 3)),
            *(("a", "h:1", 2**63), ("a", "h:1", 2**64 - 1)),
        ):
            named = control_pb2.AssignedWorker(worker_id=worker_id, address=address, tasks=[0])
            bad = control_pb2.Assignment(version=version, topology="default", workers=[named])
            for force in (False, True):
                with pytest.raises(ProtocolError, match=r"characters|an assignment's version is at most"):
                    client.update_assignment(bad, force=force)
        assert client.get_assignment() == assignment_for(worker, 2)


def test_a_version_that_jumps_needs_force(worker: Running, tmp_path: Path) -> None:
    """A version more than 2^32 ahead is refused with advice; `assign --force` applies it."""
    file = tmp_path / "jump.json"
    far = Assignment(2 + 2 * MAX_STEP, "default", (AssignedWorker("a", worker.address, (0,)),))
    file.write_text(as_json(far))
    with ControlClient(worker.address) as control:
        for version in (1, 1 + MAX_STEP):
            control.update_assignment(assignment_for(worker, version))
        refused = run_command("assign", "--address", worker.address, str(file))
        assert refused.returncode != 0
        assert "too far ahead" in refused.stderr
        assert "--force" in refused.stderr
        assert control.status().assignment_version == 1 + MAX_STEP
        assert run_command("assign", "--force", "--address", worker.address, str(file)).returncode == 0
        assert control.status().assignment_version == far.version


def test_wait_ready_says_what_it_waited_for(shared: Running) -> None:
    """A worker without an assignment is not ready, and the error refers to the status."""
    with ControlClient(shared.address) as client, pytest.raises(UnreachableError, match="tuplewire status"):
        client.wait_ready(0.3)


def test_health_check(worker: Running) -> None:
    """Check reports readiness and liveness, and rejects other service names."""
    with grpc.insecure_channel(worker.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]

        def check(service: str) -> int:
            status: int = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status
            return status

        assert check("liveness") == SERVING
        assert check("") == NOT_SERVING
        with ControlClient(worker.address) as client:
            client.update_assignment(assignment_for(worker))
            client.wait_ready(10)
        assert check("") == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check("nonsense")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_watch_tells_of_a_drain_that_begins_while_it_writes(worker: Running) -> None:
    """A watcher that reads SERVING only after the drain has started still receives NOT_SERVING."""
    seen: list[int] = []
    request = grpc_message(health_pb2.HealthCheckRequest().SerializeToString())
    first = grpc_message(health_pb2.HealthCheckResponse(status=NOT_SERVING).SerializeToString())
    opening = PREFACE + http2_frame(SETTINGS, 0, 0, window_of(len(first)))
    with connected(worker.address, timeout=60) as connection:
        connection.sendall(opening + call_headers(1, b"/grpc.health.v1.Health/Watch"))
        connection.sendall(http2_frame(DATA, END_STREAM, 1, request))
        for kind, flags, payload in frames_of(connection, 1):
            if flags & END_STREAM:
                break
            if kind == DATA:
                seen.append(health_pb2.HealthCheckResponse.FromString(payload[GRPC_PREFIX_BYTES:]).status)
                if len(seen) == 1:
                    _get_ready_and_drain(worker)
                    connection.sendall(http2_frame(WINDOW_UPDATE, 0, 1, (1000).to_bytes(4, "big")))
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


def _get_ready_and_drain(worker: Running) -> None:
    with ControlClient(worker.address) as client, grpc.insecure_channel(worker.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        client.update_assignment(assignment_for(worker))
        client.wait_ready(30)
        with Client(worker.address) as sender:  # a message without a consumer keeps the drain running
            deliver(sender, 0, b"")
        worker.process.send_signal(signal.SIGTERM)
        check = partial(health.Check, health_pb2.HealthCheckRequest(), timeout=30)
        eventually(lambda: check().status == NOT_SERVING, 30, "the drain has begun")


def test_health_watch_of_an_unknown_service(shared: Running) -> None:
    """Watch answers SERVICE_UNKNOWN and stays open, as the protocol requires."""
    with grpc.insecure_channel(shared.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        watch = health.Watch(health_pb2.HealthCheckRequest(service="x"), timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_assignment_file_is_followed(tmp_path: Path) -> None:
    """While the assignment file is invalid, the worker keeps its assignment and reports the problem."""
    file = tmp_path / "assignment \udcff.json"
    with running(tmp_path, f"--assignment-file={file}") as worker, ControlClient(worker.address) as client:
        assignment = Assignment(1, "default", (AssignedWorker("a", worker.address, (0,)),))
        file.write_text(as_json(assignment))
        client.wait_ready(10)
        file.write_text("{")
        eventually(lambda: "assignment_file.refused" in worker.log.partition("applied")[2], 10, "refused")
        assert client.status().assignment_version == 1
        assert "tuplewire_assignment_refused 1.0" in worker.get("/metrics")[1]
        status, text = worker.get("/readyz")
        assert (status, "the assignment file is refused" in text) == (503, True)
        other = Assignment(1, "default", (AssignedWorker("a", worker.address, (0, 1)),))
        for refused in (other, assignment):
            file.write_text(as_json(refused))
            expected = 503 if refused is other else 200
            eventually(lambda expected=expected: worker.get("/readyz")[0] == expected, 10, "readiness")  # type: ignore[misc]
            eventually(lambda: "newer than the current one, 1" in worker.log, 10, "the version is known")
        assert "tuplewire_assignment_refused 0.0" in worker.get("/metrics")[1]


def test_command_shows_status_and_assigns(worker: Running) -> None:
    """The commands assign, status and drain call the control service and print its answers."""
    assignment = Assignment(1, "default", (AssignedWorker("a", worker.address, (0, 1)),))
    file = worker.directory / "assignment.json"
    file.write_text(as_json(assignment))
    assigned = run_command("assign", "--address", worker.address, str(file))
    assert (assigned.returncode, assigned.stderr) == (0, "")
    assert "assignment 1 of default is the current one" in assigned.stdout
    file.write_text(as_json(Assignment(2, "default", (AssignedWorker("b", worker.address, (0, 1)),))))
    refused = run_command("assign", "--address", worker.address, str(file))
    assert refused.returncode == 1
    assert f"the worker_id b for {worker.address}, but the worker's own id is a" in refused.stderr
    status = json.loads(run_command("status", "--json", "--address", worker.address).stdout)
    assert (status["assignment_version"], status["ledger"]["balanced"]) == (1, True)
    shown = run_command("status", "--address", str(worker.bound["unix_address"])).stdout
    assert "accepted 0 = acknowledged 0 + dropped 0 + pending 0" in shown
    assert re.search(r"^time        [1-9]\d*% \w+(, [1-9]\d*% \w+)*$", shown, re.MULTILINE)
    assert run_command("drain", "--address", worker.address).returncode == 0
    assert worker.process.wait(20) == 0
    assert "worker.draining reason=drain_call" in worker.log
    gone = run_command("status", "--address", worker.address)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert worker.address in gone.stderr


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
    flags = ["--listen=[::]:0", "--listen-admin=[::]:0", "--allow-plaintext"]
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
        "tuplewire_pending_messages 0.0",
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
    with ControlClient(worker.address) as client:
        client.update_assignment(assignment_for(worker))
    promtool_accepts(worker.get("/metrics")[1])


def test_ledger_and_metrics_count_what_flowed(tmp_path: Path) -> None:
    """Both workers' metrics match the sent messages; messages that a drain drops are counted and logged."""
    flags = ["--drain-seconds=0.5"]
    with workers_with([0], [1], topology="pair", directory=tmp_path, flags=flags) as workers:
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
        assert 'tuplewire_peer_pending_messages{peer="worker-1"} 0.0' in sent
        assert "tuplewire_pending_messages 3.0" in sent
        assert 'tuplewire_received_messages_total{source="worker-0"} 6.0' in scrape(far.metrics_url)
        assert workers.stop() == [1, 1]
    balance = "accepted 9 = acknowledged 6 + dropped shutdown 3 + pending 0"
    log = (tmp_path / "worker-0.log").read_text()
    assert "worker.drain_waits messages=3 tasks=0" in log
    assert f'ledger="{balance}"' in log
