"""Launching of processes: settings with Storm's keys, and restarts."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.child import Child, Command, LaunchError
from tuplewire_service.testing import eventually
from tuplewire_topology.clusters.launching import LaunchSettings
from tuplewire_topology.clusters.worker_process import WorkerProcess

SECONDS = 60.0


def python(program: str, log: Path, **more: Any) -> Command:
    """Return the command that runs a program."""
    return Command(name="it", arguments=[sys.executable, "-c", program], log_path=log, **more)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("supervisor.slots.ports", [6700, 6700], "names a port twice"),
        ("worker.childopts", "-X 'dev", "is not a command line"),
        ("supervisor.run.worker.as.user", True, "set topology.submitter.user"),
        ("supervisor.slots.port", [1], "unknown setting .*; did you mean supervisor.slots.ports"),
    ],
)
def test_wrong_settings(key: str, value: Any, problem: str) -> None:
    """An invalid value and an unknown key are named in the error."""
    with pytest.raises(ConfigError, match=problem) as raised:
        LaunchSettings.from_conf({key: value})
    assert key in str(raised.value)


def test_options_have_the_workers_names() -> None:
    """Storm's placeholders in a worker's options are replaced."""
    settings = LaunchSettings.from_conf({"worker.childopts": "-X a=%ID% -X b=%WORKER-ID%/%TOPOLOGY-ID%"})
    options = settings.interpreter_options(port=6700, worker_id="w", topology_id="t")
    assert options == ["-X", "a=6700", "-X", "b=w/t"]


def test_a_child_has_its_environment_and_log(tmp_path: Path) -> None:
    """A child's output is in its log, and it gets the given variables but not TUPLEWIRE_* ones."""
    program = "import os; print(os.environ['GIVEN'], [key for key in os.environ if 'TUPLEWIRE' in key])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUPLEWIRE_LISTEN", "ours")
        child = Child(python(program, tmp_path / "log", environment={"GIVEN": "this"}))
    assert child.wait_or_kill(time.monotonic() + SECONDS) == 0
    assert (tmp_path / "log").read_text() == "this []\n"
    assert child.log_tail() == "the last lines of it:\nthis []"


def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """A process that ignores the request to stop is killed at the deadline."""
    child = Child(python("import time; time.sleep(1000)", tmp_path / "log"))
    assert child.wait_or_kill(time.monotonic()) == -9


def test_a_fork_does_not_keep_a_child_running(tmp_path: Path) -> None:
    """A child's input ends with this process, even if this process has forked."""
    child = Child(python("import sys; sys.stdin.read()", tmp_path / "log"))
    forked = os.fork()
    if not forked:
        time.sleep(SECONDS)
        os._exit(0)
    assert child.process.stdin
    child.process.stdin.close()  # as at the end of this process
    assert child.wait(SECONDS / 2) == 0
    os.kill(forked, signal.SIGKILL)
    os.waitpid(forked, 0)


def test_no_such_program(tmp_path: Path) -> None:
    """A missing program is an error that names it."""
    with pytest.raises(LaunchError, match=r"it cannot be started: .*no/such"):
        Child(Command(name="it", arguments=["/no/such"], log_path=tmp_path / "log"))


def supervised(tmp_path: Path, program: str, restarts: int) -> WorkerProcess:
    """Run a program that never binds an address, and restart it if it fails."""
    process = WorkerProcess(
        python(program, tmp_path / "log"),
        LaunchSettings(max_restarts=restarts, start_seconds=SECONDS),
        listen="127.0.0.1:0",
        address_file=tmp_path / "address.json",
        credentials=Credentials(),
    )
    process._thread.start()
    return process


@pytest.mark.parametrize(
    ("restarts", "status", "runs", "told"),
    [
        (3, "0", 1, "it ended with code 0"),
        (0, "1", 1, "it ended with code 1"),
        (1, "'broken'", 2, "it ended with code 1\nthe last lines of it:\nbroken"),
        (2, "3", 3, "it ended with code 3"),
    ],
    ids=["0 is no failure", "no restarts", "gives up", "a start that fails counts"],
)
def test_restarts(tmp_path: Path, restarts: int, status: str, runs: int, told: str) -> None:
    """A failing process is restarted up to the limit, and then its last output is reported."""
    process = supervised(tmp_path, f"raise SystemExit({status})", restarts)
    eventually(lambda: process._given_up, SECONDS)
    assert process.start_count == runs
    with pytest.raises(LaunchError, match=told):
        process.raise_if_failed()
    assert process.stop(SECONDS) == {"0": 0, "3": 3}.get(status, 1)


def test_an_end_that_is_wanted_is_no_failure(tmp_path: Path) -> None:
    """A stopped process is not restarted, and no error is reported."""
    process = supervised(tmp_path, "import time; time.sleep(1000)", 5)
    assert process.stop(SECONDS) == -15
    process.raise_if_failed()
    assert process.start_count == 1
