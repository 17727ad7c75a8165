"""The worker as a process: configuration, addresses, sockets, logs and signals; workers of a program."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.memory import heaps
from helpers.ports import free_port
from helpers.tools import ran
from helpers.topology import TOPOLOGY, assignment_file
from helpers.traffic import deliver
from helpers.worker_process import Running, run_command, running

import tuplewire
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, ConfigError, ProtocolError, UnknownTaskError, UnreachableError
from tuplewire.processes.child import LaunchError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.wire import control_pb2
from tuplewire_topology.spark.plan import RunToken, _host_of, ensure_worker


def _refused(**changes: object) -> str:
    """Start a worker that must fail with one line, and return this line."""
    flags = {"listen": "127.0.0.1:0", "listen-admin": "127.0.0.1:0", **changes}
    ended = run_command("worker", *(f"--{name}={value}" for name, value in flags.items()))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    return ended.stderr


def _admin(worker: Running) -> str:
    return str(worker.bound["metrics_url"]).removeprefix("http://").removesuffix("/metrics")


def test_what_another_worker_uses_is_not_taken_over(shared: Running) -> None:
    """A second worker on the same port, admin port or Unix socket is refused, and the first still answers."""
    path, admin = shared.directory / "w.sock", _admin(shared)
    assert f"cannot listen on {shared.address}: in use (by a worker?)" in _refused(listen=shared.address)
    refusal = _refused(**{"listen-admin": admin})
    assert f"cannot listen on {admin} for the admin port" in refusal
    assert "; if it is a worker, also change --listen\n" in refusal
    assert "; choose another path" in _refused(**{"listen-unix": path})
    for address in (shared.address, f"unix://{path}"):
        with ControlClient(address) as client:
            assert client.status().worker_id == "a"


def test_socket_of_another_program_is_not_taken_over(tmp_path: Path) -> None:
    """A socket in use that no lock protects is detected by connecting to it."""
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert "another process listens on it" in _refused(**{"listen-unix": path})


def test_file_in_the_sockets_place_is_kept(tmp_path: Path) -> None:
    """A file that is not a socket is never removed."""
    path = tmp_path / "data"
    path.write_text("precious")
    assert "not a socket" in _refused(**{"listen-unix": path})
    assert path.read_text() == "precious"


def test_left_over_socket_is_replaced(tmp_path: Path) -> None:
    """After a SIGKILL the socket file remains, and the next worker replaces it."""
    with running(tmp_path) as killed:
        killed.end(signal.SIGKILL)
        (tmp_path / "addresses.json").unlink()
        assert (tmp_path / "w.sock").exists()
    with running(tmp_path) as worker, ControlClient(f"unix://{tmp_path}/w.sock") as client:
        assert client.status().incarnation > 0
        assert worker.end() == 0


@pytest.mark.usefixtures("no_fork_server")
def test_every_file_that_the_system_allows(tmp_path: Path) -> None:
    """A worker that starts with a low soft limit of open files raises it, because connections are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with running(tmp_path) as worker:
            assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_share_a_heap(shared: Running) -> None:
    """Threads share the main heap and reuse each other's free memory; gRPC alone has a dozen threads."""
    eventually(lambda: len(list(Path(f"/proc/{shared.process.pid}/task").iterdir())) > 4)
    assert heaps(shared.process.pid) == 0


SLOW_ADMIN_PORT = """
import sys
import time
from tuplewire_service.command.entry import main
from tuplewire_service.process import main as process

bind = process.AdminServer

def bind_slowly(*arguments, **options):
    time.sleep(2)
    server = bind(*arguments, **options)
    print("the admin port is bound", file=sys.stderr, flush=True)
    return server

process.AdminServer = bind_slowly
sys.exit(main())
"""


def test_a_ready_worker_can_be_scraped(tmp_path: Path) -> None:
    """A worker with an assignment file becomes ready only after it has bound its admin port."""
    address = f"127.0.0.1:{free_port()}"
    file = assignment_file(tmp_path, 1, {("a", address): [0]})
    flags = (f"--listen={address}", f"--assignment-file={file}", f"--topology={TOPOLOGY}")
    with running(tmp_path, *flags, command=[sys.executable, "-c", SLOW_ADMIN_PORT]) as worker:
        eventually(lambda: "state=ready" in worker.log, 20, "ready")
        assert worker.log.index("the admin port is bound") < worker.log.index("state=ready")


def test_every_bound_address_is_logged_and_written(shared: Running) -> None:
    """The log and the address file contain TCP, the Unix socket and the admin port."""
    addresses = [shared.address, f"unix://{shared.directory}/w.sock"]
    for address in (*addresses, _admin(shared)):
        assert f"address={address}" in shared.log
    assert not shared.address.endswith(":0")
    assert shared.bound["addresses"] == addresses


def test_json_log_is_one_object_per_line(tmp_path: Path) -> None:
    """With --log-format=json, every line is one JSON object; only the start entry names the transport."""
    with running(tmp_path, "--log-format=json", "--transport=zmq") as worker:
        worker.end()
        events = [json.loads(line) for line in worker.log.splitlines()]
    assert {"worker.not_ready", "worker.started", "worker.drained"} <= {event["event"] for event in events}
    assert [(event["event"], event["transport"]) for event in events if "transport" in event] == [
        ("worker.started", "zmq")
    ]
    (drained,) = [event for event in events if event["event"] == "worker.drained"]
    assert drained["ledger"] == "accepted 0 = acknowledged 0 + dropped 0 + pending 0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(worker: Running, number: signal.Signals) -> None:
    """SIGTERM and SIGINT shut the worker down cleanly: the ledger is logged and the files are removed."""
    assert worker.end(number) == 0
    assert f"worker.draining reason={number.name}" in worker.log
    assert "worker.drained ledger=" in worker.log
    assert not (worker.directory / "addresses.json").exists()
    assert not (worker.directory / "w.sock").exists()


# Code that runs the command, and disturbs the event loop once the worker listens.
_SABOTAGE = """
import asyncio, sys, threading, time, pathlib
from tuplewire.connection.loop import messaging_thread
from tuplewire_service.command.cli import main
from tuplewire_service.worker.servers import Servers
def fail(): raise RuntimeError("sabotage")
def sabotage():
    while not pathlib.Path({file!r}).exists(): time.sleep(0.01)
    messaging_thread().loop.call_soon_threadsafe({action})
    messaging_thread().loop.call_soon_threadsafe(pathlib.Path({file!r}).with_name("done").touch)
threading.Thread(target=sabotage, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


def _sabotaged(directory: Path, action: str) -> list[str]:
    return [sys.executable, "-c", _SABOTAGE.format(file=str(directory / "go"), action=action)]


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    """During a drain, a second signal ends the worker with 128 + the signal's number."""
    command = _sabotaged(tmp_path, "time.sleep, 60")
    with running(tmp_path, "--drain-seconds=60", command=command) as worker:
        (tmp_path / "go").touch()
        eventually(lambda: worker.get("/livez")[0] == 503, 20, "stuck")
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: "worker.draining" in worker.log, 10, "draining")
        assert worker.end(signal.SIGINT) == 130
        assert "second signal" in worker.log


def test_stuck_loop_fails_the_probes_and_cannot_hold_the_end_up(tmp_path: Path) -> None:
    """If the event loop is stuck, /livez and /readyz report it, and the worker is forced to exit with 70."""
    with running(tmp_path, "--drain-seconds=0.5", command=_sabotaged(tmp_path, "time.sleep, 60")) as worker:
        (tmp_path / "go").touch()
        eventually(lambda: "did not answer within 2 s" in worker.get("/livez")[1], 20, "stuck")
        with ThreadPoolExecutor() as asking:
            answers = asking.map(worker.get, ("/livez", "/readyz", "/metrics"))
            assert [code for code, _ in answers] == [503, 503, 500]
        assert worker.end() == 70
        assert "the event loop is stuck" in worker.log


def test_an_end_that_takes_too_long_says_what_it_waits_for(tmp_path: Path) -> None:
    """If a server does not close, the worker is forced to exit with 70, and the log names the cause."""
    hang = "setattr, Servers, 'close', lambda self: asyncio.sleep(60)"
    with running(tmp_path, "--drain-seconds=0.5", command=_sabotaged(tmp_path, hang)) as worker:
        (tmp_path / "go").touch()
        eventually((tmp_path / "done").exists, 20, "sabotaged")
        assert worker.end() == 70
        assert "the event loop responds; the shutdown waits for servers to close" in worker.log


def test_a_defect_ends_the_process_with_70(tmp_path: Path) -> None:
    """An unhandled exception on the event loop is logged and ends the worker with 70."""
    with running(tmp_path, command=_sabotaged(tmp_path, "fail")) as worker:
        (tmp_path / "go").touch()
        assert worker.process.wait(20) == 70
        assert "RuntimeError: sabotage" in worker.log


def test_local_workers_start_get_ready_and_end() -> None:
    """WorkerProcesses starts a topology on free ports, and stops it with exit codes 0."""
    with WorkerProcesses(2, "pair") as workers:
        no_wait: Any = "not used"
        with pytest.raises(ProtocolError, match="task 1 is assigned to"):
            workers.assign({0: [1], 1: [1]}, no_wait)
        with pytest.raises(ConfigError, match="no worker 2 of 2"):
            workers.assign({2: [1]})
        assert [each.worker_id for each in workers.endpoints] == ["worker-0", "worker-1"]
        assignment = workers.assign({0: [0, 2], 1: [1, 3]})
        for index, endpoint in enumerate(workers.endpoints):
            with ControlClient(endpoint.unix_address) as client:
                assert client.status().state == control_pb2.WORKER_STATE_READY
                assert client.get_assignment() == assignment
            assert list(assignment.workers[index].tasks) == [index, index + 2]
        directory = workers.log_path(0).parent
        assert workers.stop() == [0, 0]
    assert not directory.exists()
    with pytest.raises(ClosedError, match="use a with statement"):
        workers.assign({})


def test_local_worker_that_cannot_start_shows_what_it_said(tmp_path: Path) -> None:
    """The error contains the worker's own output."""
    workers = WorkerProcesses(1, "pair", directory=tmp_path, flags=["--max-message-bytes=nonsense"])
    with pytest.raises(LaunchError, match="ended with code 64") as caught:
        workers.start()
    assert "argument --max-message-bytes: 'nonsense' is not a size" in str(caught.value)


def test_local_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """When the launching process is killed, its workers drain and exit automatically."""
    code = (
        "import sys, time\n"
        "from tuplewire.processes.worker_processes import WorkerProcesses\n"
        f"from pathlib import Path\n"
        f"workers = WorkerProcesses(1, 'pair', directory=Path({str(tmp_path)!r}))\n"
        "workers.start()\n"
        "print(workers.endpoints[0].process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(worker), 20, "worker ended")
    assert "reason=stdin_eof" in (tmp_path / "worker-0.log").read_text()


def test_directory_of_local_workers_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory may be relative; the address of the socket in it is absolute."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with WorkerProcesses(1, "pair", directory=Path("here")) as workers:
        assert workers.endpoints[0].unix_address == f"unix://{tmp_path}/here/worker-0.sock"


def test_addresses_of_a_killed_worker_are_not_used(tmp_path: Path) -> None:
    """A killed worker leaves a file with its addresses. The next start in its directory waits for others."""
    workers = WorkerProcesses(1, "pair", directory=tmp_path)
    with workers:
        killed = workers.endpoints[0].process_id
        os.kill(killed, signal.SIGKILL)
    assert (tmp_path / "worker-0.json").exists()
    with workers:
        assert workers.endpoints[0].process_id != killed


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_last_words_of_a_worker_that_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker next to Spark cannot bind, the error contains the last lines of its log."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    elsewhere = "192.0.2.1"  # reserved for documentation; no machine uses it
    with (
        pytest.raises(LaunchError, match=r"ended with code \d+\nthe last lines of .*\n(.*\n)*.*192\.0\.2\.1"),
        RunToken().as_file() as file,
        ensure_worker(None, elsewhere, "t", file),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("unix:///run/w.sock", "driver"),
        ("127.0.0.1:6700", "driver"),
        ("[::1]:6700", "driver"),
        ("worker-0.workers:6700", "worker-0.workers"),
        ("[fd00::7]:6700", "fd00::7"),
    ],
)
def test_where_a_worker_is_that_listens_everywhere(address: str, host: str) -> None:
    """The host is this one if the worker was reached locally; otherwise, it is the host of the address."""
    assert _host_of(address, "driver") == host


def test_a_program_has_a_worker_of_its_own() -> None:
    """The worker has the given tasks, serves its clients, and stops at the end of the block."""
    worker = tuplewire.local("1,7-8")
    worker.start()
    with worker:  # it runs already
        with worker.client() as client:
            worker.start()
            client.send(8, b"eight")
            deliver(client, 1, b"one")
            with client.recv([1, 8], timeout=10) as batches:
                found = {(m.task, m.message) for m in next(batches)}
        assert found <= {(8, b"eight"), (1, b"one")}
        with worker.client() as client, pytest.raises(UnknownTaskError):
            next(client.recv([2], timeout=10))
        assert worker.address in repr(worker)
        address = worker.address
    with ControlClient(address, timeout=1) as control, pytest.raises(UnreachableError):
        control.status()
    with pytest.raises(ClosedError, match="use it in a with statement"):
        worker.client()


def test_a_wrong_list_is_refused_at_once() -> None:
    """Invalid task ids are an error before a process is started."""
    with pytest.raises(ConfigError, match="task ids are written like"):
        tuplewire.local("a-b")


_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import tuplewire
with tuplewire.local("0-1") as worker, tuplewire.Client(worker.address) as client:
    client.send(1, b"x")
    client.flush(30)
    print(tuplewire.__file__)
"""


def test_a_program_with_packages_on_its_path_alone(tmp_path: Path) -> None:
    """A worker starts with Tuplewire only on sys.path, not in site-packages or PYTHONPATH."""
    root = Path(__file__).parents[3]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    archive = tmp_path / "tuplewire.zip"
    with zipfile.ZipFile(archive, "w") as into:
        for name in ("clients/tuplewire", "service/tuplewire_service", "topology/tuplewire_topology"):
            for file in (root / name).rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    into.write(file, file.relative_to((root / name).parent))
    done = ran(sys.executable, "-I", "-S", "-c", _PROGRAM, archive, *packages)
    assert done.returncode == 0, done.stderr
    assert str(archive) in done.stdout
