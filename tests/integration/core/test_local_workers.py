"""Workers that a process starts for itself, and stops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import eventually

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.child import LaunchError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.wire import control_pb2
from tuplewire_topology.spark.worker_lookup import RunToken, _host_of, nearest_worker


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
        nearest_worker(None, elsewhere, "t", 30, file),
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
