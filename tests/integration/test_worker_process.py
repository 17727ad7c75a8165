"""The worker as a real process: start, addresses, probes, metrics, control, health, end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers import eventually
from helpers.tools import require_tool

from tuplewire import Client, TaskMessageBatch
from tuplewire.control import ControlClient
from tuplewire.errors import (
    ProtocolError,
    StaleAssignmentError,
    UnreachableError,
    WrongTopologyError,
)
from tuplewire.wire import control_pb2, health_pb2
from tuplewire.wire.health_pb2_grpc import HealthStub
from tuplewire_service.launching.child import LaunchError
from tuplewire_service.server.launch import LocalWorkers
from tuplewire_service.server.wire import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
COMMAND = [sys.executable, "-m", "tuplewire_service"]


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TUPLEWIRE_")}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False, env=_environment()
    )


@dataclass
class Running:
    """A worker under test."""

    process: subprocess.Popen[bytes]
    directory: Path
    bound: dict[str, Any]

    @property
    def address(self) -> str:
        return str(self.bound["address"])

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)

    def get(self, path: str, accept: str = "") -> tuple[int, str]:
        url = str(self.bound["metrics_url"]).removesuffix("/metrics") + path
        request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - our own http address
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextlib.contextmanager
def running(
    directory: Path, *flags: str, command: list[str] | None = None, environment: dict[str, str] | None = None
) -> Iterator[Running]:
    """Start a worker on free ports, and kill it if the test has not ended it."""
    addresses = directory / "addresses.json"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(command or COMMAND),
                "worker",
                "--worker-id=a",
                "--listen=127.0.0.1:0",
                f"--listen-unix={directory}/w.sock",
                "--admin=127.0.0.1:0",
                f"--address-file={addresses}",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**_environment(), **(environment or {})},
        )
    try:
        eventually(lambda: addresses.exists() or process.poll() is not None, 20, "addresses written")
        assert process.poll() is None, (directory / "log").read_text(encoding="utf-8")
        yield Running(process, directory, json.loads(addresses.read_text(encoding="utf-8")))
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Running]:
    """Run a worker without an assignment."""
    with running(tmp_path) as started:
        yield started


def _assignment(worker: Running, version: int = 1, topology: str = "default") -> control_pb2.Assignment:
    return assignment_to_wire(
        Assignment(version, topology, (AssignedWorker("a", worker.address, (0, 1)),)),
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--listen=nowhere"], "flag --listen: 'nowhere' is not host:port"),
        (["--config=/no/such.toml"], "cannot read the configuration /no/such.toml"),
        (["--receive-queue-bytes=1k"], "receive_queue_bytes"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_configuration_is_one_line_and_64(flags: list[str], complaint: str) -> None:
    """Bad configuration ends the process with 64 and one line that names it."""
    ended = _run("worker", *flags)
    assert ended.returncode == 64
    assert ended.stderr.count("\n") == 1
    assert complaint in ended.stderr


def test_port_in_use_is_an_error(worker: Running) -> None:
    """A second worker on the port says so in one line; the first goes on."""
    ended = _run("worker", f"--listen={worker.address}", "--admin=127.0.0.1:0")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert f"cannot listen on {worker.address}" in ended.stderr
    with ControlClient(worker.address) as client:
        assert client.status().worker_id == "a"


def test_admin_port_in_use_is_an_error(worker: Running) -> None:
    """The same for the admin port."""
    admin = str(worker.bound["metrics_url"]).removeprefix("http://").removesuffix("/metrics")
    ended = _run("worker", "--listen=127.0.0.1:0", f"--admin={admin}")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert f"cannot listen on {admin} for the admin port" in ended.stderr


def test_socket_of_a_worker_is_not_taken_over(worker: Running) -> None:
    """A second worker on the Unix socket is refused, and the first still answers there."""
    path = worker.directory / "w.sock"
    ended = _run("worker", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--listen-unix={path}")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "another worker uses it" in ended.stderr
    with ControlClient(f"unix://{path}") as client:
        assert client.status().worker_id == "a"


def test_socket_of_another_program_is_not_taken_over(tmp_path: Path) -> None:
    """A live socket that no lock protects is found by connecting to it."""
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        ended = _run("worker", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--listen-unix={path}")
    assert ended.returncode == 1
    assert "another process listens on it" in ended.stderr


def test_file_in_the_sockets_place_is_kept(tmp_path: Path) -> None:
    """A file that is not a socket is never removed."""
    path = tmp_path / "data"
    path.write_text("precious")
    ended = _run("worker", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--listen-unix={path}")
    assert ended.returncode == 1
    assert "not a socket" in ended.stderr
    assert path.read_text() == "precious"


def test_left_over_socket_is_replaced(tmp_path: Path) -> None:
    """After a SIGKILL the socket file is still there, and the next worker starts all the same."""
    with running(tmp_path) as killed:
        killed.end(signal.SIGKILL)
        (tmp_path / "addresses.json").unlink()
        assert (tmp_path / "w.sock").exists()
    with running(tmp_path) as worker, ControlClient(f"unix://{tmp_path}/w.sock") as client:
        assert client.status().incarnation > 0
        assert worker.end() == 0


def test_every_file_that_the_system_allows(tmp_path: Path) -> None:
    """A worker that is started with a low soft limit of open files raises it: connections are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with running(tmp_path) as worker:
            assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_socket_has_the_configured_mode(tmp_path: Path) -> None:
    """The mode is that of --socket-mode, whatever the umask."""
    with running(tmp_path, "--socket-mode=0600") as worker:
        assert stat.S_IMODE((tmp_path / "w.sock").stat().st_mode) == 0o600
        assert worker.end() == 0
    assert not (tmp_path / "w.sock").exists()


def test_every_bound_address_is_logged_and_written(worker: Running) -> None:
    """The log and the address file name TCP, the Unix socket and the admin port."""
    log = worker.log
    admin = str(worker.bound["metrics_url"]).removeprefix("http://").removesuffix("/metrics")
    for address in (worker.address, f"unix://{worker.directory}/w.sock", admin):
        assert f"address={address}" in log
    assert not worker.address.endswith(":0")
    assert worker.bound["addresses"] == [worker.address, f"unix://{worker.directory}/w.sock"]


def test_json_log_is_one_object_per_line(tmp_path: Path) -> None:
    """With --log-format json every line is an event."""
    with running(tmp_path, "--log-format=json") as worker:
        worker.end()
        events = [json.loads(line) for line in worker.log.splitlines()]
    assert {"listening", "worker.started", "worker.drained"} <= {event["event"] for event in events}
    (drained,) = [event for event in events if event["event"] == "worker.drained"]
    assert drained["ledger"] == "accepted 0 = acknowledged 0 + dropped 0 + pending 0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(worker: Running, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end the worker in good order: the ledger is printed, the files are removed."""
    assert worker.end(number) == 0
    assert f"worker.draining reason={number.name}" in worker.log
    assert "worker.drained ledger=" in worker.log
    assert not (worker.directory / "addresses.json").exists()
    assert not (worker.directory / "w.sock").exists()


# Code that makes the loop misbehave once the worker listens, then runs the command.
_SABOTAGE = """
import sys, threading, time, pathlib
from tuplewire.loop import messaging_loop
from tuplewire_service.server.cli import main
def fail(): raise RuntimeError("sabotage")
def sabotage():
    while not pathlib.Path({file!r}).exists(): time.sleep(0.01)
    messaging_loop().loop.call_soon_threadsafe({action})
threading.Thread(target=sabotage, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


def _sabotaged(directory: Path, action: str) -> list[str]:
    return [sys.executable, "-c", _SABOTAGE.format(file=str(directory / "go"), action=action)]


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    """While it drains, a second signal ends the worker with 128 + the signal's number."""
    command = _sabotaged(tmp_path, "time.sleep, 60")
    with running(tmp_path, "--drain-seconds=60", command=command) as worker:
        (tmp_path / "go").touch()
        eventually(lambda: worker.get("/livez")[0] == 503, 20, "stuck")
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: "worker.draining" in worker.log, 10, "draining")
        assert worker.end(signal.SIGINT) == 130
        assert "second signal" in worker.log


def test_stuck_loop_fails_the_probes_and_cannot_hold_the_end_up(tmp_path: Path) -> None:
    """When the event loop does not turn, /livez and /readyz say so, and the end is forced with 70."""
    with running(tmp_path, "--drain-seconds=0.5", command=_sabotaged(tmp_path, "time.sleep, 60")) as worker:
        (tmp_path / "go").touch()
        eventually(lambda: worker.get("/livez")[0] == 503, 20, "stuck")
        assert "did not answer within 2 s" in worker.get("/livez")[1]
        assert worker.get("/readyz")[0] == 503
        assert worker.get("/metrics")[0] == 500
        assert worker.end() == 70
        assert "the event loop is stuck" in worker.log


def test_a_defect_ends_the_process_with_70(tmp_path: Path) -> None:
    """An exception that nobody handled on the event loop is logged and ends the worker."""
    with running(tmp_path, command=_sabotaged(tmp_path, "fail")) as worker:
        (tmp_path / "go").touch()
        assert worker.process.wait(20) == 70
        assert "RuntimeError: sabotage" in worker.log


def test_probes_and_page(worker: Running) -> None:
    """/livez is fine, /readyz says what is missing until there is an assignment, and / lists them."""
    assert worker.get("/livez") == (200, "live\n")
    code, reason = worker.get("/readyz")
    assert code == 503
    assert "assignment" in reason
    with ControlClient(worker.address) as client:
        client.update_assignment(_assignment(worker))
        client.wait_ready(10)
    assert worker.get("/readyz") == (200, "ready\n")
    assert "/metrics" in worker.get("/")[1]
    assert worker.get("/nowhere")[0] == 404


def test_many_idle_admin_connections_do_not_hold_the_end_up(worker: Running) -> None:
    """Connections that say nothing are bounded in number, and cut off at the end."""
    host, port = str(worker.bound["metrics_url"]).removeprefix("http://").removesuffix("/metrics").split(":")
    with contextlib.ExitStack() as connections:
        for _ in range(50):
            connections.enter_context(socket.create_connection((host, int(port)), timeout=5))
        started = time.monotonic()
        assert worker.end() == 0
        assert time.monotonic() - started < 4


def test_metrics_have_every_family_and_every_reason(worker: Running) -> None:
    """What dashboards and alerts build on is there from the first scrape, at 0."""
    with ControlClient(worker.address) as client:
        client.update_assignment(_assignment(worker, version=3))
        client.wait_ready(10)
    code, text = worker.get("/metrics")
    assert code == 200
    for reason in ("unknown_task", "refused", "closed", "shutdown"):
        assert f'tuplewire_dropped_messages_total{{reason="{reason}"}} 0.0' in text
    assert 'tuplewire_refused_total{code="UNKNOWN_TASK"} 0.0' in text
    for family in (
        "received_messages_total counter",
        "received_batches_total counter",
        "received_bytes_total counter",
        "sent_messages_total counter",
        "sent_batches_total counter",
        "sent_bytes_total counter",
        "reconnects_total counter",
        "pending_messages gauge",
        "connection_up gauge",
    ):
        assert f"# TYPE tuplewire_{family}\n" in text
    for sample in (
        "tuplewire_accepted_messages_total 0.0",
        "tuplewire_acknowledged_messages_total 0.0",
        "tuplewire_worker_pending_messages 0.0",
        "tuplewire_ready 1.0",
        "tuplewire_assignment_version 3.0",
        "tuplewire_assignment_file_errors_total 0.0",
        'tuplewire_queue_messages{task="0"} 0.0',
        'tuplewire_queue_capacity_messages{task="1"} 131072.0',
    ):
        assert f"\n{sample}\n" in text
    assert 'topology="default",version="' in text


def test_metrics_negotiate_openmetrics(worker: Running) -> None:
    """A scraper that asks for OpenMetrics gets it."""
    assert worker.get("/metrics", "application/openmetrics-text; version=1.0.0")[1].endswith("# EOF\n")


def test_promtool_finds_nothing(worker: Running) -> None:
    """Prometheus' own checker has no complaint about names, units and help."""
    promtool = require_tool("promtool", "Debian's package prometheus")
    with ControlClient(worker.address) as client:
        client.update_assignment(_assignment(worker))
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=worker.get("/metrics")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_control_over_both_addresses(worker: Running) -> None:
    """Status, assignment and load are served over TCP and over the Unix socket alike."""
    for address in (worker.address, str(worker.bound["unix_address"])):
        with ControlClient(address) as client:
            status = client.status()
            assert (status.worker_id, status.topology) == ("a", "default")
            assert list(status.addresses) == worker.bound["addresses"]
            assert client.assignment() is None
    with ControlClient(worker.address) as client:
        assert client.update_assignment(_assignment(worker, 2))
        assert not client.update_assignment(_assignment(worker, 2))
        assert client.assignment() == _assignment(worker, 2)
        assert client.load([0, 1]) == {0: 0.0, 1: 0.0}
        client.wait_ready(10)
        assert client.status().state == control_pb2.WORKER_STATE_READY


def test_control_refusals_are_named(worker: Running) -> None:
    """An older, a foreign and a broken assignment are refused by name, and the old one stays."""
    with ControlClient(worker.address) as client:
        client.update_assignment(_assignment(worker, 2))
        with pytest.raises(StaleAssignmentError):
            client.update_assignment(_assignment(worker, 1))
        with pytest.raises(WrongTopologyError, match="other"):
            client.update_assignment(_assignment(worker, 3, "other"))
        with pytest.raises(ProtocolError, match="version"):
            client.update_assignment(control_pb2.Assignment(topology="default"))
        assert client.assignment() == _assignment(worker, 2)


def test_nobody_there_is_unreachable() -> None:
    """A client of an address where nobody listens says so, and names it."""
    with ControlClient("127.0.0.1:1", timeout=5) as client, pytest.raises(UnreachableError, match=r"127.*:1"):
        client.status()


def test_wait_ready_says_what_it_waited_for(worker: Running) -> None:
    """A worker without an assignment is not ready, and the error says what to look at."""
    with ControlClient(worker.address) as client, pytest.raises(UnreachableError, match="readyz"):
        client.wait_ready(0.3)


def test_drain_call_ends_the_worker(worker: Running) -> None:
    """Drain answers at once, and the worker exits with 0."""
    with ControlClient(worker.address) as client:
        assert client.drain(5)
    assert worker.process.wait(20) == 0
    assert "reason=drain-call deadline_seconds=5.0" in worker.log


def test_health_check(worker: Running) -> None:
    """Check knows readiness and liveness, and nothing else."""
    with grpc.insecure_channel(worker.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]

        def check(service: str) -> int:
            status: int = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status
            return status

        assert check("liveness") == SERVING
        assert check("") == NOT_SERVING
        with ControlClient(worker.address) as client:
            client.update_assignment(_assignment(worker))
            client.wait_ready(10)
        assert check("") == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check("nonsense")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_watch_follows_changes_and_ends_with_the_drain(worker: Running) -> None:
    """Watch says NOT_SERVING, SERVING once there is an assignment, NOT_SERVING on drain, and ends."""
    with grpc.insecure_channel(worker.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        seen: list[int] = []
        # gRPC's blocking client loses a message that nobody waits for when the stream ends, so one thread
        # does nothing but wait.
        reader = threading.Thread(target=lambda: seen.extend(response.status for response in watch))
        reader.start()
        eventually(lambda: seen == [NOT_SERVING], 10, "first state")
        with ControlClient(worker.address) as client:
            client.update_assignment(_assignment(worker))
        eventually(lambda: seen == [NOT_SERVING, SERVING], 10, "ready")
        worker.process.send_signal(signal.SIGTERM)
        reader.join(20)
        assert seen == [NOT_SERVING, SERVING, NOT_SERVING]
        assert watch.code() is grpc.StatusCode.OK
    assert worker.process.wait(20) == 0


def test_health_watch_of_an_unknown_service(worker: Running) -> None:
    """Watch answers SERVICE_UNKNOWN and stays open, as the protocol says."""
    with grpc.insecure_channel(worker.address) as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        watch = health.Watch(health_pb2.HealthCheckRequest(service="x"), timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_assignment_file_is_followed(tmp_path: Path) -> None:
    """The worker takes the file's assignment, keeps it while the file is bad, and counts that."""
    file = tmp_path / "assignment.json"
    with running(tmp_path, f"--assignment-file={file}") as worker, ControlClient(worker.address) as client:
        assignment = Assignment(1, "default", (AssignedWorker("a", worker.address, (0,)),))
        file.write_text(json.dumps(assignment.to_json()))
        client.wait_ready(10)
        file.write_text("{")
        eventually(lambda: "assignment_file.refused" in worker.log.partition("applied")[2], 10, "refused")
        assert client.status().assignment_version == 1
        assert "tuplewire_assignment_file_errors_total 2.0" in worker.get("/metrics")[1]


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    """A TUPLEWIRE_ variable reaches the process."""
    with (
        running(tmp_path, environment={"TUPLEWIRE_TOPOLOGY": "words"}) as worker,
        ControlClient(worker.address) as client,
    ):
        assert client.status().topology == "words"


def test_command_shows_status_and_assigns(worker: Running) -> None:
    """The commands assign, status and drain do what the control service does."""
    assignment = Assignment(1, "default", (AssignedWorker("a", worker.address, (0, 1)),))
    file = worker.directory / "assignment.json"
    file.write_text(json.dumps(assignment.to_json()))
    assigned = _run("assign", worker.address, str(file))
    assert (assigned.returncode, assigned.stderr) == (0, "")
    assert "assignment 1 of default is in force" in assigned.stdout
    status = json.loads(_run("status", "--json", worker.address).stdout)
    assert (status["assignment_version"], status["ledger"]["balanced"]) == (1, True)
    shown = _run("status", str(worker.bound["unix_address"])).stdout
    assert "accepted 0 = acknowledged 0 + dropped 0 + pending 0" in shown
    assert re.search(r"^time        \d+% \w+, .*\d+% backpressured_queue", shown, re.MULTILINE)
    assert _run("drain", worker.address).returncode == 0
    assert worker.process.wait(20) == 0
    gone = _run("status", worker.address)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert worker.address in gone.stderr


def test_local_workers_start_get_ready_and_end() -> None:
    """LocalWorkers brings a topology up on free ports and takes it down with exit codes 0."""
    with LocalWorkers(2, "pair") as workers:
        assert [each.worker_id for each in workers.endpoints] == ["worker-0", "worker-1"]
        assignment = workers.assign({0: [0, 2], 1: [1, 3]})
        for index, endpoint in enumerate(workers.endpoints):
            with ControlClient(endpoint.unix_address) as client:
                assert client.status().state == control_pb2.WORKER_STATE_READY
                assert client.assignment() == assignment_to_wire(assignment)
            assert assignment.tasks_of(endpoint.worker_id) == (index, index + 2)
        directory = workers.log_of(0).parent
        assert workers.stop() == [0, 0]
    assert not directory.exists()


def test_ledger_and_metrics_count_what_flowed(tmp_path: Path) -> None:
    """Both workers' metrics agree with what was sent; what a drain cannot pass on is counted and printed."""
    flags = ["--drain-seconds=0.5"]
    with LocalWorkers(2, "pair", directory=tmp_path, flags=flags) as workers:
        workers.assign({0: [0], 1: [1]})
        near, far = workers.endpoints
        with Client(near.unix_address, topology="pair") as client:
            for _ in range(3):
                client.send(TaskMessageBatch.from_columns([0, 1, 1], [b"abc", b"d", b"e"]))
            client.flush(10)
        eventually(lambda: 'queue_messages{task="1"} 6.0' in _scrape(far.metrics_url), 10, "arrived")
        # The acknowledgement of the last frame between the workers may still be on its way.
        eventually(lambda: "acknowledged_messages_total 6.0" in _scrape(near.metrics_url), 10, "acknowledged")
        sent = _scrape(near.metrics_url)
        assert 'tuplewire_received_messages_total{source="client"} 9.0' in sent
        assert 'tuplewire_received_bytes_total{source="client"} 15.0' in sent
        assert 'tuplewire_sent_messages_total{peer="worker-1"} 6.0' in sent
        assert 'tuplewire_sent_bytes_total{peer="worker-1"} 6.0' in sent
        assert 'tuplewire_connection_up{peer="worker-1"} 1.0' in sent
        assert 'tuplewire_pending_messages{peer="worker-1"} 0.0' in sent
        assert "tuplewire_worker_pending_messages 3.0" in sent
        assert 'tuplewire_received_messages_total{source="worker-0"} 6.0' in _scrape(far.metrics_url)
        assert workers.stop() == [0, 0]
    balance = "accepted 9 = acknowledged 6 + dropped shutdown 3 + pending 0"
    assert f'ledger="{balance}"' in (tmp_path / "worker-0.log").read_text()


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - our own http address
        return str(response.read().decode())


def test_local_worker_that_cannot_start_shows_what_it_said(tmp_path: Path) -> None:
    """The error has the worker's own words."""
    workers = LocalWorkers(1, "pair", directory=tmp_path, flags=["--max-message-bytes=nonsense"])
    with pytest.raises(LaunchError, match="ended with code 64") as caught:
        workers.start()
    assert "flag --max-message-bytes: 'nonsense' is not a size" in str(caught.value)


def test_local_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """When the launching process is killed, its workers drain and end by themselves."""
    code = (
        "import sys, time\n"
        "from tuplewire_service.server.launch import LocalWorkers\n"
        f"from pathlib import Path\n"
        f"workers = LocalWorkers(1, 'pair', directory=Path({str(tmp_path)!r}))\n"
        "workers.start()\n"
        "print(workers.endpoints[0].process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(worker), 20, "worker ended")
    assert "reason=parent-gone" in (tmp_path / "worker-0.log").read_text()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
