"""Ports on the loopback interface only, and Unix sockets: their modes, names and paths."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import words
from helpers.leaks import children
from helpers.ports import listening_hosts
from helpers.tools import missing, output_of
from helpers.topology import TOPOLOGY, one_worker
from helpers.traffic import deliver

import tuplewire
from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.processes.child import make_private_directory
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import grpc_target, is_loopback, split_host_port
from tuplewire.settings.settings import settings_of
from tuplewire_service.config.worker_config import HOST_PORT, WorkerConfig
from tuplewire_service.messaging.zmq.zmq_sockets import ipc_endpoint
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
    assert addresses.keys() == {"listen", "listen_admin", "listen_peers"}
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
    with WorkerProcesses(1, "wide", directory=tmp_path, flags=["--listen=[::]:0", "--allow-plaintext"]):
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
    with ControlClient(sys.argv[1], float(sys.argv[3])) as control:
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


def _as_nobody(address: str, group: int, timeout: float = 20) -> str:
    return output_of(_PROGRAM, address, str(group), str(timeout))


def test_another_user_is_kept_out(folder: Path) -> None:
    """With the default mode 0660, the owner and the group can connect, and other users cannot."""
    with WorkerProcesses(1, "test", directory=folder, drain_seconds=1) as workers:
        address = workers.endpoints[0].unix_address
        state = Path(address.removeprefix("unix://")).stat()
        assert (state.st_mode & 0o777, state.st_uid, state.st_gid) == (0o660, os.geteuid(), os.getegid())
        said = _as_nobody(address, _NOBODY, 2)
        assert said.startswith("out")
        assert "Permission denied" in said, said
        assert _as_nobody(address, os.getegid()).startswith("in worker-0")


def test_mode_decides(folder: Path) -> None:
    """With mode 0666, another user can connect: only the mode restricts access."""
    with WorkerProcesses(
        1, "test", directory=folder, flags=["--socket-mode=0666"], drain_seconds=1
    ) as workers:
        assert _as_nobody(workers.endpoints[0].unix_address, _NOBODY).startswith("in worker-0")


@pytest.mark.parametrize("name", ["a%20b", "a#b?c=1", "a b:ä 100%"])
def test_a_socket_with_an_odd_name(tmp_path: Path, name: str) -> None:
    """The socket is at the configured path, and programs connect with the same path."""
    socket = tmp_path / f"{name}.sock"
    with one_worker("w", f"--listen-unix={socket}", directory=tmp_path, tasks=[1]):
        assert stat.S_ISSOCK(socket.stat().st_mode)
        with ControlClient(f"unix://{socket}") as control:
            assert control.status().worker_id == "w"
        with Client(f"unix://{socket}", topology=TOPOLOGY) as client:
            deliver(client, 1, b"x")
            assert len(next(client.recv([1], timeout=20))) == 1


@pytest.mark.parametrize("host", ["dns", "ipv4", "ipv6", "xds", "vsock"])
def test_a_host_that_is_called_like_a_scheme(host: str) -> None:
    """A host named like a gRPC scheme is resolved as a host, not parsed as that scheme."""
    assert grpc_target(f"{host}:6700") == f"dns:///{host}:6700"
    with pytest.raises(UnreachableError) as told, ControlClient(f"{host}:1", timeout=5) as control:
        control.status()
    assert "does not answer as a Tuplewire worker" not in str(told.value)


def test_long_temporary_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start even if the temporary directory is too long for a socket path, and leave no files."""
    long = tmp_path / ("x" * 90) / ("y" * 90)
    long.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    short = Path(tempfile.mkdtemp(prefix="x", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    with tuplewire.local() as worker, worker.client() as client:
        deliver(client, 1, b"x")
    with WorkerProcesses(1, TOPOLOGY, drain_seconds=1) as workers:
        (endpoint,) = workers.endpoints
        with ControlClient(endpoint.unix_address) as control:
            assert control.status().worker_id == "worker-0"
        assert endpoint.unix_address.startswith(f"unix://{short}/")
    assert not list(long.iterdir())
    short.rmdir()


def test_without_any_temporary_directory() -> None:
    """The error recommends setting TMPDIR."""
    program = (
        "import os, tempfile\n"
        "tempfile.tempdir = '/proc/none'\n"
        "os.environ['XDG_RUNTIME_DIR'] = '/proc/none'\n"
        "import tuplewire.processes.child as processes\n"
        "make = tempfile.mkdtemp\n"
        "def fails(prefix, dir): raise FileNotFoundError(2, 'No such file or directory', dir)\n"
        "processes.tempfile.mkdtemp = fails\n"
        "import tuplewire, tuplewire.errors\n"
        "try:\n    tuplewire.local().start()\n"
        "except tuplewire.errors.ConfigError as error:\n    print(error)\n"
    )
    assert "set TMPDIR to one with a short path" in output_of(program)


def test_a_private_directory_is_short_and_private() -> None:
    """A private directory has mode 0700 and a path of limited length."""
    made = Path(make_private_directory(60))
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.rmdir()
    with pytest.raises(ConfigError, match="more than 3 bytes"):
        make_private_directory(3)


@pytest.mark.parametrize("what", ["link", "mode", "file", "dangling"])
def test_zeromqs_directory_is_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A directory that another user may have prepared, as a link, a file or with open mode, is refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place, elsewhere = tmp_path / f"tuplewire-zmq-{os.getuid()}", tmp_path / "elsewhere"
    if what == "mode":
        place.mkdir()
        place.chmod(0o777)
    elif what == "file":
        place.touch(0o600)
    else:
        if what == "link":
            elsewhere.mkdir(mode=0o700)
        place.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="not a directory of this user alone"):
        ipc_endpoint(6700)
    place.rmdir() if what == "mode" else place.unlink()
    assert str(place) in ipc_endpoint(6700)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
