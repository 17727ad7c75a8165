"""The debug information of a running worker, and the settings that can be changed while it runs."""

from __future__ import annotations

import json
import os
import signal
import stat
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers import eventually
from helpers.secured import denied, guarded
from helpers.traffic import deliver
from helpers.worker_process import Running, run_command, running

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import PermissionDeniedError, ProtocolError, WrongTopologyError

SECONDS = 60.0
JSON = ["router.json", "live.json", "status.json", "versions.json"]
FILES = sorted([*JSON, "log.txt", "metrics.txt", "settings.toml", "stacks.txt"])


RULES = """
[[client]]
tokens = ["operator"]
control = ["assign", "debug"]

[[client]]
tokens = ["etl"]
send = "*"
control = ["drain"]
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a worker with tasks 0 to 9."""
    with running(tmp_path_factory.mktemp("debug"), "--tasks=0-9", "--log-level=warning") as worker:
        yield worker


def test_a_bundle_has_it_all(worker: Running, tmp_path: Path) -> None:
    """A bundle has the state, stacks, log, metrics and settings of a worker; only its owner can read it."""
    file = tmp_path / "worker.zip"
    with Client(worker.address, client_id="shop") as client:
        deliver(client, 3, b"message")
        ran = run_command("debug", "--address", worker.address, "-o", str(file))
        assert (ran.returncode, ran.stderr) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as bundle:
        assert sorted(bundle.namelist()) == FILES
        read = {name: bundle.read(name).decode() for name in FILES}
    status = json.loads(read["status.json"])
    assert [each["sender_id"] for each in status["sessions"]] == ["shop"]
    assert json.loads(read["versions.json"])["process_id"] == worker.bound["process_id"]
    assert [each["queued_messages"] for each in status["tasks"] if each["task"] == 3] == [1]
    assert [each["task"] for each in json.loads(read["live.json"])["tasks"]] == list(range(10))
    assert json.loads(read["router.json"])["waiting"] == {"3": 1}
    assert 'topology = "default"' in read["settings.toml"]
    assert "# token_file is not set" in read["settings.toml"]
    assert "tuplewire_accepted_messages_total 1.0" in read["metrics.txt"]
    assert "thread MainThread" in read["stacks.txt"]
    assert ", in _tick\n" in read["stacks.txt"]
    again = run_command("debug", "--address", worker.address, "-o", str(file))
    assert again.returncode == 64
    assert "is there already" in again.stderr


def test_a_bundle_has_no_secret(tmp_path: Path) -> None:
    """A bundle contains no token; a client without the permission gets no bundle and writes no file."""
    flags = ["--log-level=debug"]
    with guarded(tmp_path, RULES, "operator", "etl", more_flags=flags) as (workers, credentials):
        operator, etl = credentials.values()
        workers.assign({0: range(5)}, SECONDS)
        (worker,) = workers.endpoints
        with ControlClient(worker.address, credentials=etl) as control:
            with pytest.raises(PermissionDeniedError, match="may not call GetDebug: add 'debug' to"):
                control.debug()
            with pytest.raises(PermissionDeniedError, match="may not call SetLogging"):
                control.set_logging("debug", seconds=1)
        assert denied(worker, "control") == 2
        with ControlClient(worker.address, credentials=operator) as control:
            files = control.debug()
        assert "token_file" in files["settings.toml"].decode()
        secrets = [f"{name}-{'0' * 20}".encode() for name in credentials]
        assert not any(secret in content for secret in secrets for content in files.values())
        file = tmp_path / "none.zip"
        ran = run_command(
            "debug", "--address", worker.address, "-o", str(file), f"--token-file={tmp_path / 'etl'}"
        )
        assert ran.returncode == 1
        assert not file.exists()


def test_the_level_changes_for_a_time(worker: Running) -> None:
    """A lower log level applies only for the given time; both changes are logged."""
    with ControlClient(worker.address) as control, closing(control.tap([1])) as tapped:
        next(tapped)
    assert "tap.started" not in worker.log
    ran = run_command("log-level", "--address", worker.address, "info", "--for", "600", "--interval", "0.5")
    assert ran.returncode == 0, ran.stderr
    assert "logs info for 600 s, and the same event of a client at most once in 0.5 s" in ran.stdout
    assert "log_level.changed" in worker.log
    assert "level=info interval_seconds=0.5 seconds=600.0" in worker.log
    with ControlClient(worker.address) as control:
        with closing(control.tap([2])) as tapped:
            next(tapped)
        eventually(lambda: "tap.started" in worker.log, SECONDS)
        assert "tap.started" in control.debug()["log.txt"].decode()
        control.set_logging("info", seconds=0.5)  # replaces the ten minutes

        def silent() -> bool:
            before = worker.log.count("tap.started")
            with closing(control.tap([1])) as tapped:
                next(tapped)
            return worker.log.count("tap.started") == before

        eventually(silent, SECONDS)
        for level, seconds in (("loud", 1.0), ("info", 0.0), ("info", 1e9)):
            with pytest.raises(ProtocolError):
                control.set_logging(level, seconds=seconds)
    text = worker.get("/metrics")[1]
    (line,) = (
        each for each in text.splitlines() if each.startswith('tuplewire_log_records_total{level="info"')
    )
    assert float(line.split()[1]) >= 1


def test_the_rate_changes_for_a_time(worker: Running) -> None:
    """Events that clients cause are logged at the requested rate, and later once a minute again."""

    def refusals() -> int:
        with pytest.raises(WrongTopologyError), Client(worker.address, topology="elsewhere") as stranger:
            stranger.send(1, b"x")
        return worker.log.count("stream.refused")

    before = refusals()
    with ControlClient(worker.address) as control:
        control.set_logging("warning", seconds=600, interval_seconds=0.2)
        eventually(lambda: refusals() >= before + 4, SECONDS / 2, "more than two a minute")
        control.set_logging("info", seconds=0.1)
    eventually(
        lambda: "log_level.restored" in worker.log.rpartition("log_level.changed")[2], SECONDS, "it is over"
    )
    after = refusals()
    assert [refusals() for _ in range(5)] == [after] * 5


def test_a_signal_writes_the_stacks(worker: Running) -> None:
    """A signal writes the stacks; this works even if the event loop is blocked."""
    os.kill(worker.process.pid, signal.SIGUSR1)
    eventually(lambda: "in wait_for_stop" in worker.log and "in _main" in worker.log, SECONDS)
    assert worker.process.poll() is None
