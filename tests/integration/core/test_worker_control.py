"""A worker's control service, health and assignment, as programs and the command use them."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers import eventually
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
from helpers.topology import as_json
from helpers.traffic import deliver
from helpers.worker_process import Running, assignment_for, run_command, running

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ProtocolError, StaleAssignmentError, UnreachableError, WrongTopologyError
from tuplewire.wire import control_pb2, health_pb2
from tuplewire.wire.health_pb2_grpc import HealthStub
from tuplewire_service.worker.assignment import MOST_AHEAD, AssignedWorker, Assignment

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_control_over_both_addresses(worker: Running) -> None:
    """Status, assignment and load are served over TCP and over the Unix socket."""
    for address in (worker.address, str(worker.bound["unix_address"])):
        with ControlClient(address) as client:
            status = client.status()
            assert (status.worker_id, status.topology) == ("a", "default")
            assert list(status.addresses) == worker.bound["addresses"]
            assert client.assignment() is None
    with ControlClient(worker.address) as client:
        assert client.update_assignment(assignment_for(worker, 2))
        assert not client.update_assignment(assignment_for(worker, 2))
        assert client.assignment() == assignment_for(worker, 2)
        assert client.load([0, 1]) == {0: 0.0, 1: 0.0}
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
        assert client.assignment() == assignment_for(worker, 2)


def test_a_version_that_jumps_needs_force(worker: Running, tmp_path: Path) -> None:
    """A version more than 2^32 ahead is refused with advice; `assign --force` applies it."""
    file = tmp_path / "jump.json"
    far = Assignment(2 + 2 * MOST_AHEAD, "default", (AssignedWorker("a", worker.address, (0,)),))
    file.write_text(as_json(far))
    with ControlClient(worker.address) as control:
        for version in (1, 1 + MOST_AHEAD):
            control.update_assignment(assignment_for(worker, version))
        refused = run_command("assign", "--address", worker.address, str(file))
        assert refused.returncode != 0
        assert "too far ahead" in refused.stderr
        assert "--force" in refused.stderr
        assert control.status().assignment_version == 1 + MOST_AHEAD
        assert run_command("assign", "--force", "--address", worker.address, str(file)).returncode == 0
        assert control.status().assignment_version == far.version


def test_nobody_there_is_unreachable() -> None:
    """If no worker listens at an address, the client's error names the address."""
    with ControlClient("127.0.0.1:1", timeout=5) as client, pytest.raises(UnreachableError, match=r"127.*:1"):
        client.status()


def test_wait_ready_says_what_it_waited_for(shared: Running) -> None:
    """A worker without an assignment is not ready, and the error refers to /readyz."""
    with ControlClient(shared.address) as client, pytest.raises(UnreachableError, match="readyz"):
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
    file = tmp_path / "assignment.json"
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
    assert "assignment 1 of default is in force" in assigned.stdout
    status = json.loads(run_command("status", "--json", "--address", worker.address).stdout)
    assert (status["assignment_version"], status["ledger"]["balanced"]) == (1, True)
    shown = run_command("status", "--address", str(worker.bound["unix_address"])).stdout
    assert "accepted 0 = acknowledged 0 + dropped 0 + pending 0" in shown
    assert re.search(r"^time        \d+% \w+, .*\d+% backpressured_queue", shown, re.MULTILINE)
    assert run_command("drain", "--address", worker.address).returncode == 0
    assert worker.process.wait(20) == 0
    assert "worker.draining reason=drain-call" in worker.log
    gone = run_command("status", "--address", worker.address)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert worker.address in gone.stderr
