"""`tuplewire worker --program` as a process: a standard worker that also runs spouts and bolts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import worker_process
from helpers.ports import free_ports
from helpers.runtimes import Notes
from helpers.topology import drained_ledger
from helpers.worker_process import Running, run_command

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


def flags_of(directory: Path, worker_id: str, port: int, *more: str, conf: Conf = NO_CONF) -> list[str]:
    """Return the flags of a worker with a program."""
    (directory / "conf.json").write_text(json.dumps({"topology.acker.executors": 0, **conf}))
    settings = {
        "program": "helpers.words:topology",
        "program-conf": str(directory / "conf.json"),
        "program-state-file": str(directory / f"{worker_id}.json"),
        "topology": "words",
        "worker-id": worker_id,
        "listen": f"127.0.0.1:{port}",
        "assignment-file": str(directory / "workers.json"),
        "drain-seconds": "1",
    }
    return [*(f"--{key}={value}" for key, value in settings.items()), *more]


@contextmanager
def running(
    directory: Path, worker_id: str, port: int, *more: str, conf: Conf = NO_CONF
) -> Iterator[Running]:
    """Run a worker with a program."""
    home = directory / f"home-{worker_id}"
    home.mkdir()
    flags = flags_of(directory, worker_id, port, *more, conf=conf)
    with worker_process.running(home, *flags, environment={"PYTHONPATH": PATH}) as worker:
        yield worker


def end(*workers: Running) -> None:
    """End workers, one after the other. A worker that drops messages for an ended one exits with 1."""
    for each in workers:
        assert each.end() == bool(drained_ledger(each.directory / "log").dropped)


def events(worker: Running, event: str) -> list[str]:
    """Return the log lines of an event."""
    return [line for line in worker.log.splitlines() if re.search(rf" {event}\b", line)]


def tasks_in(directory: Path, worker_id: str) -> list[list[int]]:
    """Return the tasks of each executor in a worker's state file."""
    state = json.loads((directory / f"{worker_id}.json").read_text())
    return sorted(each["tasks"] for each in state["executors"])


def test_a_process_shows_itself(tmp_path: Path) -> None:
    """A worker is ready once the other one is connected; metrics and state file list its executors."""
    a, b = free_ports(2)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, "a", a) as one:
        eventually(lambda: one.get("/readyz") == (503, "not ready: not connected yet to b\n"), SECONDS)
        assert one.get("/livez")[0] == 200
        with running(tmp_path, "b", b) as two:
            eventually(lambda: one.get("/readyz")[0] == 200, SECONDS)
            executed = 'tuplewire_executed_tuples_total{component="'
            eventually(lambda: executed in one.get("/metrics")[1], SECONDS)
            assert "process_cpu_seconds_total" in one.get("/metrics")[1]
            assert tasks_in(tmp_path, "a") == [[1], [3], [5]]
            end(one, two)
            for each in (one, two):
                (drained,) = events(each, "worker.drained")
                assert "balanced=True" in drained
            assert not [name for name in ("a.json", "b.json") if (tmp_path / name).exists()]


def test_a_process_follows_its_assignment(tmp_path: Path) -> None:
    """A worker reconnects when another worker moves, and runs its new tasks when they change."""
    a, b, c = free_ports(3)
    write_assignment(tmp_path, 1, {"a": (a, [1, 3, 5]), "b": (b, [2, 4])})
    with running(tmp_path, "a", a) as one:
        eventually(lambda: events(one, "connection.opened"), SECONDS)
        write_assignment(tmp_path, 2, {"a": (a, [1, 3, 5]), "b": (c, [2, 4])})
        eventually(lambda: len(events(one, "connection.opened")) == 2, SECONDS)
        assert f"127.0.0.1:{c}" in events(one, "connection.opened")[1]
        write_assignment(tmp_path, 3, {"a": (a, [1, 3]), "b": (c, [2, 4, 5])})
        with running(tmp_path, "b", c) as two:
            eventually(lambda: events(two, "program.assignment_applied"), SECONDS)
            eventually(lambda: "version=3" in str(events(one, "program.assignment_applied")[-1:]), SECONDS)
            eventually(lambda: one.get("/readyz")[0] == 200, SECONDS)
            eventually(lambda: len(tasks_in(tmp_path, "b")) == 3, SECONDS)
            eventually(lambda: tasks_in(tmp_path, "a") == [[1], [3]], SECONDS)
            end(one, two)


def poison_program(directory: Path) -> str:
    """Write a program that fails at its only tuple, and return its flag."""
    file = directory / "poison.py"
    file.write_text(
        "from helpers.words import POISON, topology_of\n\n\ndef program():\n    return topology_of([POISON])"
    )
    return f"--program={file}:program"


def test_an_error_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bolt's error ends its process with exit code 1; the log has the location in the user's code."""
    monkeypatch.setenv("PYTHONPATH", PATH)
    (port,) = free_ports(1)
    write_assignment(tmp_path, 1, {"a": (port, [1, 2, 3, 4, 5])})
    ended = run_command("worker", *flags_of(tmp_path, "a", port, poison_program(tmp_path)))
    assert ended.returncode == 1
    assert "program.failed" in ended.stderr
    assert "in execute" in ended.stderr
    assert "an unbearable word" in ended.stderr
    state = json.loads((tmp_path / "a.json").read_text())
    assert state["not_ready"], "what a failed worker was at is left to be read"


def test_a_tuple_that_is_given_up_is_a_dead_letter(tmp_path: Path) -> None:
    """A tuple that fails too often becomes a dead letter that can be replayed; the process continues."""
    (port,) = free_ports(1)
    write_assignment(tmp_path, 1, {"a": (port, [1, 2, 3, 4, 5, 99])})
    flags = (poison_program(tmp_path), "--dead-letter-task=99")
    conf = {"topology.error.policy": "dead_letter", "topology.error.tries": 2}
    with running(tmp_path, "a", port, *flags, conf=conf) as one:
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
        assert one.end() == 0
        (drained,) = events(one, "worker.drained")
        assert "balanced=True" in drained


def test_spouts_are_switched_by_a_command(tmp_path: Path) -> None:
    """`deactivate` at any worker stops all spouts and processes tuples in flight; `activate` resumes."""
    notes = Notes(tmp_path / "notes")
    notes.folder.mkdir()
    (tmp_path / "endless.py").write_text(
        "from pathlib import Path\nfrom helpers.runtimes import Notes, Numbers, Pass, passing\n\n\n"
        f"def program():\n    notes = Notes(Path({str(notes.folder)!r}))\n"
        "    return passing(Numbers(notes, None), Pass(notes))\n"
    )
    a, b = free_ports(2)
    write_assignment(tmp_path, 1, {"a": (a, [1, 7]), "b": (b, [2, 3, 4, 5, 6])})
    program = f"--program={tmp_path}/endless.py:program"
    conf = {"topology.acker.executors": 1, "topology.max.spout.pending": 50}
    with (
        running(tmp_path, "a", a, program, conf=conf) as one,
        running(tmp_path, "b", b, program, conf=conf) as two,
    ):
        eventually(lambda: notes.count("acked") > 100, SECONDS)
        assert (
            run_command("deactivate", "--address", two.address).stdout
            == "words is inactive on 2 of 2 workers\n"
        )
        eventually(lambda: notes.read("inactive-after"), SECONDS)
        emitted = int(notes.read("inactive-after")[0])
        eventually(lambda: notes.count("acked") == emitted, SECONDS)
        assert run_command("deactivate", "--address", two.address).stdout == "words was inactive already\n"
        assert (
            run_command("activate", "--address", two.address).stdout == "words is active on 2 of 2 workers\n"
        )
        eventually(lambda: notes.count("acked") > emitted + 100, SECONDS)
        assert notes.read("activations") == ["activate", "deactivate", "activate"]
        end(one, two)
