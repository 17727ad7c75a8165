"""A worker's clients and the messages of each task, in its status, its metrics and `tuplewire offsets`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers import eventually
from helpers.admin import samples
from helpers.secured import guarded
from helpers.tools import started
from helpers.topology import collect, numbered, pair_of_workers, workers_with
from helpers.traffic import client_of, deliver
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.wire.control_pb2 import (
    AssignedWorker,
    Assignment,
    ConsumerStatus,
    GetStatusResponse,
    SessionStatus,
    TaskStatus,
)
from tuplewire_service.command.status_report import status_as_json

SENDS_AND_WAITS = """
import sys, tuplewire
client = tuplewire.Client(sys.argv[1], client_id="doomed")
client.send(7, b"last words")
client.flush(30)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Endpoint]:
    """Run a worker with 100 tasks."""
    with workers_with(range(100), topology="default", drain_seconds=0.1) as workers:
        yield workers.endpoints[0]


def asked(worker: Endpoint, most: int = 1000) -> GetStatusResponse:
    """Return the status with at most `most` senders and `most` consumers."""
    with ControlClient(worker.address) as control:
        return control.status(most)


def printed(worker: Endpoint) -> str:
    """Return the output of `tuplewire status`."""
    return run_command("status", "--address", worker.address).stdout


def session(worker: Endpoint, name: str) -> SessionStatus | None:
    """Return a sender's session, or None."""
    return next((each for each in asked(worker).sessions if each.sender_id == name), None)


def consumer(worker: Endpoint, name: str) -> ConsumerStatus | None:
    """Return a consumer, or None."""
    return next((each for each in asked(worker).consumers if each.consumer_id == name), None)


def task(worker: Endpoint, number: int) -> TaskStatus:
    """Return the status of a task."""
    return next(each for each in asked(worker).tasks if each.task == number)


def test_a_sender_is_told_with_all_that_it_did(worker: Endpoint) -> None:
    """The status has a sender's name, address, counts and window until the sender disconnects."""
    with Client(worker.address, client_id="teller") as client:
        for number in range(5):
            client.send(1, b"12345678")
            client.send(2, bytes(number))
        client.flush(30)
        told = session(worker, "teller")
        assert told is not None
        assert (told.sent_messages, told.sent_bytes) == (10, 50)
        assert (told.outstanding_messages, told.outstanding_bytes) == (10, 50)
        assert (told.connected, told.identity, told.worker_id, told.blocking_task_count) == (True, "", "", 0)
        assert told.address.startswith("127.0.0.1:")
        assert 0 < told.window_messages == asked(worker).smallest_window_messages
        with client.recv([1], timeout=30) as batches:
            got = len(next(batches))
            batches.acknowledge()
            eventually(lambda: task(worker, 1).acknowledged_messages == got, 30, "acknowledged")
            reader = consumer(worker, "teller")
            assert reader is not None
            assert (list(reader.tasks), reader.outstanding_messages) == ([1], 5 - got)
            assert reader.address.startswith("127.0.0.1:")
        now = session(worker, "teller")
        assert now is not None
        assert now.outstanding_messages == 10 - got
        assert re.search(
            rf"^worker-0 +teller +yes .* {re.escape(now.address)}$", printed(worker), re.MULTILINE
        )
        window = asked(worker).smallest_window_messages
        assert re.search(rf"^worker-0 +ready .* 1 +[0-9]+ +0 +{window:,} ", printed(worker), re.MULTILINE)
    eventually(lambda: session(worker, "teller") is None, 30, "forgotten")
    eventually(lambda: consumer(worker, "teller") is None, 30, "no consumer")


def test_a_task_has_its_counts_and_its_oldest_message(worker: Endpoint) -> None:
    """Status, JSON and metrics have a task's counts and the age of its oldest message, 0 without one."""

    def measured(name: str) -> float:
        return samples(worker.metrics_url)[f'tuplewire_{name}{{task="3"}}']

    with Client(worker.address) as client:
        deliver(client, 3, b"a")
        first = eventually(lambda: task(worker, 3).oldest_seconds, 30, "an age")
        eventually(lambda: task(worker, 3).oldest_seconds > first, 30, "it gets older")
        deliver(client, 3, b"b")
        assert (task(worker, 3).received_messages, task(worker, 3).acknowledged_messages) == (2, 0)
        assert measured("task_received_messages_total") == 2
        assert measured("task_acknowledged_messages_total") == 0
        assert measured("queue_oldest_seconds") > first
        with client.recv([3], timeout=30) as batches:
            collect(batches, 2)
            eventually(lambda: task(worker, 3).acknowledged_messages == 2, 30, "acknowledged")
    assert task(worker, 3).oldest_seconds == 0
    assert (measured("task_received_messages_total"), measured("queue_oldest_seconds")) == (2, 0)
    plain = next(each for each in status_as_json(asked(worker))["tasks"] if each["task"] == 3)
    assert (plain["received_messages"], plain["acknowledged_messages"]) == (2, 2)


def test_a_killed_sender_is_remembered(worker: Endpoint) -> None:
    """A killed sender is shown as disconnected, with its outstanding messages, until its session expires."""
    program = (sys.executable, "-c", SENDS_AND_WAITS, worker.address)
    with started(*program, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.send_signal(signal.SIGKILL)
    gone = eventually(lambda: (told := session(worker, "doomed")) and not told.connected and told, 30, "gone")
    assert gone
    assert (gone.sent_messages, gone.outstanding_messages) == (1, 1)
    assert asked(worker).disconnected_session_count >= 1
    assert re.search(r"^worker-0 +doomed +no .* 127\.0\.0\.1:[0-9]+$", printed(worker), re.MULTILINE)


def test_lists_are_capped_and_counted(worker: Endpoint) -> None:
    """The command prints a limited number of lines of each kind; programs choose the number of clients."""
    clients = [Client(worker.address, client_id=f"many-{number}") for number in range(3)]
    for client in clients:
        deliver(client, 9, b"x")
    assert (len(asked(worker, 2).sessions), asked(worker, 2).connected_session_count) == (2, 3)
    none = asked(worker, 0)
    assert (len(none.sessions), none.connected_session_count, len(none.tasks)) == (0, 0, 100)
    _, _, tasks = printed(worker).partition("\ntasks\n")
    assert len(re.findall(r"^ *[0-9]+ +worker-0 ", tasks, re.MULTILINE)) == 40
    assert "\nand 60 more; --json has all of them\n" in tasks
    for client in clients:
        client.close()


def test_the_command_tells_them(worker: Endpoint) -> None:
    """`tuplewire status --json` contains senders and consumers."""
    with Client(worker.unix_address, client_id="by-socket") as client:
        deliver(client, 11, b"x")
        told = json.loads(run_command("status", "--address", worker.address, "--json").stdout)
    mine = next(each for each in told["sessions"] if each["sender_id"] == "by-socket")
    assert mine["address"].startswith("unix:")
    assert mine["sent_messages"] == 1
    assert told["resident_bytes"] > 1 << 20


def test_identities_are_in_the_metrics(tmp_path: Path) -> None:
    """The metrics count connected and resumable sessions by token."""
    with guarded(tmp_path, "", "operator", "one", topology="default") as (workers, mine):
        workers.assign({0: range(10)})
        (worker,) = workers.endpoints

        def told(state: str) -> float | None:
            wanted = f'tuplewire_identity_senders{{identity="token one",state="{state}"}}'
            return samples(worker.metrics_url).get(wanted)

        assert told("connected") is None
        with Client(worker.address, credentials=mine["one"]) as client:
            deliver(client, 1, b"x")
            assert (told("connected"), told("resumable")) == (1, 0)
        eventually(lambda: told("connected") is None, 30, "it has said goodbye")


offsets = partial(run_command, "offsets", "--address")


def rows(done: subprocess.CompletedProcess[str]) -> dict[int, list[str]]:
    """Return the printed columns by task."""
    assert done.returncode == 0, done.stderr
    cells = [line.split() for line in done.stdout.splitlines()[2:]]
    return {int(task): others for task, *others in cells}


def test_offsets_are_shown_and_moved() -> None:
    """Offsets of both workers are shown and moved, to the last at most; a task with a consumer is refused."""
    with pair_of_workers() as workers:
        near, far = workers.near_task(), workers.far_task()
        with client_of(workers.near.address) as client:
            client.send(numbered(near, range(10)))
            deliver(client, numbered(far, range(100, 103)))
            tasks = f"--tasks={near},{far}"
            found = rows(offsets(workers.near.address, tasks))
            assert found[near] == [workers.near.worker_id, "0", "10", "10", "10", "-"]
            assert found[far] == [workers.far.worker_id, "0", "3", "3", "9", "-"]
            assert found.keys() < rows(offsets(workers.near.address)).keys()
            found = rows(moved := offsets(workers.far.address, tasks, "--acknowledge-to=4"))
            assert all(f" discarded {count} messages\n" in moved.stderr for count in (3, 4))
            assert [each[1:4] for each in (found[near], found[far])] == [["4", "10", "6"], ["3", "3", "0"]]
            with client.recv([near], timeout=20) as batches:
                assert [int(message.message) for message in next(batches)] == [4, 5, 6, 7, 8, 9]
                refused = offsets(workers.near.address, f"--tasks={near}", "--acknowledge-to=latest")
                assert refused.returncode != 0
                assert f"task {near} has the consumer" in refused.stderr
            found = rows(offsets(workers.near.address, f"--tasks={near}", "--acknowledge-to=latest"))
            assert found[near][1:4] == ["10", "10", "0"]
            unknown = offsets(workers.near.address, "--tasks=5000").stderr
            assert "task 5000 is not in assignment version 1, which has" in unknown


def test_offsets_use_the_given_address_for_its_own_worker() -> None:
    """In a pod with `secure: true`, the address in the assignment needs a certificate, the socket none."""
    with WorkerProcesses(1, "default", drain_seconds=0.1) as workers:
        near = workers.endpoints[0]
        elsewhere = AssignedWorker(worker_id=near.worker_id, address="worker.invalid:6700", tasks=[1])
        gone = AssignedWorker(worker_id="gone", address="127.0.0.1:1", tasks=[2])
        with ControlClient(near.address) as control:
            control.update_assignment(Assignment(version=1, topology="default", workers=[gone, elsewhere]))
        assert rows(offsets(near.address, "--tasks=1")) == {1: [near.worker_id, "0", "0", "0", "0", "-"]}
        partial_table = offsets(near.address)  # the other worker does not answer
        assert (partial_table.returncode, partial_table.stdout.count(near.worker_id)) == (1, 1)
        assert partial_table.stderr.startswith("tuplewire offsets: 127.0.0.1:1: no connection")


def test_wrong_arguments() -> None:
    """--acknowledge-to requires --tasks, and accepts a number or `latest`."""
    for wrong, *arguments in (
        ("--tasks is missing", "--acknowledge-to=latest"),
        ("'soon' is neither", "--tasks=1", "--acknowledge-to=soon"),
    ):
        done = offsets("127.0.0.1:1", *arguments)
        assert done.returncode == 64
        assert f"--acknowledge-to takes --tasks, and a sequence or latest: {wrong}" in done.stderr
