"""Workers that run a topology as in the Helm chart: mutual TLS, an assignment file, rolling restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import numbered_spout
from helpers.admin import get, samples
from helpers.certificates import Authority
from helpers.ports import free_ports
from helpers.secured import files_of, secret_file, variables_of
from helpers.worker_process import environment_without_ours

from tuplewire_service.testing import eventually
from tuplewire_topology.authoring.description import with_ackers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SECONDS = 60.0
ROOT = Path(__file__).parents[3]
NAMES = ("tuplewire-worker-0", "tuplewire-worker-1", "tuplewire-worker-2")
CONF = {"topology.acker.executors": 1, "topology.max.spout.pending": 50, "topology.message.timeout.secs": 5}


class Site:
    """Stands for the chart's StatefulSet: a process for each pod, and the files that all pods mount."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lives = 0
        self.ports = dict(zip(NAMES, zip(*[iter(free_ports(6))] * 2, strict=True), strict=True))
        self.authority = Authority()
        self.tls = self.authority.issue("worker.tuplewire").write(folder / "tls")
        self.tokens = secret_file(folder / "token", f"programs/driver {'0' * 20}\nprograms {'1' * 20}")
        rules = ROOT / "deploy" / "helm" / "tuplewire" / "files" / "permissions.toml"
        conf = {**CONF, "mine.folder": str(folder)}
        (folder / "program.json").write_text(json.dumps(conf))
        (folder / "worker.toml").write_text(self._settings(rules))
        self.tasks = tasks = sorted(with_ackers(numbered_spout.topology(), 1).tasks)
        workers = [
            {"worker_id": name, "address": f"127.0.0.1:{port}", "tasks": tasks[index :: len(NAMES)]}
            for index, (name, (port, _)) in enumerate(self.ports.items())
        ]
        assignment = {"version": 1, "topology": "default", "workers": workers}
        (folder / "assignment.json").write_text(json.dumps(assignment))

    def _settings(self, rules: Path) -> str:
        """Return the chart's settings, with paths of this test instead of paths in a pod."""
        manifests = (ROOT / "deploy" / "manifests.yaml").read_text(encoding="utf-8")
        text = manifests.partition("  worker.toml: |\n")[2].partition("\n---\n")[0]
        own = tomllib.loads(textwrap.dedent(text))
        bound = ("listen", "listen_unix", "admin", "state_file", "staging_directory")
        own = {
            name: value for name, value in own.items() if name not in bound and not name.startswith("tls_c")
        }
        own |= {
            "tls_key": f"{self.tls}/tls.key",
            "token_file": str(self.tokens),
            "permissions_file": str(rules),
        }
        own |= {
            "tls_certificate": f"{self.tls}/tls.crt",
            "tls_ca": f"{self.tls}/ca.crt",
            "log_format": "text",
        }
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())

    def start(self, name: str, *, told: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker with the StatefulSet's arguments; if `told`, a membership assigns its tasks."""
        self.lives += 1
        port, admin = self.ports[name]
        words = [sys.executable, "-m", "tuplewire_service", "worker", f"--config={self.folder}/worker.toml"]
        flags = {
            "worker-id": name,
            "listen": f"127.0.0.1:{port}",
            "admin": f"127.0.0.1:{admin}",
            "assignment-file": f"{self.folder}/assignment.json",
            "program": "helpers.numbered_spout:topology",
            "program-conf": f"{self.folder}/program.json",
            "program-state-file": f"{self.folder}/{name}.json",
        }
        if told:
            del flags["assignment-file"]
        path = os.pathsep.join(str(ROOT / each) for each in ("clients", "service", "topology", "tests"))
        with (self.folder / f"{name}-{self.lives}.log").open("w") as log:
            return subprocess.Popen(
                [*words, *(f"--{key}={value}" for key, value in flags.items())],
                env={**environment_without_ours(), "PYTHONPATH": path},
                stderr=log,
            )

    def membership(self) -> subprocess.Popen[bytes]:
        """Start a membership with a client's certificate and a token that is allowed to assign tasks."""
        program = files_of(self.authority.issue("driver.example"), self.folder / "driver", "worker.tuplewire")
        token = secret_file(self.folder / "driver-token", f"programs/driver {'0' * 20}")
        words = [
            sys.executable,
            "-m",
            "tuplewire_service",
            "membership",
            "--tasks=" + ",".join(map(str, self.tasks)),
        ]
        addresses = ",".join(f"127.0.0.1:{port}" for port, _ in self.ports.values())
        with (self.folder / "membership.log").open("w") as log:
            return subprocess.Popen(
                [*words, f"--token-file={token}", f"--address={addresses}"],
                env={**environment_without_ours(), **variables_of(program)},
                stderr=log,
            )

    def tasks_of(self, name: str) -> list[int]:
        """Return the tasks of the topology that a worker runs."""
        try:
            state = json.loads((self.folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return []
        return [each["task"] for each in state["executors"]]

    def held(self, names: Sequence[str]) -> list[int]:
        """Return the sorted tasks of several workers."""
        return sorted(task for name in names for task in self.tasks_of(name))

    def is_ready(self, name: str) -> bool:
        """Return True if the worker's readiness probe succeeds."""
        try:
            return get(f"http://127.0.0.1:{self.ports[name][1]}/readyz")[0] == 200
        except OSError:
            return False

    def emitted(self) -> int:
        """Return the count of emitted numbers once the spout has recorded it; 0 before."""
        done = self.folder / numbered_spout.DONE
        return int(done.read_text() or 0) if done.exists() else 0

    def goes_on(self) -> None:
        """Wait until a hundred more numbers are recorded."""
        more = len(self.seen()) + 100
        eventually(lambda: len(self.seen()) > more, SECONDS, "it goes on")

    def seen(self) -> list[int]:
        """Return all recorded numbers, including duplicates."""
        return [int(line) for file in self.folder.glob("seen-*") for line in file.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """Return the site."""
    return Site(tmp_path)


def test_a_cluster_rolls_without_loss(site: Site) -> None:
    """Each worker, including the spout's, is drained and restarted, and every number arrives."""
    running = {name: site.start(name) for name in NAMES}
    try:
        eventually(lambda: all(map(site.is_ready, NAMES)), SECONDS)
        site.goes_on()
        for name in reversed(NAMES):  # in the order of a StatefulSet
            running[name].terminate()
            assert running[name].wait(SECONDS) == 0
            running[name] = site.start(name)
            eventually(lambda: all(map(site.is_ready, NAMES)), SECONDS)
            site.goes_on()
        (site.folder / numbered_spout.STOP).touch()
        emitted = eventually(site.emitted, SECONDS)
        assert set(site.seen()) == set(range(emitted)), "nothing is lost"
        logs = "".join(log.read_text() for log in site.folder.glob("*.log"))
        assert logs.count(" worker.drained ") == len(NAMES)
        assert "balanced=False" not in logs
        for name in NAMES:
            found = samples(f"http://127.0.0.1:{site.ports[name][1]}/metrics")
            lost = {key: value for key, value in found.items() if "dropped_messages_total{" in key and value}
            assert lost == {}
        for process in running.values():
            process.terminate()
        assert [process.wait(SECONDS) for process in running.values()] == [0, 0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait(SECONDS)


@pytest.mark.long
def test_a_cluster_is_scaled_by_its_membership(site: Site) -> None:
    """When a worker is removed, its tasks move to other workers; when it returns, it gets tasks again."""
    running = {name: site.start(name, told=True) for name in NAMES}
    leader = site.membership()
    try:
        eventually(lambda: site.held(NAMES) == site.tasks, SECONDS)
        site.goes_on()
        last, stay = NAMES[-1], NAMES[:-1]
        running[last].terminate()
        assert running[last].wait(SECONDS) == 0
        eventually(lambda: site.held(stay) == site.tasks, SECONDS)
        site.goes_on()
        running[last] = site.start(last, told=True)
        eventually(lambda: site.tasks_of(last), SECONDS)
        site.goes_on()
        (site.folder / numbered_spout.STOP).touch()
        emitted = set(range(eventually(site.emitted, SECONDS)))
        eventually(lambda: set(site.seen()) == emitted, SECONDS, "every number")
        logs = "".join(log.read_text() for log in site.folder.glob("tuplewire-worker-*.log"))
        assert "balanced=False" not in logs
    finally:
        for process in (leader, *running.values()):
            process.kill()
            process.wait(SECONDS)
