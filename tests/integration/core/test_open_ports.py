"""Access that the system controls: ports on the loopback interface only, and Unix sockets by their mode."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import words
from helpers.leaks import children
from helpers.listening import listening_hosts
from helpers.tools import missing

import tuplewire
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import is_loopback, split_host_port
from tuplewire.settings.settings import settings_of
from tuplewire_service.config.worker_config import HOST_PORT, WorkerConfig
from tuplewire_topology.clusters.cluster import DistributedCluster

LOOPBACK = {"127.0.0.1"}
SECONDS = 60.0


def of_all_children() -> list[set[str]]:
    """Return the listening addresses of each child process."""
    return [listening_hosts(process) for process in children()]


def test_the_defaults_of_a_worker() -> None:
    """Each default listening address of a worker is on the loopback interface, or is empty."""
    config = WorkerConfig()
    known = settings_of(WorkerConfig)
    addresses = {name: getattr(config, name) for name in known if known[name].kind is HOST_PORT}
    assert addresses.keys() == {"listen", "admin", "listen_peers"}
    assert all(is_loopback(split_host_port(each)[0]) for each in addresses.values() if each)


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_workers_of_a_test(transport: str, tmp_path: Path) -> None:
    """Messages, control, metrics and the port for peers on another transport use the loopback interface."""
    with WorkerProcesses(2, "shut", directory=tmp_path, flags=[f"--transport={transport}"]):
        assert of_all_children() == [LOOPBACK, LOOPBACK]


def test_the_worker_of_a_program() -> None:
    """The worker of `tuplewire.local()` listens on the loopback interface."""
    with tuplewire.local("1"):
        assert of_all_children() == [LOOPBACK]


def test_the_processes_of_a_topology() -> None:
    """The executor processes of a topology listen on the loopback interface."""
    with DistributedCluster() as cluster:
        conf = {"topology.workers": 2}
        running = cluster.submit("words", conf, "helpers.words:topology", collect=["count"])
        assert of_all_children() == [LOOPBACK, LOOPBACK]
        assert len(running.finish(SECONDS).tuples("count")) == len(words.EXPECTED)


def test_an_open_address_would_be_seen(tmp_path: Path) -> None:
    """The check finds an address that is open to the network."""
    flags = ["--listen=[::]:0", "--allow-plaintext"]
    with WorkerProcesses(1, "wide", directory=tmp_path, flags=flags):
        assert of_all_children() == [{"::", *LOOPBACK}]


_NOBODY = 65534
_PROGRAM = """
import os, sys
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(65534)
try:
    with ControlClient(sys.argv[1], 10) as control:
        print("in", control.status().worker_id)
except UnreachableError as error:
    print("out", error)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that every user may enter, unlike pytest's, so that only the socket's mode decides."""
    if os.geteuid() != 0:
        missing("another user's look at the Unix socket; only root can try it")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _as_nobody(address: str, group: int) -> str:
    words = [sys.executable, "-c", _PROGRAM, address, str(group)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def test_another_user_is_kept_out(folder: Path) -> None:
    """With the default mode 0660, the owner and the group can connect, and other users cannot."""
    with WorkerProcesses(1, "test", directory=folder, drain_seconds=1) as workers:
        address = workers.endpoints[0].unix_address
        state = Path(address.removeprefix("unix://")).stat()
        assert (state.st_mode & 0o777, state.st_uid, state.st_gid) == (0o660, os.geteuid(), os.getegid())
        assert _as_nobody(address, _NOBODY).startswith("out")
        assert _as_nobody(address, os.getegid()).startswith("in worker-0")


def test_mode_decides(folder: Path) -> None:
    """With mode 0666, another user can connect: only the mode restricts access."""
    with WorkerProcesses(
        1, "test", directory=folder, flags=["--socket-mode=0666"], drain_seconds=1
    ) as workers:
        assert _as_nobody(workers.endpoints[0].unix_address, _NOBODY).startswith("in worker-0")
