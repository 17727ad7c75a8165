"""Workers under faults: no message is lost, duplicated or reordered, and every ledger balances."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.restartable import restartable
from helpers.topology import (
    TOPOLOGY,
    Pair,
    connected,
    ledger,
    metric,
    numbered,
    numbers,
    queued,
    status,
    two_workers,
)
from helpers.traffic import Feeder, Reader, client_of, fed, take
from helpers.worker_process import run_command

from tuplewire.settings.config import SessionSettings
from tuplewire_service.messaging.grpc import GrpcContext
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

FLAGS = ("--receive-queue-messages=500", "--receive-queue-bytes=1MiB")
"""The flags of the two workers of `pair`."""


def test_congestion_is_told_until_it_is_over(pair: Pair) -> None:
    """A task without a consumer is reported as congested by worker, peer and program until it is read."""
    task = pair.far_task()

    def told() -> tuple[bool, bool, bool]:
        far, near = status(pair.far), status(pair.near)
        return (
            {each.task: each.congested for each in far.tasks}[task],
            any(task in peer.congested_tasks for peer in near.peers),
            task in program.congested,
        )

    with ExitStack() as stack:
        # One sender fills only its share of the queue; the peer's connection has a share as well.
        senders = [stack.enter_context(client_of(pair.near.address)) for _ in range(4)]
        sent = 0
        for sender in senders:
            sender.send(numbered(task, range(sent, sent + 500)))
            sent += 500
        eventually(lambda: queued(pair.far, task) >= 450, what="the queue is nearly full")
        context = GrpcContext()
        context.prepare(SessionSettings(load_expiry_seconds=1000).conf())
        stack.callback(context.term)
        host, _, port = pair.far.address.rpartition(":")
        program = context.connect(TOPOLOGY, host, int(port))
        eventually(lambda: told() == (True, True, True), 20)
        held = queued(pair.far, task)
        printed = run_command("status", "--address", pair.far.address).stdout
        assert re.search(rf"^{task} +{pair.far.worker_id} +{held} .* yes +no", printed, re.MULTILINE)
        assert sorted(numbers(take(pair.far, task, sent))) == list(range(sent))
        eventually(lambda: told() == (False, False, False), 20)


@pytest.mark.parametrize("unix", [False, True])
def test_resets_between_client_and_worker(pair: Pair, task: int, tmp_path: Path, *, unix: bool) -> None:
    """Connections of sender and consumer are reset under load: all messages arrive once, in order."""
    target = pair.near.unix_address if unix else pair.near.address
    with (
        FaultProxy(target, f"unix://{tmp_path}/p.sock" if unix else "127.0.0.1:0") as proxy,
        client_of(proxy.address) as sender,
        client_of(proxy.address) as consumer,
        Reader(consumer.recv([task], timeout=0.2)) as reader,
    ):
        with Feeder(sender, task) as feeder:
            for _ in range(10):
                feeder.goes_on()
                reader.has(feeder.sent)  # through new connections of both
                assert proxy.cut() >= 2  # a third one carries the consumer's request for the assignment
        sender.flush(20)
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        assert reader.redelivered == []
        assert (sender.ledger().accepted, sender.ledger().acknowledged) == (feeder.sent, feeder.sent)


def test_resets_between_workers(tmp_path: Path, transport: str) -> None:
    """After resets between workers, all messages arrive once (or are marked), and ledgers balance."""
    with two_workers(tmp_path, transport) as (a, b, proxy):
        with fed(a, b, 1) as (feeder, reader):
            for _ in range(10):
                feeder.goes_on()
                eventually(lambda: proxy.connection_count == 1 and connected(a), 10, "connected")
                assert proxy.cut() == 1
        assert metric(b, "tuplewire_redelivered_messages_total") == len(reader.redelivered)
        (peer,) = status(a).peers
        assert peer.reconnects >= 10


def test_black_hole_between_workers_is_noticed_and_healed(tmp_path: Path, transport: str) -> None:
    """A link that drops all data is detected within 5 s; after it recovers, no message is missing."""
    with two_workers(tmp_path, transport) as (a, b, proxy), fed(a, b, 1) as (feeder, _):
        feeder.goes_on()
        proxy.black_hole()
        eventually(lambda: not connected(a), 5.5, "black hole noticed")
        assert metric(a, 'tuplewire_connection_up{peer="b"}') == 0
        feeder.goes_on()
        proxy.resume()
        eventually(lambda: connected(a), 10, "connected again")
        feeder.goes_on()


def test_hung_worker_is_noticed_and_goes_on(tmp_path: Path, transport: str) -> None:
    """A hung worker is disconnected, and loses no messages when it resumes."""
    with two_workers(tmp_path, transport) as (a, b, _), fed(a, b, 1) as (feeder, _):
        feeder.goes_on()
        os.kill(b.process_id, signal.SIGSTOP)
        try:
            eventually(lambda: not connected(a), 30, "hung worker noticed")
            feeder.goes_on()
        finally:
            os.kill(b.process_id, signal.SIGCONT)
        eventually(lambda: connected(a), 10, "connected again")
        feeder.goes_on()


def test_killed_worker_comes_back_and_gets_what_was_not_acknowledged(tmp_path: Path) -> None:
    """A killed worker's unacknowledged messages are resent to its successor, marked, in order."""
    with (
        restartable(tmp_path, [0]) as worker,
        client_of(worker.reached.address, ack_mode="processed") as sender,
    ):
        sender.send(numbered(0, range(100)))
        take(worker.reached, 0, 100)
        sender.flush(10)
        sender.send(numbered(0, range(100, 150)))
        eventually(lambda: queued(worker.endpoint, 0) == 50)
        worker.kill()
        sender.send(numbered(0, range(150, 160)))
        worker.start()
        with client_of(worker.reached.address) as consumer, Reader(consumer.recv([0], timeout=0.2)) as reader:
            reader.has(60)
            assert numbers(reader.got) == list(range(100, 160))
            # The last ten may also be marked, if they were written before the failure was detected.
            assert numbers(reader.redelivered)[:50] == list(range(100, 150))
            sender.flush(10)
            assert (sender.ledger().accepted, sender.ledger().acknowledged) == (160, 160)
            eventually(lambda: ledger(worker.endpoint).acknowledged == 60)
