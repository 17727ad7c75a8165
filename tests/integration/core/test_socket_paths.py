"""Unix sockets with unusual names, or with paths that are too long for a socket."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from helpers.scripts import output_of
from helpers.topology import TOPOLOGY, one_worker
from helpers.traffic import deliver

import tuplewire
from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.processes.child import private_directory
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import grpc_target
from tuplewire_service.messaging.zmq.zmq_sockets import ipc_endpoint


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
    made = Path(private_directory(60))
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.rmdir()
    with pytest.raises(ConfigError, match="more than 3 bytes"):
        private_directory(3)


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
