"""Workers with a separate transport between workers: programs and peers each get the right address."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.topology import TOPOLOGY, Pair, assign, pair_of_workers, status
from helpers.traffic import deliver
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TaskNotLocalError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.values.message import TaskMessage
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import eventually
from tuplewire_service.testing.harness import Recorder, is_settled


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Run two workers that communicate over ZeroMQ."""
    with pair_of_workers("--transport=zmq") as pair:
        yield pair


def test_errors_name_the_address_for_programs(pair: Pair) -> None:
    """A program that connects to the wrong worker gets the address that serves programs."""
    with (
        Client(pair.near.address, topology=TOPOLOGY) as client,
        pytest.raises(TaskNotLocalError, match=pair.far.address),
    ):
        next(client.recv([pair.far_task()], timeout=5, follow=False))


def test_reports_have_both_addresses(pair: Pair) -> None:
    """The address file, the status and the assignment contain the address for peers, a separate one."""
    assert pair.near.peer_address.startswith("127.0.0.1:")
    assert pair.near.peer_address != pair.near.address
    told = status(pair.near)
    assert list(told.addresses) == [pair.near.address, pair.near.unix_address]
    assert list(told.peer_addresses) == [pair.near.peer_address]
    assert [peer.address for peer in told.peers] == [pair.far.peer_address]
    for flags, text in (([], f"for peers   {pair.near.peer_address}"), (["--json"], "peer_addresses")):
        assert text in run_command("status", "--address", pair.near.address, *flags).stdout
    with ControlClient(pair.near.address) as control:
        assignment = control.assignment()
    assert assignment is not None
    addresses = {worker.peer_address for worker in assignment.workers}
    assert addresses == {pair.near.peer_address, pair.far.peer_address}


def test_a_program_may_speak_zeromq_to_a_worker(pair: Pair) -> None:
    """The port for peers accepts sessions of any sender, and reports refusals as gRPC does."""
    task = pair.near_task()
    context = TransportFactory.make_context({TRANSPORT_KEY: "zmq"})
    try:
        connection = context.connect(TOPOLOGY, "127.0.0.1", int(pair.near.peer_address.rpartition(":")[2]))
        connection.send([TaskMessage(task, b"a"), TaskMessage(99_999, b"nobody's")])
        eventually(is_settled(connection))
        ledger = connection.statistics().ledger
        assert (ledger.acknowledged, ledger.dropped["unknown_task"]) == (1, 1)
    finally:
        context.term()
    with Client(pair.near.address, topology=TOPOLOGY) as client:
        assert next(client.recv([task], timeout=10)).payloads == [b"a"]


def test_a_worker_ends_beside_a_stopped_peer(tmp_path: Path) -> None:
    """A worker drops messages for a peer that does not answer in time, and reports this with exit code 1."""
    flags = ["--transport=zmq", "--drain-seconds=1"]
    with contextlib.ExitStack() as stack:
        workers = []
        for name in "ab":
            (tmp_path / name).mkdir()
            own = [*flags, f"--worker-id={name}"]
            workers.append(
                WorkerProcesses(1, TOPOLOGY, directory=tmp_path / name, flags=own, drain_seconds=1)
            )
            stack.enter_context(workers[-1])
        a, b = (each.endpoints[0] for each in workers)
        assign((a, b), 1, {a: [1], b: [2]})
        with Client(a.address, topology=TOPOLOGY) as client:
            deliver(client, 2, b"x")
            os.kill(b.process_id, signal.SIGSTOP)
            deliver(client, 2, b"y")
        try:
            assert workers[0].stop() == [1]
        finally:
            os.kill(b.process_id, signal.SIGCONT)


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_ipv6(transport: str) -> None:
    """An IPv6 host can be given with or without brackets."""
    context = TransportFactory.make_context({TRANSPORT_KEY: transport, "tuplewire.transport.host": "[::1]"})
    recorder = Recorder()
    try:
        server = context.bind(TOPOLOGY, 0, recorder)
        assert server.addresses == [f"[::1]:{server.port}"]
        for host in ("::1", "[::1]"):
            context.connect(TOPOLOGY, host, server.port).send(1, host.encode())
        eventually(lambda: sorted(recorder.payloads(1)) == [b"::1", b"[::1]"], timeout=20)
    finally:
        context.term()
