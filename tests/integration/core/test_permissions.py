"""Permissions: the operations that each client may use, and the errors for all other operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import eventually
from helpers.secured import denied, guarded
from helpers.sinks import first_piece, publish
from helpers.traffic import deliver

from tuplewire import Client, Credentials, TaskGroup
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import PermissionDeniedError, RefusedMessagesError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.wire import control_pb2
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

TOPOLOGY = "test"
DEPLOYED = Path(__file__).parents[3] / "deploy" / "helm" / "tuplewire" / "files" / "permissions.toml"
_SECONDS = 60.0

RULES = """
[[client]]
tokens = ["operator"]
send = "*"
receive = "*"
control = ["assign", "drain", "publish"]

[[client]]
tokens = ["etl/driver"]
control = ["publish"]

[[client]]
tokens = ["etl"]
topologies = ["test"]
send = "1-9"
receive = "2,3"

[[client]]
tokens = ["elsewhere"]
topologies = ["other"]
send = "*"
receive = "*"
control = ["assign", "drain"]
"""


class Guarded(NamedTuple):
    """A worker with tasks 1 to 20, its rules, and the credentials of its clients."""

    endpoint: Endpoint
    rules: Path
    log: Path
    assignment: control_pb2.Assignment
    operator: Credentials
    etl: Credentials
    driver: Credentials
    elsewhere: Credentials


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run the worker."""
    folder = tmp_path_factory.mktemp("permissions")
    with guarded(folder, RULES, "operator", "etl", "etl/driver", "elsewhere") as (workers, credentials):
        assignment = workers.assign({0: range(1, 21)}, _SECONDS)
        rules = folder / "permissions.toml"
        yield Guarded(workers.endpoints[0], rules, workers.log_path(0), assignment, *credentials.values())


def _client(worker: Guarded, credentials: Credentials, client_id: str | None = None) -> Client:
    return Client(worker.endpoint.address, topology=TOPOLOGY, credentials=credentials, client_id=client_id)


def _send(worker: Guarded, credentials: Credentials, *tasks: int, client_id: str | None = None) -> None:
    client = _client(worker, credentials, client_id)
    try:
        for task in tasks:
            client.send(task, b"message")
        client.flush(_SECONDS)
    finally:
        client.close(0)


def _receive(worker: Guarded, credentials: Credentials, task: int) -> list[bytes]:
    with _client(worker, credentials) as client, client.recv([task], timeout=_SECONDS) as batches:
        return [message.message for message in next(batches)]


def test_foreign_task_is_refused_message_by_message(worker: Guarded) -> None:
    """Messages to a forbidden task are refused with a reason; the client's other messages are accepted."""
    before = denied(worker.endpoint, "task")
    with pytest.raises(RefusedMessagesError, match="PERMISSION_DENIED: 1 message to task 15") as told:
        _send(worker, worker.etl, 3, 15, 3)
    assert "token etl may not send to task 15" in str(told.value)
    assert len(told.value.refusals) == 1
    assert _receive(worker, worker.etl, 3)
    assert denied(worker.endpoint, "task") == before + 1
    with ControlClient(worker.endpoint.address, credentials=worker.etl) as control:
        assert control.status().tasks[14].queued_messages == 0


def test_foreign_task_cannot_be_received(worker: Guarded) -> None:
    """A subscription that contains a forbidden task is refused as a whole."""
    with (
        _client(worker, worker.etl) as client,
        client.recv([2, 4], timeout=_SECONDS) as batches,
        pytest.raises(PermissionDeniedError, match="receive from task 4"),
    ):
        next(batches)


def test_foreign_task_cannot_be_published_to(worker: Guarded) -> None:
    """Spark's sinks can only stage messages for tasks that they may send to."""
    with (
        ControlClient(worker.endpoint.address, credentials=worker.etl) as control,
        pytest.raises(PermissionDeniedError, match="send to task 15"),
    ):
        control.stage(first_piece("sink", 1, "a", [TaskGroup.of(15, [b"a"])]))


def test_foreign_topology_is_refused(worker: Guarded) -> None:
    """A client with rules for another topology only is refused, regardless of its permissions there."""
    before = denied(worker.endpoint, "topology")
    with pytest.raises(PermissionDeniedError, match="may not use topology 'test'"):
        _send(worker, worker.elsewhere, 1)
    with pytest.raises(PermissionDeniedError, match="may not use topology"):
        _receive(worker, worker.elsewhere, 1)
    assert denied(worker.endpoint, "topology") == before + 2


def test_names_belong_to_their_owners(worker: Guarded) -> None:
    """Clients with the same id but different tokens have separate sessions, consumers and sinks."""
    with _client(worker, worker.operator, "shared") as client:
        deliver(client, 7, b"mine")
        _send(worker, worker.etl, 7, client_id="shared")
        deliver(client, 7, b"still mine")
        assert client.ledger().acknowledged == 2
    for executor, driver in ((worker.operator, worker.operator), (worker.etl, worker.driver)):
        with (
            ControlClient(worker.endpoint.address, credentials=executor) as control,
            ControlClient(worker.endpoint.address, credentials=driver) as publisher,
        ):
            for epoch in (1, 2):
                group = TaskGroup.of(7, [b"a"])
                assert publish(control, "shared", epoch, [group], publisher=publisher) == 1


def test_rules_change_under_a_session(worker: Guarded) -> None:
    """An open session follows the current rules; an invalid file changes nothing."""
    with _client(worker, worker.etl) as client:
        deliver(client, 8, b"allowed")
        worker.rules.write_text(RULES.replace('send = "1-9"', 'send = "1"'), encoding="utf-8")

        def refused() -> bool:
            try:
                deliver(client, 8, b"denied in a moment")
            except RefusedMessagesError:
                return True
            return False

        eventually(refused, _SECONDS)
        worker.rules.write_text("nonsense", encoding="utf-8")
        eventually(lambda: "files.reload_failed" in worker.log.read_text(encoding="utf-8"), _SECONDS)
        assert refused()
        worker.rules.write_text(RULES, encoding="utf-8")
        eventually(lambda: not refused(), _SECONDS)


def test_without_tls_nobody_acts_as_a_worker(worker: Guarded, tmp_path: Path) -> None:
    """With rules but without TLS, a token does not let a client act as a worker."""
    before = denied(worker.endpoint, "not_a_worker")
    flags = [f"--token-file={worker.operator.token_file}", "--worker-id=other"]
    with WorkerProcesses(1, TOPOLOGY, flags=flags, directory=tmp_path, drain_seconds=1) as workers:
        other = AssignedWorker("other", workers.endpoints[0].address, (50,))
        near = AssignedWorker(worker.endpoint.worker_id, worker.endpoint.address, (1,))
        assignment = Assignment(2, TOPOLOGY, (other, near))
        with ControlClient(workers.endpoints[0].unix_address, credentials=worker.operator) as control:
            control.update_assignment(assignment_to_wire(assignment))
            eventually(lambda: denied(worker.endpoint, "not_a_worker") > before, _SECONDS)


def test_user_code_of_an_executor_has_no_control(tmp_path: Path) -> None:
    """With the chart's rules, an executor can send, receive, stage and look; only the driver can do more."""
    rules = DEPLOYED.read_text(encoding="utf-8")
    with guarded(tmp_path, rules, "programs/driver", "programs") as (workers, credentials):
        driver, executor = credentials.values()
        assignment = workers.assign({0: [1]}, _SECONDS)
        address = workers.endpoints[0].address
        with Client(address, topology=TOPOLOGY, credentials=executor) as client:
            deliver(client, 1, b"message")
            with client.recv([1], timeout=_SECONDS) as batches:
                assert [message.message for message in next(batches)] == [b"message"]
        attempt = control_pb2.StagedAttempt(partition=0, attempt="a", messages=1, piece_count=1)
        about: dict[str, Any] = {"topology": TOPOLOGY, "sink": "sink", "epoch": 1}
        publish = control_pb2.PublishRequest(**about, attempts=[attempt])
        with (
            ControlClient(address, credentials=executor) as control,
            ControlClient(address, credentials=driver) as operator,
        ):
            control.stage(first_piece("sink", 1, "a", [TaskGroup.of(1, [b"a"])]))
            assert control.status().worker_id
            assert control.get_assignment() is not None
            calls: dict[str, Callable[[], object]] = {
                "UpdateAssignment": lambda: control.update_assignment(assignment, force=True),
                "Drain": control.drain,
                "Publish": lambda: control.publish(publish),
                "Begin": lambda: control.begin(control_pb2.BeginRequest(**about, run="run")),
                "Check": lambda: control.check(control_pb2.CheckRequest(**about)),
                "GetProgress": lambda: control.progress(control_pb2.GetProgressRequest(**about)),
                "GetDebug": control.debug,
                "ReportProgram": lambda: control.report_program(control_pb2.ReportProgramRequest()),
                "SetLogging": lambda: control.set_logging("debug", seconds=1),
            }
            for method, call in calls.items():
                with pytest.raises(PermissionDeniedError, match=f"may not call {method}"):
                    call()
            assert operator.update_assignment(assignment) is False
            operator.publish(publish)
            assert operator.drain()
