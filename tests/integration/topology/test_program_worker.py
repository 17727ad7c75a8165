"""`tuplewire worker --program` as a process, and the features of all workers in a topology's processes."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.admin import get, samples
from helpers.restartable import RestartableWorker
from helpers.runtimes import Notes
from helpers.secured import Authority, files_of, secret_file
from helpers.topology import TOPOLOGY, assignment_file
from helpers.words import EXPECTED, LINES, SLOW_FILE
from helpers.worker_process import run_command

from tuplewire import Client, Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TopologyError, TuplewireError
from tuplewire.values.dead_letters import DecodedDeadLetter
from tuplewire_service.testing import eventually
from tuplewire_topology.clusters.cluster import DistributedCluster
from tuplewire_topology.clusters.distributed_topology import DistributedTopology

SECONDS = 120.0
Conf = Mapping[str, Any]
NO_CONF: Conf = {}
ROOT = Path(__file__).parents[3]
Make = Callable[..., RestartableWorker]


def flags_of(directory: Path, worker_id: str, conf: Conf = NO_CONF) -> list[str]:
    """Return the flags of a worker with a program."""
    (directory / "conf.json").write_text(json.dumps({"topology.acker.executors": 0, **conf}))
    return [
        "--program=helpers.words:topology",
        f"--program-conf-file={directory}/conf.json",
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
        fails = bool(ledger.dropped or events(each, "executor.tuples_lost"))
        assert (code, ledger.balanced) == (fails, True)


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
        eventually(lambda: events(one, "peer.added"), SECONDS)
        assignment_file(tmp_path, 2, {one.reached: [1, 3, 5], two.reached: [2, 4]})
        eventually(lambda: len(events(one, "peer.added")) == 2, SECONDS)
        assert two.reached.address in events(one, "peer.added")[1]
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
    flags = ("--worker-id=a", f"--topology={TOPOLOGY}", f"--listen={worker.address}")
    program = ("--listen-admin=127.0.0.1:0", *flags_of(tmp_path, "a"), poison_program(tmp_path))
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
            told = DecodedDeadLetter.read(letter)
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
        assert said("deactivate") == f"topology {TOPOLOGY} is inactive on 2 of 2 workers\n"
        eventually(lambda: notes.read("inactive-after"), SECONDS)
        emitted = int(notes.read("inactive-after")[0])
        eventually(lambda: notes.count("acked") == emitted, SECONDS)
        assert said("deactivate") == f"topology {TOPOLOGY} was inactive already\n"
        assert "state       ready, spouts inactive, assignment 2" in said("status")
        assert said("activate") == f"topology {TOPOLOGY} is active on 2 of 2 workers\n"
        eventually(lambda: notes.count("acked") > emitted + 100, SECONDS)
        assert notes.read("activations") == ["activate", "deactivate", "activate"]
        end(one, two)


def test_a_drain_reports_the_tuples_that_it_loses(tmp_path: Path, make: Make) -> None:
    """At the deadline, queued tuples are lost. The log has their number, and the exit code is 1."""
    (tmp_path / "slow").touch()
    worker = make("a", "--program=helpers.words:slow_topology", conf={SLOW_FILE: f"{tmp_path}/slow"})
    assignment_file(tmp_path, 1, {worker.reached: range(1, 7)})
    with worker, ControlClient(worker.reached.address) as control:

        def waiting() -> int:
            executors = [one for each in control.status().components for one in each.executors]
            return sum(each.queued_tuples for each in executors)

        eventually(lambda: waiting() > 2000, SECONDS)
        code, ledger = worker.end()
        assert (code, ledger.balanced, ledger.dropped) == (1, True, {})
        lines = events(worker, "executor.tuples_lost")
        assert re.search(r"WARNING .* component=count tuples=\d{3,4}$", lines[0])


@contextmanager
def running(topology: Any = "helpers.words:topology", **conf: Any) -> Iterator[DistributedTopology]:
    """Run a topology in two processes, and check that they exit with 0."""
    with DistributedCluster() as cluster:
        settings = {"topology.workers": 2, **conf}
        topology_running = cluster.submit("words", settings, topology, collect=["count"])
        yield topology_running
    assert set(topology_running.exit_codes) == {0}


def counts_of(topology: DistributedTopology) -> dict[str, int]:
    """Return the counts emitted at the end."""
    return {word: count for word, count, _ in topology.finish(SECONDS).tuples("count")}


def test_metrics_and_status_of_a_worker() -> None:
    """Each worker's metrics and status show received messages by source, their outcome and the executors."""
    with running() as topology:
        assert counts_of(topology) == EXPECTED
        first, second = (samples(url) for url in topology.metrics_urls)
        for read, other in ((first, "words-worker-1"), (second, "words-worker-0")):
            assert read[f'tuplewire_received_messages_total{{source="{other}"}}'] > 0
            assert read['tuplewire_received_messages_total{source="executors"}'] > 0
            assert (
                read["tuplewire_accepted_messages_total"] == read["tuplewire_acknowledged_messages_total"] > 0
            )
            assert read['tuplewire_dropped_messages_total{reason="unknown_task"}'] == 0
            assert read[f'tuplewire_peer_pending_messages{{peer="{other}"}}'] == 0
            assert read[f'tuplewire_reconnects_total{{peer="{other}"}}'] == 0
            assert read["tuplewire_ready"] == 1
        executed = Counter[str]()
        for read in (first, second):
            executed.update(
                {name: int(value) for name, value in read.items() if "executed_tuples_total" in name}
            )
        sample = 'tuplewire_executed_tuples_total{component="split",source="lines",stream="default"}'
        assert executed[sample] == len(LINES)
        for ledger in topology.ledgers().values():
            assert (ledger.balanced, ledger.pending, sum(ledger.dropped.values())) == (True, 0, 0)
        shown = run_command("status", "--address", topology.addresses[0]).stdout
        assert "worker      words-worker-0" in shown
        assert "received    from executors:" in shown
        with pytest.raises(TopologyError, match="there is no worker 2"):
            topology.move_task(topology.topology.tasks_of("split")[0], 2)


def send_one_message(address: str, task: int, credentials: Credentials) -> None:
    """Send a message and flush; a refusal may be raised before the message is sent."""
    client = Client(address, topology="words", credentials=credentials)
    try:
        client.send(task, b"no tuple")
        client.flush(2.0)
    finally:
        client.close(0.0)


def test_certificates_and_tokens(tmp_path: Path) -> None:
    """Workers with TLS and tokens run a topology, and refuse clients without a certificate or a token."""
    authority = Authority()
    worker = files_of(authority.issue("worker.example"), tmp_path / "worker")
    tokens = secret_file(tmp_path / "tokens", "etl open-sesame-open-sesame\n")
    conf = {
        "tuplewire.worker.tls_certificate": worker.tls_certificate,
        "tuplewire.worker.tls_key": worker.tls_key,
        "tuplewire.worker.tls_ca": worker.tls_ca,
        "tuplewire.worker.token_file": str(tokens),
    }
    issued = authority.issue("etl.example")
    stranger = files_of(issued, tmp_path / "stranger", "worker.example")
    known = files_of(
        issued,
        tmp_path / "known",
        "worker.example",
        token_file=secret_file(tmp_path / "t", "open-sesame-open-sesame"),
    )
    with running(**conf) as topology:
        address = topology.addresses[0]
        task = topology.topology.tasks_of("count")[0]
        for credentials in (Credentials(), stranger):
            with (
                pytest.raises(TuplewireError),
                ControlClient(address, 2.0, credentials=credentials) as control,
            ):
                control.status()
            with pytest.raises(TuplewireError):
                send_one_message(address, task, credentials)
        with ControlClient(address, credentials=known) as control:
            assert control.status().worker_id == "words-worker-0"
        assert counts_of(topology) == EXPECTED
        for url in topology.metrics_urls:
            assert 'source="client"' not in str(samples(url)), "nothing of the stranger's came in"
