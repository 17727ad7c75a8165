"""Workers that run a topology as in the Helm chart: mutual TLS, an assignment file, rolling restarts."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from helpers import words
from helpers.admin import samples
from helpers.restartable import RestartableWorker
from helpers.secured import Authority, files_of, secret_file, variables_of
from helpers.topology import TOPOLOGY, assignment_file
from helpers.worker_process import COMMAND, environment_without_ours

from tuplewire_service.testing import eventually
from tuplewire_topology.authoring.description import with_ackers

pytestmark = pytest.mark.slow

SECONDS = 60.0
ROOT = Path(__file__).parents[3]
NAMES = ("tuplewire-worker-0", "tuplewire-worker-1", "tuplewire-worker-2")
CONF = {"topology.acker.executors": 1, "topology.max.spout.pending": 50, "topology.message.timeout.secs": 5}


class Site:
    """Stands for the chart's StatefulSet: a process for each pod, and the files that all pods mount."""

    def __init__(self, folder: Path, assignment: str) -> None:
        self.folder = folder
        self.authority = Authority()
        self.tls = self.authority.issue("worker.tuplewire").write(folder / "tls")
        self.tokens = secret_file(folder / "token", f"programs/driver {'0' * 20}\nprograms {'1' * 20}")
        rules = ROOT / "deploy" / "helm" / "tuplewire" / "files" / "permissions.toml"
        (folder / "program.json").write_text(json.dumps({**CONF, "mine.folder": str(folder)}))
        (folder / "worker.toml").write_text(self._settings(rules))
        flags = (
            f"--config={folder}/worker.toml",
            f"--program-conf-file={folder}/program.json",
            "--program=helpers.words:numbers_topology",
        )
        states = {name: f"--program-state-file={folder}/{name}.json" for name in NAMES}
        self.workers = [
            RestartableWorker(name, folder, folder / assignment, [*flags, state], drain_seconds=30)
            for name, state in states.items()
        ]
        self.tasks = tasks = sorted(with_ackers(words.numbers_topology(), 1).tasks)
        shares = {each.reached: tasks[index :: len(NAMES)] for index, each in enumerate(self.workers)}
        assignment_file(folder, 1, shares)

    def _settings(self, rules: Path) -> str:
        """Return the chart's settings, with paths of this test instead of paths in a pod."""
        manifests = (ROOT / "deploy" / "manifests.yaml").read_text(encoding="utf-8")
        text = manifests.partition("  worker.toml: |\n")[2].partition("\n---\n")[0]
        own = tomllib.loads(textwrap.dedent(text))
        bound = ("listen", "listen_unix", "listen_admin", "state_file", "staging_directory")
        own = {
            **{key: own[key] for key in own if key not in bound and not key.startswith("tls_c")},
            "tls_key": f"{self.tls}/tls.key",
            "tls_certificate": f"{self.tls}/tls.crt",
            "tls_ca": f"{self.tls}/ca.crt",
            "token_file": str(self.tokens),
            "permissions_file": str(rules),
            "log_format": "text",
        }
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())

    @contextmanager
    def membership(self) -> Iterator[None]:
        """Run a membership with a client's certificate and a token that is allowed to assign tasks."""
        program = files_of(self.authority.issue("driver.example"), self.folder / "driver", "worker.tuplewire")
        token = secret_file(self.folder / "driver-token", f"programs/driver {'0' * 20}")
        addresses = ",".join(each.reached.address for each in self.workers)
        tasks = ",".join(map(str, self.tasks))
        words = ["membership", f"--topology={TOPOLOGY}", f"--tasks={tasks}", f"--address={addresses}"]
        with subprocess.Popen(
            [*COMMAND, *words, f"--token-file={token}"],
            env={**environment_without_ours(), **variables_of(program)},
        ) as process:
            try:
                yield
            finally:
                process.kill()

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

    def emitted(self) -> int:
        """Return the count of emitted numbers once the spout has recorded it; 0 before."""
        done = self.folder / words.DONE
        return int(done.read_text() or 0) if done.exists() else 0

    def goes_on(self) -> None:
        """Wait until a hundred more numbers are recorded."""
        more = len(self.seen()) + 100
        eventually(lambda: len(self.seen()) > more, SECONDS, "it goes on")

    def seen(self) -> list[int]:
        """Return all recorded numbers, including duplicates."""
        return [int(line) for file in self.folder.glob("seen-*") for line in file.read_text().splitlines()]


@contextmanager
def running(folder: Path, monkeypatch: pytest.MonkeyPatch, assignment: str) -> Iterator[Site]:
    """Run the workers of a site. assignment: the name of their file; the site writes `assignment.json`."""
    path = [str(ROOT / each) for each in ("clients", "service", "topology", "tests")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    site = Site(folder, assignment)
    with ExitStack() as stack:
        for worker in site.workers:
            stack.enter_context(worker)
            stack.callback(worker.discard)
        yield site


def test_a_cluster_rolls_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker, including the spout's, is drained and restarted, and every number arrives."""
    with running(tmp_path, monkeypatch, "assignment.json") as site:

        def goes_on() -> None:
            for each in site.workers:
                each.wait_ready()
            site.goes_on()

        goes_on()
        for worker in reversed(site.workers):  # in the order of a StatefulSet
            restart = worker.restart()
            assert (restart.exit_code, restart.ledger.balanced) == (0, True)
            goes_on()
        (site.folder / words.STOP).touch()
        emitted = eventually(site.emitted, SECONDS)
        assert set(site.seen()) == set(range(emitted)), "nothing is lost"
        for worker in site.workers:
            found = samples(worker.endpoint.metrics_url)
            lost = {key: value for key, value in found.items() if "dropped_messages_total{" in key and value}
            assert lost == {}
        assert [worker.stop() for worker in site.workers] == [0, 0, 0]


@pytest.mark.long
def test_a_cluster_is_scaled_by_its_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a worker is removed, its tasks move to other workers; when it returns, it gets tasks again."""
    with running(tmp_path, monkeypatch, "none.json") as site, site.membership():
        eventually(lambda: site.held(NAMES) == site.tasks, SECONDS)
        site.goes_on()
        last, stay = site.workers[-1], NAMES[:-1]
        code, ledger = last.end()
        assert (code, ledger.balanced) == (0, True)
        eventually(lambda: site.held(stay) == site.tasks, SECONDS)
        site.goes_on()
        last.start()
        eventually(lambda: site.tasks_of(last.worker_id), SECONDS)
        site.goes_on()
        (site.folder / words.STOP).touch()
        emitted = set(range(eventually(site.emitted, SECONDS)))
        eventually(lambda: set(site.seen()) == emitted, SECONDS, "every number")
