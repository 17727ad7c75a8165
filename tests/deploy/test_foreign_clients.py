"""Clients without Tuplewire's library send and receive using only the proto; all counts agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deploy.foreign_clients import Running, client
from helpers import eventually
from helpers.admin import samples
from helpers.restartable import RestartableWorker
from helpers.secured import Authority, tls_flags
from helpers.tools import ROOT, ran, require_tool
from helpers.topology import (
    TOPOLOGY,
    Pair,
    acknowledged,
    assign,
    assignment_file,
    check_end,
    ledger,
    pair_of_workers,
    queued,
    ready,
    status,
)

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing.fault_proxy import FaultProxy

CLIENTS = ("node", "go", "java", "rust")
RESUMING = ("node", "go")
QUEUE = 200
MESSAGES = 1000
"""Number per task: several times the queue size, so that every sender must wait for credit."""
_WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Run two workers with small queues."""
    with pair_of_workers(f"--receive-queue-messages={QUEUE}") as workers:
        yield workers


class Secured(NamedTuple):
    """Two workers over mutual TLS. program: the folder of a program's certificate."""

    pair: Pair
    program: Path

    def flags(self, certificate: Path | None = None, ca: str = "ca") -> list[str]:
        """Return the flags of a program that presents its own certificate, or another one."""
        own = certificate or self.program
        return [f"--{ca}", f"{self.program}/ca.crt", "--cert", f"{own}/tls.crt", "--key", f"{own}/tls.key"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Run both workers; their status is read at their Unix sockets, which need no certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    worker = authority.issue("worker.example", "127.0.0.1").write(folder / "worker")
    program = authority.issue("program.example").write(folder / "program")
    flags = [*tls_flags(worker), f"--receive-queue-messages={QUEUE}", "--drain-seconds=0.5"]
    with WorkerProcesses(2, TOPOLOGY, flags=flags, directory=folder) as workers:
        near, far = workers.endpoints
        tasks = {near: range(1000), far: range(1000, 2000)}
        at_sockets = [replace(each, address=each.unix_address) for each in (near, far)]
        assign(at_sockets, 1, tasks)
        ready(*at_sockets, seconds=_WAIT_SECONDS)
        yield Secured(Pair(near, far), program)
        check_end(workers)


def seen_by_status(endpoint: Endpoint) -> dict[str, int]:
    """Return the counts of a worker from GetStatus."""
    answer = status(replace(endpoint, address=endpoint.unix_address))
    return {
        "client": sum(each.messages for each in answer.received if each.source == "client"),
        "accepted": answer.ledger.accepted,
        "acknowledged": answer.ledger.acknowledged,
        "dropped": sum(answer.ledger.dropped.values()),
        "pending": answer.ledger.pending,
    }


def seen_by_metrics(endpoint: Endpoint) -> dict[str, int]:
    """Return the same counts from /metrics, and the number of rejected messages."""
    scraped = samples(endpoint.metrics_url)

    def total(prefix: str) -> int:
        return int(sum(value for name, value in scraped.items() if name.startswith(f"tuplewire_{prefix}")))

    return {
        "client": total('received_messages_total{source="client"}'),
        "accepted": total("accepted_messages_total"),
        "acknowledged": total("acknowledged_messages_total"),
        "dropped": total("dropped_messages_total"),
        "pending": total("pending_messages"),
        "refused": total("refused_messages_total"),
    }


def address_of(endpoint: Endpoint, way: str) -> str:
    """Return the address of a worker for a kind of connection."""
    return endpoint.unix_address if way == "unix" else endpoint.address


def sent(messages: int, report: dict[str, Any]) -> None:
    """Check the report of a sender."""
    assert {key: report[key] for key in ("accepted", "acknowledged", "refused", "pending")} == {
        "accepted": messages,
        "acknowledged": messages,
        "refused": 0,
        "pending": 0,
    }


def received(task: int, messages: int, report: dict[str, Any]) -> None:
    """Check the report of a receiver: all messages, once and in order."""
    assert report["problems"] == []
    assert (report["received"], report["repeated"]) == ({str(task): messages}, 0)


def _consumed(endpoint: Endpoint, task: int, messages: int) -> bool:
    return acknowledged(endpoint, task) >= messages


@pytest.mark.parametrize("way", ["tcp", "unix", "mtls"])
@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_sent_is_received_and_every_count_agrees(
    pair: Pair, secured: Secured, name: str, way: str
) -> None:
    """A client fills queues at this worker and the next one, waits for credit, and ends with a ledger."""
    library = client(name)
    flags: list[str] = []
    if way == "mtls":
        pair, flags = secured.pair, secured.flags()
    near, far = pair.near_task(), pair.far_task()
    before = {end: seen_by_metrics(end) for end in (pair.near, pair.far)}
    with ExitStack() as programs:
        sending = Running(library, "send", address_of(pair.near, way), [near, far], MESSAGES, flags)
        sender = programs.enter_context(sending)
        for endpoint, task in ((pair.near, near), (pair.far, far)):
            end = replace(endpoint, address=endpoint.unix_address)
            eventually(lambda: queued(end, task) == QUEUE, _WAIT_SECONDS, "a full queue")  # noqa: B023 - called here
        receivers = {
            task: programs.enter_context(
                Running(library, "recv", address_of(endpoint, way), [task], MESSAGES, flags)
            )
            for endpoint, task in ((pair.near, near), (pair.far, far))
        }
        sent(2 * MESSAGES, sender.report())
        for task, receiver in receivers.items():
            received(task, MESSAGES, receiver.report())
    for endpoint, from_client, accepted in ((pair.near, 2 * MESSAGES, 2 * MESSAGES), (pair.far, 0, MESSAGES)):
        expected = dict(before[endpoint])
        expected["client"] += from_client
        expected["accepted"] += accepted
        expected["acknowledged"] += accepted
        eventually(lambda: seen_by_metrics(endpoint) == expected, _WAIT_SECONDS, f"{expected}")  # noqa: B023
        assert seen_by_status(endpoint).items() <= expected.items()
        assert ledger(replace(endpoint, address=endpoint.unix_address)).balanced


@pytest.mark.parametrize("name", RESUMING)
def test_a_session_goes_on_after_its_connection_is_cut(pair: Pair, name: str) -> None:
    """Connections are reset with frames in flight: both sides resume, and no message is duplicated."""
    library = client(name)
    task = pair.near_task()
    before = ledger(pair.near)
    with FaultProxy(pair.near.address) as sending, FaultProxy(pair.near.address) as receiving:
        for proxy in (sending, receiving):
            proxy.delay(0.01)  # keeps frames in flight
        with (
            Running(library, "send", sending.address, [task], MESSAGES) as sender,
            Running(library, "recv", receiving.address, [task], MESSAGES) as receiver,
        ):
            for number in range(1, 4):
                goal = number * MESSAGES // 4
                eventually(
                    partial(_consumed, pair.near, task, goal), _WAIT_SECONDS, f"{goal} messages consumed"
                )
                # A client may still be reconnecting: it can have reached the goal before the previous cut.
                eventually(sending.cut, _WAIT_SECONDS, "a connection of the sender")
                eventually(receiving.cut, _WAIT_SECONDS, "a connection of the receiver")
            balance, account = sender.report(), receiver.report()
    sent(MESSAGES, balance)
    received(task, MESSAGES, account)
    assert balance["connections"] > 1
    assert account["connections"] > 1
    after = ledger(pair.near)
    assert after.balanced
    assert after.accepted - before.accepted == MESSAGES


@pytest.mark.parametrize("name", RESUMING)
def test_a_session_starts_over_with_a_worker_that_was_restarted(tmp_path: Path, name: str) -> None:
    """A worker drains and restarts without state: its clients start new sessions, and no message is lost."""
    library = client(name)
    assignment = tmp_path / "assignment.json"
    flags = [f"--receive-queue-messages={QUEUE}", "--drain-seconds=20"]
    with RestartableWorker("worker", tmp_path, assignment, flags) as worker:
        assignment_file(tmp_path, 1, {worker.endpoint: [1]})
        worker.wait_ready()
        address = worker.endpoint.address
        with FaultProxy(address) as slow, Running(library, "send", address, [1], 5 * MESSAGES) as sender:
            slow.delay(0.01)
            with Running(library, "recv", slow.address, [1], 5 * MESSAGES) as receiver:
                eventually(partial(_consumed, worker.endpoint, 1, MESSAGES), _WAIT_SECONDS, "a good start")
                restart = worker.restart()
                balance, account = sender.report(), receiver.report()
        code, rest = worker.end()
    sent(5 * MESSAGES, balance)
    received(1, 5 * MESSAGES, account)
    assert balance["connections"] > 1
    assert account["connections"] > 1
    assert (restart.exit_code, code) == (0, 0)
    for each in (restart.ledger, rest):
        assert each.balanced
        assert each.accepted == each.acknowledged
    assert restart.ledger.accepted + rest.accepted == 5 * MESSAGES


@pytest.mark.parametrize("name", CLIENTS)
def test_messages_to_an_unknown_task_come_back_refused(pair: Pair, name: str) -> None:
    """The client and the worker count the same rejected messages."""
    before = seen_by_metrics(pair.near)
    with Running(client(name), "send", pair.near.address, [9999], 10) as sender:
        report = sender.report()
    assert (report["accepted"], report["acknowledged"], report["refused"]) == (10, 0, 10)
    after = seen_by_metrics(pair.near)
    assert after["refused"] - before["refused"] == 10
    assert after["accepted"] == before["accepted"]


def test_a_worker_tells_its_status_to_whoever_has_a_certificate(secured: Secured, tmp_path: Path) -> None:
    """`buf curl` reads the status with a valid certificate, and nothing with a stranger's certificate."""
    buf = require_tool("buf", "make install")
    endpoint = secured.pair.near
    url = f"https://{endpoint.address}/tuplewire.v1.Control/GetStatus"
    call = [buf, "curl", "--protocol", "grpc", "--schema", "proto", url]
    answer = ran(*call, *secured.flags(ca="cacert"), cwd=ROOT, check=True)
    assert json.loads(answer.stdout)["workerId"] == endpoint.worker_id
    stranger = Authority().issue("program.example").write(tmp_path)
    refused = ran(*call, *secured.flags(stranger, "cacert"), cwd=ROOT)
    assert refused.returncode != 0
    assert refused.stdout == ""


@pytest.mark.parametrize("name", RESUMING)
def test_a_client_without_a_certificate_does_not_get_in(secured: Secured, name: str, tmp_path: Path) -> None:
    """A certificate signed by another authority is rejected; no message is counted."""
    stranger = Authority().issue("program.example").write(tmp_path)
    before = seen_by_status(secured.pair.near)
    address = secured.pair.near.address
    with Running(client(name), "send", address, [1], 1, secured.flags(stranger)) as sender:
        eventually(lambda: sender.ended or sender.errors(), _WAIT_SECONDS, "a refusal")
    assert seen_by_status(secured.pair.near) == before


@pytest.mark.parametrize("name", RESUMING)
def test_a_refused_session_ends(pair: Pair, name: str) -> None:
    """A client exits with the worker's error if a retry cannot succeed."""
    with Running(client(name), "send", pair.near.address, [1], 1, topology="another") as sender:
        assert "this worker serves topology 'test'" in sender.failure()
