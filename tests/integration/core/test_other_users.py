"""Access to the Unix socket: the operating system admits the owner and the group, but no other user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.tools import missing

from tuplewire.processes.worker_processes import WorkerProcesses

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
