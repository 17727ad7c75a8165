"""Workers that a program starts for itself, with its packages, and stops."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers import eventually
from helpers.traffic import deliver

import tuplewire
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ClosedError, ConfigError, UnknownTaskError, UnreachableError
from tuplewire.processes.child import LaunchError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.wire import control_pb2
from tuplewire_topology.spark.plan import RunToken, _host_of, nearest_worker


def test_local_workers_start_get_ready_and_end() -> None:
    """WorkerProcesses starts a topology on free ports, and stops it with exit codes 0."""
    with WorkerProcesses(2, "pair") as workers:
        assert [each.worker_id for each in workers.endpoints] == ["worker-0", "worker-1"]
        assignment = workers.assign({0: [0, 2], 1: [1, 3]})
        for index, endpoint in enumerate(workers.endpoints):
            with ControlClient(endpoint.unix_address) as client:
                assert client.status().state == control_pb2.WORKER_STATE_READY
                assert client.assignment() == assignment
            assert list(assignment.workers[index].tasks) == [index, index + 2]
        directory = workers.log_of(0).parent
        assert workers.stop() == [0, 0]
    assert not directory.exists()


def test_local_worker_that_cannot_start_shows_what_it_said(tmp_path: Path) -> None:
    """The error contains the worker's own output."""
    workers = WorkerProcesses(1, "pair", directory=tmp_path, flags=["--max-message-bytes=nonsense"])
    with pytest.raises(LaunchError, match="ended with code 64") as caught:
        workers.start()
    assert "flag --max-message-bytes: 'nonsense' is not a size" in str(caught.value)


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
    assert "reason=parent-gone" in (tmp_path / "worker-0.log").read_text()


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
        nearest_worker(None, elsewhere, "t", file),
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
    with tuplewire.local("1,7-8") as worker:
        with worker.client() as client:
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
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(archive), *packages],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(archive) in done.stdout
