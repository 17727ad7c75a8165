"""How processes are launched: settings by Storm's keys, and when one is started again."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.processes.child import Child, Command, LaunchError
from tuplewire.processes.supervisor import Supervisor
from tuplewire_service.testing import eventually
from tuplewire_topology.clusters.launch_settings import ClusterMode, LaunchSettings

SECONDS = 60.0


def python(program: str, log: Path, **more: Any) -> Command:
    """Return the command that runs a program."""
    return Command(name="it", words=[sys.executable, "-c", program], log=log, **more)


# --- settings ------------------------------------------------------------------------------------------


def test_settings_by_storms_keys() -> None:
    """Every setting is read under Storm's key; the user's own and those of others are left alone."""
    settings = LaunchSettings.from_conf(
        {
            "storm.cluster.mode": "distributed",
            "supervisor.slots.ports": [6700, 0],
            "worker.childopts": "-X dev -W 'error::UserWarning'",
            "topology.worker.childopts": ["-u"],
            "topology.environment": {"A": "b"},
            "supervisor.run.worker.as.user": True,
            "topology.submitter.user": "somebody",
            "storm.log.dir": "/logs",
            "supervisor.worker.restarts": 3,
            "supervisor.worker.start.timeout.secs": 5,
            "supervisor.worker.shutdown.sleep.secs": 2,
            "topology.workers": 2,
            "mine": object(),
        }
    )
    assert settings == LaunchSettings(
        mode=ClusterMode.DISTRIBUTED,
        ports=(6700, 0),
        options=("-X", "dev", "-W", "error::UserWarning"),
        topology_options=("-u",),
        environment={"A": "b"},
        as_user=True,
        user="somebody",
        log_dir="/logs",
        restarts=3,
        start_seconds=5.0,
        stop_seconds=2.0,
    )
    assert LaunchSettings.from_conf({}).mode is ClusterMode.LOCAL


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("storm.cluster.mode", "cloud", "must be one of local, distributed, not 'cloud'"),
        ("supervisor.slots.ports", [70000], "must be a list of ports"),
        ("supervisor.slots.ports", [6700, 6700], "names a port twice"),
        ("worker.childopts", "-X 'dev", "is no command line"),
        ("topology.environment", {"A": 1}, "must be a map from names to texts"),
        ("supervisor.run.worker.as.user", "yes", "must be true or false"),
        ("supervisor.run.worker.as.user", True, "set topology.submitter.user"),
        ("supervisor.worker.restarts", -1, "must be a whole number from 0"),
        ("supervisor.worker.start.timeout.secs", 0, "must be a time in seconds"),
        (
            "supervisor.slots.port",
            [1],
            "unknown setting .*; did you mean supervisor.slots.ports",
        ),
    ],
)
def test_wrong_settings(key: str, value: Any, problem: str) -> None:
    """A value that does not fit, or a key that nobody knows, is named."""
    with pytest.raises(ConfigError, match=problem) as raised:
        LaunchSettings.from_conf({key: value})
    assert key in str(raised.value)


def test_options_have_the_workers_names() -> None:
    """Storm's placeholders in a worker's options are replaced by port, worker and topology."""
    settings = LaunchSettings.from_conf({"worker.childopts": "-X a=%ID% -X b=%WORKER-ID%/%TOPOLOGY-ID%"})
    options = settings.interpreter_options(port=6700, worker_id="w", topology_id="t")
    assert options == ["-X", "a=6700", "-X", "b=w/t"]


# --- one process ---------------------------------------------------------------------------------------


def test_a_child_has_its_environment_and_log(tmp_path: Path) -> None:
    """What a process prints is in its log; variables that are given reach it, and ours do not."""
    program = "import os; print(os.environ['GIVEN'], [key for key in os.environ if 'TUPLEWIRE' in key])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUPLEWIRE_LISTEN", "ours")
        child = Child(python(program, tmp_path / "log", environment={"GIVEN": "this"}))
    assert child.end(time.monotonic() + SECONDS) == 0
    assert (tmp_path / "log").read_text() == "this []\n"
    assert child.last_words() == "the last lines of it:\nthis []"


def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """A process that does not listen is killed at the deadline."""
    child = Child(python("import time; time.sleep(1000)", tmp_path / "log"))
    assert child.end(time.monotonic()) == -9


def test_no_such_program(tmp_path: Path) -> None:
    """A program that is not there is an error that names it."""
    with pytest.raises(LaunchError, match=r"it cannot be started: .*no/such"):
        Child(Command(name="it", words=["/no/such"], log=tmp_path / "log"))


# --- again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("restarts", "code"), [(3, 0), (0, 1)])
def test_no_restart(tmp_path: Path, restarts: int, code: int) -> None:
    """A process that has ended with 0 is not started again, and no process is where that is not wanted."""
    errors: list[TuplewireError] = []
    starts: list[Child] = []

    def start() -> Child:
        starts.append(Child(python(f"raise SystemExit({code})", tmp_path / "log")))
        return starts[-1]

    supervisor = Supervisor(start, restarts, errors.append)
    supervisor.watch()
    eventually(lambda: errors, SECONDS)
    assert len(starts) == 1
    assert f"it ended with code {code}" in str(errors[0])
    assert supervisor.stop(time.monotonic() + SECONDS) == code


def test_a_supervisor_starts_again_and_gives_up(tmp_path: Path) -> None:
    """A process that fails is started again so often, and then whoever watches is told its last words."""
    errors: list[TuplewireError] = []
    starts: list[Child] = []

    def start() -> Child:
        starts.append(Child(python("raise SystemExit('broken')", tmp_path / "log")))
        return starts[-1]

    supervisor = Supervisor(start, 1, errors.append)
    supervisor.watch()
    eventually(lambda: errors, SECONDS)
    assert len(starts) == 2
    assert "it ended with code 1\nthe last lines of it:\nbroken" in str(errors[0])
    assert supervisor.stop(time.monotonic() + SECONDS) == 1


def test_a_start_that_fails_counts(tmp_path: Path) -> None:
    """A restart that raises is one of the number, and the last error is told."""
    errors: list[TuplewireError] = []
    children: list[Child] = []

    def start() -> Child:
        if children:
            raise LaunchError("not this time")
        children.append(Child(python("raise SystemExit(3)", tmp_path / "log")))
        return children[-1]

    supervisor = Supervisor(start, 2, errors.append)
    supervisor.watch()
    eventually(lambda: errors, SECONDS)
    assert str(errors[0]) == "not this time"
    assert supervisor.stop(time.monotonic() + SECONDS) == 3


def test_an_end_that_is_wanted_is_no_failure(tmp_path: Path) -> None:
    """A process that is stopped is not started again, and nobody is told of an error."""
    errors: list[TuplewireError] = []
    starts = threading.Semaphore(1)

    def start() -> Child:
        assert starts.acquire(blocking=False)
        return Child(python("import time; time.sleep(1000)", tmp_path / "log"))

    supervisor = Supervisor(start, 5, errors.append)
    supervisor.watch()
    assert supervisor.stop(time.monotonic() + SECONDS) == -15
    assert not errors
