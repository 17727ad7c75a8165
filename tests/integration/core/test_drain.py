"""A draining worker forwards or counts its messages, and exits in time; peers may be unreachable."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.topology import (
    TOPOLOGY,
    assign,
    assignment_file,
    collect,
    drained_ledger,
    has_ended,
    ledger,
    metric,
    numbered,
    numbers,
)
from helpers.traffic import Feeder, Reader, client_of, deliver
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually


@pytest.mark.parametrize("how", ["signal", "call"])
def test_drain_under_traffic_loses_nothing(tmp_path: Path, how: str) -> None:
    """A worker that drains under traffic forwards all messages that it acknowledged, and exits with 0."""
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path) as workers:
        workers.assign({0: [0], 1: [1]})
        near, far = workers.endpoints
        with (
            client_of(near.address) as sender,
            client_of(far.address) as consumer,
            Reader(consumer.recv([1], timeout=0.2)) as reader,
        ):
            with Feeder(sender, 1) as feeder:
                feeder.goes_on(500)
                if how == "signal":
                    os.kill(near.process_id, signal.SIGTERM)
                else:
                    with ControlClient(near.address) as control:
                        assert control.drain()
                eventually(lambda: has_ended(near), 15, "drained")
                feeder.goes_on()
            taken = sender.ledger().acknowledged
            reader.has(taken)
            sender.close(0)
            assert numbers(reader.got) == list(range(taken))
            assert sender.ledger().accepted == taken + sender.ledger().dropped["closed"]
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(taken, taken, {}, 0)
        assert workers.stop() == [0, 0]


def test_drain_counts_what_a_peer_never_took(tmp_path: Path) -> None:
    """Messages for a dead peer and for a consumer count as dropped in the log and in the last scrape."""
    with WorkerProcesses(2, TOPOLOGY, directory=tmp_path, flags=["--drain-seconds=1"]) as workers:
        workers.assign({0: [1], 1: [2]})
        near, far = workers.endpoints
        os.kill(far.process_id, signal.SIGKILL)
        with client_of(near.address) as sender:
            sender.send(numbered(2, range(70)))
            deliver(sender, numbered(1, range(30)))
        assert ledger(near).pending == 100
        os.kill(near.process_id, signal.SIGTERM)
        scraped = []
        with contextlib.suppress(OSError):  # until the admin port is closed
            while True:
                scraped.append(metric(near, 'tuplewire_dropped_messages_total{reason="shutdown"}'))
        assert scraped[-1] == 100
        assert drained_ledger(workers.log_of(0)) == LedgerSnapshot(100, 0, {"shutdown": 100}, 0)
        eventually(lambda: has_ended(near), 10, "ended")
        assert workers.stop() == [1, -signal.SIGKILL]


@pytest.mark.parametrize(("consumed", "code", "last"), [(4, 0, "no message"), (2, 1, "2 messages")])
def test_the_command_waits_for_the_end_of_a_drain(consumed: int, code: int, last: str) -> None:
    """`drain --wait` names the tasks without a consumer, and fails if the drain drops messages."""
    with WorkerProcesses(1, "default", drain_seconds=2) as workers:
        workers.assign({0: [1]})
        (worker,) = workers.endpoints
        with Client(worker.address) as client:
            deliver(client, numbered(1, range(4)))
            with client.recv([1], timeout=20) as subscription:
                assert len(list(subscription.messages(consumed))) == consumed
        ended = run_command("drain", "--address", worker.address, "--wait")
        told = ended.stdout.splitlines()
        if code:
            waits = r"2 messages to task 1 without a consumer, the oldest for [\d.]+ s; .* after 2 s"
            assert re.fullmatch(waits, told.pop(0)), told
        assert told == [
            f"{worker.address} drains for at most 2 s ...",
            f"{worker.address} has drained, and dropped {last}",
        ]
        assert (ended.returncode, ended.stderr) == (code, "")
        eventually(lambda: has_ended(worker), 10, "ended")
        assert workers.stop() == [code]


@contextlib.contextmanager
def _nobody(count: int) -> Iterator[dict[tuple[str, str], list[int]]]:
    """Yield workers with one task each, from 1 on, at addresses that are bound but accept no connections."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - every address of 127.0.0.0/8
        listener.listen(1)
        port = listener.getsockname()[1]
        hosts = {task: f"127.1.{task // 250}.{task % 250 + 1}" for task in range(1, count + 1)}
        yield {(f"gone-{task}", f"{host}:{port}"): [task] for task, host in hosts.items()}


@contextlib.contextmanager
def _sending_to_nobody(directory: Path, peers: int, *flags: str) -> Iterator[tuple[WorkerProcesses, Client]]:
    """Run a worker that holds a message for each of `peers` unreachable workers."""
    with _nobody(peers) as gone:
        file = assignment_file(directory, 1, {("w", "127.0.0.1:1"): [0], **gone})
        flags = ("--worker-id=w", f"--assignment={file}", *flags)
        with (
            WorkerProcesses(1, TOPOLOGY, directory=directory, flags=flags) as workers,
            client_of(workers.endpoints[0].address) as client,
        ):
            for task in range(1, peers + 1):
                client.send(numbered(task, [task]))
            client.flush(10)
            yield workers, client


@pytest.mark.parametrize("peers", [5, 100])
def test_what_former_owners_never_took_comes_back_in_three_seconds(tmp_path: Path, peers: int) -> None:
    """The messages of all unreachable previous owners are reclaimed after the same three seconds."""
    tasks = range(1, peers + 1)
    with _sending_to_nobody(tmp_path, peers, "--drain-seconds=0.5") as (workers, client):
        worker = workers.endpoints[0]
        began = time.monotonic()
        assign(worker, 2, {("w", worker.address): [0, *tasks]})
        with client.recv(tasks, timeout=60) as subscription:
            assert sorted(numbers(collect(subscription, peers))) == list(tasks)
        assert time.monotonic() - began < 3 + 2  # plus an allowance for a busy machine


@pytest.mark.parametrize(
    ("peers", "assigned", "deadline"), [(60, False, 5), (60, False, 1), (256, True, 1)], ids=str
)
def test_a_drain_ends_within_its_deadline(
    tmp_path: Path, peers: int, *, assigned: bool, deadline: int
) -> None:
    """A drain ends in time and logs its ledger. Without the peers, their messages are of unknown tasks."""
    with _sending_to_nobody(tmp_path, peers, f"--drain-seconds={deadline}") as (workers, _):
        if not assigned:
            assign(workers.endpoints[0], 2, {("w", workers.endpoints[0].address): [0]})
        began = time.monotonic()
        assert workers.stop() == [assigned], workers.log_of(0).read_text()
        assert time.monotonic() - began < deadline + 4  # the watchdog would end it then
        ledger = drained_ledger(workers.log_of(0))
        assert ledger.accepted == sum(ledger.dropped.values()) == peers
