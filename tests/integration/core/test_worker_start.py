"""The worker as a real process: configuration, addresses, sockets, logs, signals and shutdown."""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import eventually
from helpers.memory import heaps
from helpers.worker_process import Running, run_command, running

from tuplewire.connection.control_client import ControlClient


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--listen=nowhere"], "flag --listen: 'nowhere' is not host:port"),
        (["--config=/no/such.toml"], "cannot read the configuration /no/such.toml"),
        (["--receive-queue-bytes=1k"], "receive_queue_bytes"),
        (["--nonsense"], "--nonsense"),
        (["--tasks=0-9", "--assignment-file=a.json"], "tasks are for a worker that is alone"),
    ],
)
def test_bad_configuration_is_one_line_and_64(flags: list[str], complaint: str) -> None:
    """An invalid configuration ends the process with 64 and one line that names the problem."""
    ended = run_command("worker", *flags)
    assert ended.returncode == 64
    assert ended.stderr.count("\n") == 1
    assert complaint in ended.stderr


def _refused(**changes: object) -> str:
    """Start a worker that must fail with one line, and return this line."""
    flags = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", **changes}
    ended = run_command("worker", *(f"--{name}={value}" for name, value in flags.items()))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    return ended.stderr


def _admin(worker: Running) -> str:
    return str(worker.bound["metrics_url"]).removeprefix("http://").removesuffix("/metrics")


def test_what_another_worker_uses_is_not_taken_over(shared: Running) -> None:
    """A second worker on the same port, admin port or Unix socket is refused, and the first still answers."""
    path = shared.directory / "w.sock"
    assert f"cannot listen on {shared.address}" in _refused(listen=shared.address)
    assert f"cannot listen on {_admin(shared)} for the admin port" in _refused(admin=_admin(shared))
    assert "another worker uses it" in _refused(**{"listen-unix": path})
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
    assert {"listening", "worker.started", "worker.drained"} <= {event["event"] for event in events}
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
from tuplewire.connection.loop import messaging_loop
from tuplewire_service.command.cli import main
from tuplewire_service.worker.servers import Servers
def fail(): raise RuntimeError("sabotage")
def sabotage():
    while not pathlib.Path({file!r}).exists(): time.sleep(0.01)
    messaging_loop().loop.call_soon_threadsafe({action})
    messaging_loop().loop.call_soon_threadsafe(pathlib.Path({file!r}).with_name("done").touch)
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
        assert "the event loop turns, and the end waits for servers to close" in worker.log


def test_a_defect_ends_the_process_with_70(tmp_path: Path) -> None:
    """An unhandled exception on the event loop is logged and ends the worker with 70."""
    with running(tmp_path, command=_sabotaged(tmp_path, "fail")) as worker:
        (tmp_path / "go").touch()
        assert worker.process.wait(20) == 70
        assert "RuntimeError: sabotage" in worker.log
