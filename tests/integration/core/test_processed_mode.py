"""`ack_mode="processed"` over two workers: no failure between sender and consumer loses a message.

A client sends numbers through the worker `near` to a task of the worker `far`. Second copies are marked as
redelivered, even if the first is still queued when its entry worker fails; only a failure causes them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from helpers.restartable import Hops, RestartableWorker
from helpers.topology import (
    TOPOLOGY,
    assign,
    has_ended,
    metric,
    numbered,
    numbers,
    one_worker,
    queued,
    settled,
)
from helpers.traffic import Feeder, Reader, client_of, deliver

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

TASK = 0
STOPPED_SECONDS = 1.3
"""Longer than a draining worker waits for a sender to end its stream, and shorter than keepalive_seconds."""
CONSUMER = """
import sys
from tuplewire import Client

with Client(sys.argv[1], topology="test") as client, client.recv([0]) as batches:
    next(batches)
    print("holds", flush=True)
    sys.stdin.read()
"""


def begin_drain(worker: RestartableWorker) -> bool:
    """Start a worker's drain; return False if it was already draining."""
    with ControlClient(worker.endpoint.address) as control:
        return control.drain()


def start_after_drain(worker: RestartableWorker) -> None:
    """Wait until a draining worker has exited, and start it again."""
    eventually(lambda: has_ended(worker.endpoint), 25, f"{worker.worker_id} drained")
    worker.stop()
    worker.start()


@pytest.fixture
def sender(hops: Hops) -> Iterator[Client]:
    """Connect a client in mode `processed`."""
    with client_of(hops.near.endpoint.address, ack_mode="processed") as client:
        yield client


@contextmanager
def read_at(worker: RestartableWorker) -> Iterator[Reader]:
    """Read the task at a worker during the block."""
    with client_of(worker.endpoint.address) as client, Reader(client.recv([TASK], timeout=0.2)) as reader:
        yield reader


@pytest.mark.parametrize("hops", ["grpc", pytest.param("zmq", marks=pytest.mark.long)], indirect=True)
def test_workers_that_are_killed_again_and_again_lose_nothing(hops: Hops, sender: Client) -> None:
    """Under load, all messages arrive in order, and copies are marked as redelivered."""
    with read_at(hops.far) as reader:
        with Feeder(sender, TASK) as feeder:
            for victim in (hops.far, hops.near) * 2:
                feeder.goes_on(200)
                victim.kill()
                victim.start()
            feeder.goes_on(200)
        sender.flush(20)
        eventually(lambda: len(set(reader.got)) == feeder.sent, 20)
    assert list(dict.fromkeys(numbers(reader.got))) == list(range(feeder.sent))
    unmarked = Counter(reader.got) - Counter(reader.redelivered)
    assert max(unmarked.values()) == 1
    assert sender.ledger().acknowledged == feeder.sent
    for worker in hops.both:
        assert worker.ledger().balanced


@pytest.mark.parametrize("hops", ["grpc"], indirect=True)
def test_a_killed_consumer_loses_nothing(hops: Hops, sender: Client) -> None:
    """Messages that a killed consumer had not acknowledged go to the next consumer, in order."""
    sender.send(numbered(TASK, range(100)))
    words = [sys.executable, "-c", CONSUMER, hops.far.endpoint.address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"holds\n"
        sender.send(numbered(TASK, range(100, 200)))
        victim.kill()
    with read_at(hops.far) as reader:
        sender.flush(20)
    assert numbers(reader.got) == list(range(200))
    assert numbers(reader.redelivered)[:1] == [0]
    eventually(lambda: settled(hops.far.endpoint, accepted=200, acknowledged=200))


@pytest.mark.parametrize("victim", ["near", "far"])
def test_a_drain_doubles_nothing(hops: Hops, sender: Client, victim: str) -> None:
    """The sender learns of messages processed during a drain, so that they are not sent again."""
    with client_of(hops.far.endpoint.address) as consumer:
        sender.send(numbered(TASK, range(1000)))
        eventually(lambda: queued(hops.far.endpoint, TASK) == 1000)
        subscription = consumer.recv([TASK], timeout=0.2)
        first = next(subscription)
        assert len(first) > 0
        drained = {"near": hops.near, "far": hops.far}[victim]
        assert begin_drain(drained)
        with Reader(subscription) as reader:
            start_after_drain(drained)
            deliver(sender, numbered(TASK, range(1000, 1100)))
        got = [int(message.message) for message in first] + numbers(reader.got)
    assert got == list(range(1100))
    assert reader.redelivered == []
    assert sender.ledger().acknowledged == 1100


def test_a_sender_that_hears_late_of_a_drain_still_hears_what_is_processed(
    hops: Hops, sender: Client
) -> None:
    """A worker that is stopped while its peer ends the stream does not resend processed messages."""
    with client_of(hops.far.endpoint.address) as consumer:
        sender.send(numbered(TASK, range(1000)))
        eventually(lambda: queued(hops.far.endpoint, TASK) == 1000)
        hops.near.signal(signal.SIGSTOP)
        try:
            assert begin_drain(hops.far)
            time.sleep(STOPPED_SECONDS)
        finally:
            hops.near.signal(signal.SIGCONT)
        with Reader(consumer.recv([TASK], timeout=0.2)) as reader:
            start_after_drain(hops.far)
            sender.flush(20)
        got = numbers(reader.got)
    assert got == list(range(1000))
    assert reader.redelivered == []
    assert sender.ledger().acknowledged == 1000


@pytest.mark.parametrize("hops", ["grpc"], indirect=True)
def test_what_a_drain_gives_up_is_sent_again(hops: Hops, sender: Client) -> None:
    """Messages that a drain drops at its deadline are still pending at their sender, which resends them."""
    far = hops.far
    far.stop()
    far.drain_seconds = 0.3
    far.start()
    sender.send(numbered(TASK, range(500)))
    eventually(lambda: queued(hops.far.endpoint, TASK) == 500)
    far.stop()
    far.start()
    with read_at(hops.far) as reader:
        sender.flush(20)
    assert numbers(reader.got) == list(range(500))
    assert numbers(reader.redelivered) == list(range(500))


MESSAGES = 100


def kept(subscription: Subscription, count: int) -> tuple[list[int], list[int]]:
    """Take `count` messages; return the numbers of the unmarked and of the marked messages."""
    plain: list[int] = []
    marked: list[int] = []
    while len(plain) + len(marked) < count:
        for group in next(subscription).groups:
            (marked if group.redelivered else plain).extend(map(int, group.payloads()))
    return plain, marked


def kill(endpoint: Endpoint) -> None:
    """Kill a worker without a drain."""
    os.kill(endpoint.process_id, signal.SIGKILL)


def test_copies_that_were_overtaken_are_marked(tmp_path: Path) -> None:
    """If resent copies are consumed first, after a move of the task, the first copies are also marked."""
    with ExitStack() as stack:
        entry = stack.enter_context(one_worker("entry", directory=tmp_path))
        port = int(entry.address.rpartition(":")[2])
        first = stack.enter_context(one_worker("first", directory=tmp_path))
        second = stack.enter_context(one_worker("second", directory=tmp_path))
        everybody = {each: (each.worker_id, each.address) for each in (entry, first, second)}
        before = {everybody[entry]: [50], everybody[first]: [TASK], everybody[second]: [60]}
        after = {everybody[entry]: [50], everybody[first]: [70], everybody[second]: [TASK, 60]}
        assign(everybody, 1, before)
        sender = stack.enter_context(client_of(entry.address, ack_mode="processed"))
        sender.send(numbered(TASK, range(MESSAGES)))
        eventually(lambda: queued(first, TASK) == MESSAGES)
        kill(entry)
        again = stack.enter_context(one_worker("entry", directory=tmp_path, port=port))
        assign((again, second), 2, after)
        consumer = stack.enter_context(Client(second.address, topology=TOPOLOGY))
        subscription = stack.enter_context(consumer.recv([TASK], timeout=60))
        assert kept(subscription, MESSAGES) == ([], list(range(MESSAGES)))
        subscription.acknowledge()
        sender.flush(60)
        assign(first, 2, after)
        assert kept(subscription, MESSAGES) == ([], list(range(MESSAGES)))


@pytest.mark.parametrize("drained", [False, True])
def test_what_waits_where_its_entry_worker_has_ended(tmp_path: Path, *, drained: bool) -> None:
    """Messages are marked if their entry worker was killed, and not if it has exited cleanly."""
    with one_worker("owner", directory=tmp_path) as owner, client_of(owner.address) as consumer:
        with one_worker("entry", directory=tmp_path) as entry:
            assign((entry, owner), 1, {entry: [50], owner: [TASK]})
            with client_of(entry.address) as sender:
                deliver(sender, numbered(TASK, range(MESSAGES)))
            eventually(lambda: queued(owner, TASK) == MESSAGES)
            if not drained:
                kill(entry)
                eventually(lambda: metric(owner, 'tuplewire_senders{state="resumable"}') == 1)
        with consumer.recv([TASK], timeout=60) as subscription:
            plain, marked = kept(subscription, MESSAGES)
        assert (plain if drained else marked) == list(range(MESSAGES))
        assert not (marked if drained else plain)
