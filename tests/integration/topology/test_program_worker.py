"""`tuplewire worker --program` as a process: a standard worker that also runs spouts and bolts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.admin import get
from helpers.ports import free_ports
from helpers.runtimes import Notes
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.values.dead_letters import DeadMessage
from tuplewire_service.testing import eventually

SECONDS = 60.0
Conf = Mapping[str, Any]
NO_CONF: Conf = {}
ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join(str(ROOT / folder) for folder in ("clients", "service", "topology", "tests"))


def write_assignment(directory: Path, version: int, workers: dict[str, tuple[int, Sequence[int]]]) -> None:
    """Write an assignment; `workers` has the port and the tasks of each worker id."""
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
    """A worker process with a program and an admin port."""

    def __init__(
        self, directory: Path, worker_id: str, port: int, admin: int, *flags: str, conf: Conf
    ) -> None:
        (directory / "conf.json").write_text(json.dumps({"topology.acker.executors": 0, **conf}))
        self.address = f"127.0.0.1:{port}"
        self.admin = f"127.0.0.1:{admin}"
        self.state_file = directory / f"{worker_id}.json"
        self.log = directory / f"{worker_id}.log"
        settings = {
            "program": "helpers.words:topology",
            "program-conf": str(directory / "conf.json"),
            "program-state-file": str(self.state_file),
            "topology": "words",
            "worker-id": worker_id,
            "listen": self.address,
            "admin": self.admin,
            "assignment-file": str(directory / "workers.json"),
            "drain-seconds": "1",
        }
        words = [sys.executable, "-m", "tuplewire_service", "worker"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*words, *(f"--{key}={value}" for key, value in settings.items()), *flags],
                env={**os.environ, "PYTHONPATH": PATH},
                stderr=log,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page; the status is 0 if the worker does not answer."""
        try:
            return get(f"http://{self.admin}{path}")
        except OSError:
            return 0, ""

    def events(self, event: str) -> list[str]:
        """Return the log lines of an event."""
        return [line for line in self.log.read_text().splitlines() if re.search(rf" {event}\b", line)]

    def state(self) -> dict[str, Any]:
        """Return the content of the state file."""
        state: dict[str, Any] = json.loads(self.state_file.read_text())
        return state

    def stop(self) -> int:
        """Terminate the process, and return its exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS)


@contextmanager
def running(
    directory: Path, ports: dict[str, tuple[int, int]], *flags: str, conf: Conf = NO_CONF
) -> Iterator[dict[str, Process]]:
    """Run a process for each worker, given its port and its admin port; kill the processes at the end."""
    processes = {name: Process(directory, name, *each, *flags, conf=conf) for name, each in ports.items()}
    try:
        yield processes
    finally:
        for each in processes.values():
            each.process.kill()
            each.process.wait(SECONDS)


def test_a_process_shows_itself(tmp_path: Path) -> None:
    """A worker is ready once the other one is connected; metrics and state file list its executors."""
    a, b, admin_a, admin_b = free_ports(4)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, {"a": (a, admin_a)}) as processes:
        one = processes["a"]
        eventually(lambda: one.get("/readyz") == (503, "not ready: not connected yet to b\n"), SECONDS)
        assert one.get("/livez")[0] == 200
        with running(tmp_path, {"b": (b, admin_b)}) as others:
            eventually(lambda: one.get("/readyz")[0] == 200, SECONDS)
            eventually(
                lambda: 'tuplewire_executed_tuples_total{component="' in one.get("/metrics")[1], SECONDS
            )
            assert "process_cpu_seconds_total" in one.get("/metrics")[1]
            assert sorted(each["tasks"] for each in one.state()["executors"]) == [[1], [3], [5]]
            assert [one.stop(), others["b"].stop()] == [0, 0]
            for each in (one, others["b"]):
                (drained,) = each.events("worker.drained")
                assert "balanced=True" in drained
                assert not each.state_file.exists()


def test_a_process_follows_its_assignment(tmp_path: Path) -> None:
    """A worker reconnects when another worker moves, and runs its new tasks when they change."""
    a, b, c, admin_a, admin_b = free_ports(5)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, {"a": (a, admin_a)}) as processes:
        one = processes["a"]
        eventually(lambda: one.events("connection.opened"), SECONDS)
        write_assignment(tmp_path, 2, {"a": (a, [1, 3, 5]), "b": (c, [2, 4])})
        eventually(lambda: len(one.events("connection.opened")) == 2, SECONDS)
        assert f"127.0.0.1:{c}" in one.events("connection.opened")[1]
        write_assignment(tmp_path, 3, {"a": (a, [1, 3]), "b": (c, [2, 4, 5])})
        with running(tmp_path, {"b": (c, admin_b)}) as others:
            two = others["b"]
            eventually(
                lambda: (
                    one.events("program.assignment_applied")[-1:] and two.events("program.assignment_applied")
                ),
                SECONDS,
            )
            eventually(lambda: "version=3" in one.events("program.assignment_applied")[-1], SECONDS)
            eventually(lambda: one.get("/readyz")[0] == 200, SECONDS)
            eventually(lambda: len(two.state()["executors"]) == 3, SECONDS)
            eventually(
                lambda: sorted(each["tasks"] for each in one.state()["executors"]) == [[1], [3]], SECONDS
            )
            assert [one.stop(), two.stop()] == [0, 0]


def test_an_error_ends_the_process(tmp_path: Path) -> None:
    """A bolt's error ends its process with exit code 1; the log has the location in the user's code."""
    port, admin = free_ports(2)
    (tmp_path / "poison.py").write_text(
        "from helpers.words import POISON, topology_of\n\n\ndef program():\n    return topology_of([POISON])"
    )
    write_assignment(tmp_path, 1, {"a": (port, [1, 2, 3, 4, 5])})
    with running(tmp_path, {"a": (port, admin)}, f"--program={tmp_path}/poison.py:program") as processes:
        one = processes["a"]
        assert one.process.wait(SECONDS) == 1
        assert one.events("program.failed")
        assert "in execute" in one.log.read_text()
        assert "an unbearable word" in one.log.read_text()
        assert one.state()["not_ready"], "what a failed worker was at is left to be read"


def test_a_tuple_that_is_given_up_is_a_dead_letter(tmp_path: Path) -> None:
    """A tuple that fails too often becomes a dead letter that can be replayed; the process continues."""
    port, admin = free_ports(2)
    (tmp_path / "poison.py").write_text(
        "from helpers.words import POISON, topology_of\n\n\ndef program():\n    return topology_of([POISON])"
    )
    write_assignment(tmp_path, 1, {"a": (port, [1, 2, 3, 4, 5, 99])})
    flags = (f"--program={tmp_path}/poison.py:program", "--dead-letter-task=99")
    conf = {"topology.error.policy": "dead_letter", "topology.error.tries": 2}
    with running(tmp_path, {"a": (port, admin)}, *flags, conf=conf) as processes:
        one = processes["a"]
        with Client(one.address, topology="words") as client:
            with client.recv([99], timeout=SECONDS) as subscription:
                [letter] = next(subscription)
                subscription.acknowledge()
            told = DeadMessage.read(letter)
            assert told is not None
            assert (told.count, told.reason) == (2, "ValueError: an unbearable word")
            client.send([told.message])  # as tuplewire dead-letters replay does
            with client.recv([99], timeout=SECONDS) as subscription:
                [again] = next(subscription)
                subscription.acknowledge()
        assert again.message == letter.message
        assert one.stop() == 0
        (drained,) = one.events("worker.drained")
        assert "balanced=True" in drained


def test_a_plaintext_port_for_others_is_refused(tmp_path: Path) -> None:
    """A worker with a program refuses to listen in plaintext for other machines, as any worker does."""
    port, admin = free_ports(2)
    write_assignment(tmp_path, 1, {"a": (port, [1, 2, 3, 4, 5])})
    with running(tmp_path, {"a": (port, admin)}, f"--listen=0.0.0.0:{port}") as processes:
        assert processes["a"].process.wait(SECONDS) == 64
        assert "there is no TLS" in processes["a"].log.read_text()


def test_spouts_are_switched_by_a_command(tmp_path: Path) -> None:
    """`deactivate` at any worker stops all spouts and processes tuples in flight; `activate` resumes."""
    notes = Notes(tmp_path / "notes")
    notes.folder.mkdir()
    (tmp_path / "endless.py").write_text(
        "from pathlib import Path\nfrom helpers.runtimes import Notes, Numbers, Pass, passing\n\n\n"
        f"def program():\n    notes = Notes(Path({str(notes.folder)!r}))\n"
        "    return passing(Numbers(notes, None), Pass(notes))\n"
    )
    a, b, admin_a, admin_b = free_ports(4)
    write_assignment(tmp_path, 1, {"a": (a, [1, 5]), "b": (b, [2, 3, 4])})
    ports = {"a": (a, admin_a), "b": (b, admin_b)}
    conf = {"topology.acker.executors": 1, "topology.max.spout.pending": 50}
    with running(tmp_path, ports, f"--program={tmp_path}/endless.py:program", conf=conf) as processes:
        address = processes["b"].address
        eventually(lambda: notes.count("acked") > 100, SECONDS)
        assert run_command("deactivate", address).stdout == "words is inactive on 2 of 2 workers\n"
        eventually(lambda: notes.read("inactive-after"), SECONDS)
        emitted = int(notes.read("inactive-after")[0])
        eventually(lambda: notes.count("acked") == emitted, SECONDS)
        assert run_command("deactivate", address).stdout == "words was inactive already\n"
        assert run_command("activate", address).stdout == "words is active on 2 of 2 workers\n"
        eventually(lambda: notes.count("acked") > emitted + 100, SECONDS)
        assert notes.read("activations") == ["activate", "deactivate", "activate"]
        assert [each.stop() for each in processes.values()] == [0, 0]
