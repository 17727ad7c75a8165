"""`tuplewire worker --program` as a process: a standard worker that also runs spouts and bolts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.admin import get
from helpers.restartable import RestartableWorker
from helpers.runtimes import Notes
from helpers.topology import TOPOLOGY, assignment_file
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.values.dead_letters import DeadMessage
from tuplewire_service.testing import eventually

SECONDS = 60.0
Conf = Mapping[str, Any]
NO_CONF: Conf = {}
ROOT = Path(__file__).parents[3]
Make = Callable[..., RestartableWorker]


def flags_of(directory: Path, worker_id: str, conf: Conf = NO_CONF) -> list[str]:
    """Return the flags of a worker with a program."""
    (directory / "conf.json").write_text(json.dumps({"topology.acker.executors": 0, **conf}))
    return [
        "--program=helpers.words:topology",
        f"--program-conf={directory}/conf.json",
        f"--program-state-file={directory}/{worker_id}.json",
    ]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a worker with a program, and does not start it."""
    folders = ("clients", "service", "topology", "tests")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / folder) for folder in folders))

    def make(worker_id: str, *more: str, conf: Conf = NO_CONF) -> RestartableWorker:
        flags = [*flags_of(tmp_path, worker_id, conf), *more]
        return RestartableWorker(worker_id, tmp_path, tmp_path / "assignment.json", flags, drain_seconds=1)

    return make


def page(worker: RestartableWorker, path: str) -> tuple[int, str]:
    """Return the status and the text of a page of a worker's admin port."""
    return get(worker.endpoint.metrics_url.replace("/metrics", path))


def end(*workers: RestartableWorker) -> None:
    """End workers, one after the other. A worker that drops messages for an ended one exits with 1."""
    for each in workers:
        code, ledger = each.end()
        assert (code, ledger.balanced) == (bool(ledger.dropped), True)


def events(worker: RestartableWorker, event: str) -> list[str]:
    """Return the log lines of an event."""
    return [line for line in worker.log.splitlines() if re.search(rf" {event}\b", line)]


def tasks_in(directory: Path, worker_id: str) -> list[list[int]]:
    """Return the tasks of each executor in a worker's state file."""
    state = json.loads((directory / f"{worker_id}.json").read_text())
    return sorted(each["tasks"] for each in state["executors"])


def test_a_process_shows_itself(tmp_path: Path, make: Make) -> None:
    """A worker is ready once the other one is connected; metrics and state file list its executors."""
    one, two = make("a"), make("b")
    assignment_file(tmp_path, 1, {one.reached: [1, 3, 5], two.reached: [2, 4]})
    with one:
        waits = (503, "not ready: not connected yet to b\n")
        eventually(lambda: page(one, "/readyz") == waits, SECONDS)
        assert page(one, "/livez")[0] == 200
        with two:
            eventually(lambda: page(one, "/readyz")[0] == 200, SECONDS)
            executed = 'tuplewire_executed_tuples_total{component="'
            eventually(lambda: executed in page(one, "/metrics")[1], SECONDS)
            assert "process_cpu_seconds_total" in page(one, "/metrics")[1]
            assert tasks_in(tmp_path, "a") == [[1], [3], [5]]
            end(one, two)
            assert not [name for name in ("a.json", "b.json") if (tmp_path / name).exists()]


def test_a_process_follows_its_assignment(tmp_path: Path, make: Make) -> None:
    """A worker reconnects when another worker moves, and runs its new tasks when they change."""
    one, gone, two = make("a"), make("b"), make("b")
    assignment_file(tmp_path, 1, {one.reached: [1, 3, 5], gone.reached: [2, 4]})
    with one:
        eventually(lambda: events(one, "connection.opened"), SECONDS)
        assignment_file(tmp_path, 2, {one.reached: [1, 3, 5], two.reached: [2, 4]})
        eventually(lambda: len(events(one, "connection.opened")) == 2, SECONDS)
        assert two.reached.address in events(one, "connection.opened")[1]
        assignment_file(tmp_path, 3, {one.reached: [1, 3], two.reached: [2, 4, 5]})
        with two:
            eventually(lambda: "version=3" in str(events(two, "program.assignment_applied")), SECONDS)
            eventually(lambda: "version=3" in str(events(one, "program.assignment_applied")[-1:]), SECONDS)
            eventually(lambda: page(one, "/readyz")[0] == 200, SECONDS)
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


def test_an_error_ends_the_process(tmp_path: Path, make: Make) -> None:
    """A bolt's error ends its process with exit code 1; the log has the location in the user's code."""
    worker = make("a").reached
    assignment = assignment_file(tmp_path, 1, {worker: [1, 2, 3, 4, 5]})
    flags = ("--worker-id=a", f"--topology={TOPOLOGY}", f"--listen={worker.address}", "--drain-seconds=1")
    program = (*flags_of(tmp_path, "a"), poison_program(tmp_path))
    ended = run_command("worker", *flags, f"--assignment-file={assignment}", *program)
    assert ended.returncode == 1
    assert "program.failed" in ended.stderr
    assert "in execute" in ended.stderr
    assert "an unbearable word" in ended.stderr
    state = json.loads((tmp_path / "a.json").read_text())
    assert state["not_ready"], "what a failed worker was at is left to be read"


def test_a_tuple_that_is_given_up_is_a_dead_letter(tmp_path: Path, make: Make) -> None:
    """A tuple that fails too often becomes a dead letter that can be replayed; the process continues."""
    conf = {"topology.error.policy": "dead_letter", "topology.error.tries": 2}
    one = make("a", poison_program(tmp_path), "--dead-letter-task=99", conf=conf)
    assignment_file(tmp_path, 1, {one.reached: [1, 2, 3, 4, 5, 99]})
    with one:
        with Client(one.endpoint.address, topology=TOPOLOGY) as client:
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
        code, ledger = one.end()
        assert (code, ledger.balanced) == (0, True)


def test_spouts_are_switched_by_a_command(tmp_path: Path, make: Make) -> None:
    """`deactivate` at any worker stops all spouts and processes tuples in flight; `activate` resumes."""
    notes = Notes(tmp_path / "notes")
    notes.folder.mkdir()
    (tmp_path / "endless.py").write_text(
        "from pathlib import Path\nfrom helpers.runtimes import Notes, Numbers, Pass, passing\n\n\n"
        f"def program():\n    notes = Notes(Path({str(notes.folder)!r}))\n"
        "    return passing(Numbers(notes, None), Pass(notes))\n"
    )
    program = f"--program={tmp_path}/endless.py:program"
    conf = {"topology.acker.executors": 1, "topology.max.spout.pending": 50}
    one, two = make("a", program, conf=conf), make("b", program, conf=conf)
    assignment_file(tmp_path, 1, {one.reached: [1, 7], two.reached: [2, 3, 4, 5, 6]})
    with one, two:

        def said(command: str) -> str:
            return run_command(command, "--address", two.endpoint.address).stdout

        eventually(lambda: notes.count("acked") > 100, SECONDS)
        assert said("deactivate") == f"{TOPOLOGY} is inactive on 2 of 2 workers\n"
        eventually(lambda: notes.read("inactive-after"), SECONDS)
        emitted = int(notes.read("inactive-after")[0])
        eventually(lambda: notes.count("acked") == emitted, SECONDS)
        assert said("deactivate") == f"{TOPOLOGY} was inactive already\n"
        assert said("activate") == f"{TOPOLOGY} is active on 2 of 2 workers\n"
        eventually(lambda: notes.count("acked") > emitted + 100, SECONDS)
        assert notes.read("activations") == ["activate", "deactivate", "activate"]
        end(one, two)
