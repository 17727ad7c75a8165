"""`tuplewire executors` as a process: what it shows of itself, and how it follows its assignment."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from helpers.admin import get

from tuplewire_service.testing import eventually

SECONDS = 60.0
ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(str(ROOT / folder) for folder in ("clients", "service", "tests"))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write_assignment(directory: Path, version: int, workers: dict[str, tuple[int, Sequence[int]]]) -> None:
    """Write who has which tasks, by id: port and tasks."""
    assignment = {
        "version": version,
        "topology": "words",
        "workers": [
            {"worker_id": name, "address": f"127.0.0.1:{port}", "tasks": list(tasks)}
            for name, (port, tasks) in workers.items()
        ],
    }
    new = directory / "new"
    new.write_text(json.dumps(assignment))
    new.replace(directory / "workers.json")


class Process:
    """A process of the command, with an admin port."""

    def __init__(self, directory: Path, worker_id: str, port: int) -> None:
        conf = {"topology.acker.executors": 0, "supervisor.worker.shutdown.sleep.secs": 1}
        (directory / "conf.json").write_text(json.dumps(conf))
        self.address = f"127.0.0.1:{port}"
        self.state_file = directory / f"{worker_id}.json"
        self.log = directory / f"{worker_id}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tuplewire_service",
                    "executors",
                    "helpers.words:topology",
                    f"--assignment={directory / 'workers.json'}",
                    f"--worker-id={worker_id}",
                    f"--conf={directory / 'conf.json'}",
                    f"--admin={self.address}",
                    f"--state-file={self.state_file}",
                ],
                env={**os.environ, "PYTHONPATH": PATH},
                stderr=log,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page; 0 when nobody answers."""
        try:
            return get(f"http://{self.address}{path}")
        except OSError:
            return 0, ""

    def events(self, event: str) -> list[str]:
        """Return the lines of the log with an event."""
        return [line for line in self.log.read_text().splitlines() if re.search(rf" {event}\b", line)]

    def state(self) -> dict[str, Any]:
        """Return what the state file says."""
        state: dict[str, Any] = json.loads(self.state_file.read_text())
        return state


@contextmanager
def running(directory: Path, ports: dict[str, tuple[int, int]]) -> Iterator[dict[str, Process]]:
    """Run a process for each worker, given the port of its admin server; end what is left of them."""
    processes = {name: Process(directory, name, admin) for name, (_, admin) in ports.items()}
    try:
        yield processes
    finally:
        for each in processes.values():
            each.process.kill()
            each.process.wait(SECONDS)


def test_a_process_shows_itself(tmp_path: Path) -> None:
    """It is not ready while the other is missing, then is; metrics and state file have its executors."""
    a, b, admin_a, admin_b = free_ports(4)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, {"a": (a, admin_a)}) as processes:
        one = processes["a"]
        eventually(
            lambda: one.get("/readyz") == (503, f"not ready: no connection to 127.0.0.1:{b}\n"), SECONDS
        )
        assert one.get("/livez")[0] == 200
        with running(tmp_path, {"b": (b, admin_b)}) as others:
            eventually(lambda: one.get("/readyz")[0] == 200, SECONDS)
            eventually(
                lambda: 'tuplewire_executed_tuples_total{component="' in one.get("/metrics")[1], SECONDS
            )
            assert "process_cpu_seconds_total" in one.get("/metrics")[1]
            assert sorted(each["tasks"] for each in one.state()["executors"]) == [[1, 1], [3, 3], [5, 5]]
            for each in (one, others["b"]):
                each.process.terminate()
            assert [each.process.wait(SECONDS) for each in (one, others["b"])] == [0, 0]
            assert one.state()["not_ready"] == "stopped"


def test_a_process_follows_its_assignment(tmp_path: Path) -> None:
    """When another worker moves, it connects there; when its own tasks change, it ends and says so."""
    a, b, c, admin = free_ports(4)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, {"a": (a, admin)}) as processes:
        one = processes["a"]
        eventually(lambda: one.events("connection.opened"), SECONDS)
        write_assignment(tmp_path, 2, {"a": (a, [1, 3, 5]), "b": (c, [2, 4])})
        eventually(lambda: len(one.events("connection.opened")) == 2, SECONDS)
        assert f"127.0.0.1:{c}" in one.events("connection.opened")[1]
        eventually(lambda: one.get("/readyz")[1] == f"not ready: no connection to 127.0.0.1:{c}\n", SECONDS)
        write_assignment(tmp_path, 3, {"a": (a, [1, 3]), "b": (c, [2, 4, 5])})
        assert one.process.wait(SECONDS) == 1
        assert "version 3 of the assignment gives worker 'a' other tasks" in one.log.read_text()
