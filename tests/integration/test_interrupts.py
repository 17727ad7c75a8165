"""Interrupts and signal handlers in the middle of a call: counts stay right, and the client goes on."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers.alarms import Interrupted, OnAlarm, interrupt, interrupted_at
from helpers.topology import TOPOLOGY, collect, ledger, one_worker
from helpers.traffic import deliver

from tuplewire import Client, TaskMessage
from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import ClosedError
from tuplewire.processes.worker_processes import Endpoint

# An interrupt may come in a weak reference's callback, where Python cannot raise it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TASK = 1
INTERRUPTS = 3000
MOST = 90_000
"""So many messages a worker holds without a consumer."""
SENDS = 100
FLUSHES = 1000
"""So many follow an alarm at most: one that came where Python cannot raise is lost."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Endpoint]:
    """Run a worker with one task."""
    with one_worker("w", directory=tmp_path, tasks=[TASK]) as endpoint:
        yield endpoint
        assert ledger(endpoint).balanced


def numbers_of(worker: Endpoint, count: int) -> list[int]:
    """Take so many messages, and return their numbers."""
    with Client(worker.address, topology=TOPOLOGY).recv([TASK], timeout=60) as subscription:
        return [int(payload) for _, payload in collect(subscription, count)]


@pytest.mark.parametrize("batch", [1, 3], ids=["singles", "batches"])
def test_interrupted_sends(worker: Endpoint, on_alarm: OnAlarm, batch: int) -> None:
    """After up to 3,000 interrupts at random the ledger is that of what arrived, in order and once."""
    on_alarm(interrupt)
    moments = random.Random(7)
    number = interrupts = 0
    with Client(worker.address, topology=TOPOLOGY) as client:
        deliver(client, TASK, b"0")
        while interrupts < INTERRUPTS and number < MOST:
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-4))
                for _ in range(SENDS):
                    number += batch
                    if batch == 1:
                        client.send(TASK, b"%d" % number)
                    else:
                        client.send([TaskMessage(TASK, b"%d" % (number + each)) for each in range(batch)])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
        assert interrupts > 100, "too few to say anything"
        client.flush(60)
        balance = client.ledger()
        assert balance.accepted == balance.acknowledged
        assert not balance.pending
    received = numbers_of(worker, balance.accepted)
    assert received == sorted(set(received))


def test_interrupted_at_each_step(worker: Endpoint) -> None:
    """A send of one message is whole or not at all, wherever it stops, and the next one goes out."""
    returned: list[int] = []
    with Client(worker.address, topology=TOPOLOGY) as client:
        client.send(TASK, b"0")
        steps = 0
        while True:
            client.flush(30)
            number = len(returned) + steps + 1
            accepted = client.ledger().accepted
            if not interrupted_at(steps + 1, partial(client.send, TASK, b"%d" % number)):
                break
            assert client.ledger().balanced
            assert client.ledger().accepted - accepted in (0, 1)
            steps += 1
            returned.append(number + 1)
            client.send(TASK, b"%d" % returned[-1])
        client.flush(30)
        balance = client.ledger()
    assert steps > 100, "the send was not traced to its end"
    assert balance.accepted == balance.acknowledged
    received = numbers_of(worker, balance.accepted)
    assert received == sorted(set(received))
    assert {*returned} <= {*received}


def test_interrupted_flushes(worker: Endpoint, on_alarm: OnAlarm) -> None:
    """A flush that is interrupted changes nothing; the next one waits for the same messages."""
    on_alarm(interrupt)
    moments = random.Random(8)
    with Client(worker.address, topology=TOPOLOGY) as client:
        for number in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 3e-3))
                client.send(TASK, b"%d" % number)
                for _ in range(FLUSHES):
                    client.flush(30)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                pass
        client.flush(60)
        balance = client.ledger()
        assert balance.accepted == balance.acknowledged
    received = numbers_of(worker, balance.accepted)
    assert received == sorted(set(received))


def test_a_signal_handler_may_send(worker: Endpoint, on_alarm: OnAlarm) -> None:
    """A handler that sends while its thread is in `send` comes back, and both messages arrive."""
    last_words = []
    with Client(worker.address, topology=TOPOLOGY) as client:
        ended = False

        def send_last_words() -> None:
            client.send(TASK, b"1000000000")
            last_words.append(1)
            if not ended:  # an alarm may have come just before the timer was stopped
                signal.setitimer(signal.ITIMER_REAL, 1e-4)

        on_alarm(send_last_words)
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        sent = 0
        while len(last_words) < 1000 and sent < 60_000:  # fewer than the worker holds without a consumer
            client.send(TASK, b"%d" % sent)
            sent += 1
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        client.flush(60)
        assert len(last_words) > 1
        assert client.ledger().acknowledged == sent + len(last_words)
    received = numbers_of(worker, sent + len(last_words))
    assert [each for each in received if each < 10**9] == list(range(sent))


def test_a_signal_handler_may_close(worker: Endpoint, on_alarm: OnAlarm) -> None:
    """While its thread sends or flushes: the call comes back, and what is accepted arrives or is counted."""
    moments = random.Random(10)
    accepted = 0
    for _ in range(100):
        client = Client(worker.address, topology=TOPOLOGY)
        client.send(TASK, b"0")
        on_alarm(client.close)
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-3))
        with suppress(ClosedError):
            for each in count():
                client.send(TASK, b"%d" % each)
                if not each % 10:
                    client.flush(30)
        client.flush(30)
        assert client.ledger().balanced
        assert client.ledger().dropped["closed"] <= 1  # the one in which it was closed
        accepted += client.ledger().acknowledged
    assert len(numbers_of(worker, accepted)) == accepted


@pytest.mark.parametrize("begun", [False, True])
def test_the_first_send_is_interrupted(
    worker: Endpoint, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """Before its connection begins, or after: the next one uses the same, and everything is acknowledged."""
    loop = messaging_loop()
    begin = loop.begin

    def interrupted(connection: Any) -> None:
        monkeypatch.setattr(loop, "begin", begin)
        if begun:
            begin(connection)
        raise Interrupted

    monkeypatch.setattr(loop, "begin", interrupted)
    with Client(worker.address, topology=TOPOLOGY) as client:
        with pytest.raises(Interrupted):
            client.send(TASK, b"first")
        deliver(client, TASK, b"second")
        assert client.ledger().acknowledged == 1
