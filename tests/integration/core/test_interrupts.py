"""Interrupts and signal handlers in the middle of a call: counts stay correct, and the sender works."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers.topology import TOPOLOGY, numbers
from helpers.traffic import deliver, take

import tuplewire
from tuplewire import Client, TaskMessage
from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import ClosedError
from tuplewire.processes.worker_processes import Endpoint

# An interrupt may occur in a weak reference's callback, where Python cannot raise it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TASK = 1
INTERRUPTS = 3000
SENDS = 100
FLUSHES = 1000
"""The most calls in a round of flushes or closes: an alarm is lost if Python cannot raise at that moment."""
MOST = 60_000
"""The number of messages that the worker has space for."""
UNTIL_CLOSE = 2e-3
"""The longest wait for the alarm in a round of closes, in seconds."""
Connect = Callable[[], Client]
OnAlarm = Callable[[Callable[[], object]], object]
_OURS = str(Path(tuplewire.__file__).parent)


class Interrupted(BaseException):
    """Stands for the exception of a user's Ctrl-C, which may be raised anywhere."""


def interrupt() -> None:
    """Raise the exception that stands for Ctrl-C."""
    raise Interrupted


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Interrupt a call before a step, an opcode of Tuplewire or asyncio. Return False if it ends earlier."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and "/asyncio/" not in name:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture
def on_alarm() -> Iterator[OnAlarm]:
    """Return a function that sets the action of an alarm; alarms are turned off after the test."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda action: signal.signal(signal.SIGALRM, lambda *_: action())
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def connect(endpoint: Endpoint) -> Iterator[Connect]:
    """Return a function that creates a client; the clients are closed after the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Client(endpoint.address, topology=TOPOLOGY))


def numbers_of(endpoint: Endpoint, count: int) -> list[int]:
    """Take `count` messages, and return their numbers."""
    return numbers(take(endpoint, TASK, count))


def all_arrive(endpoint: Endpoint, accepted: int) -> None:
    """Check that this number of messages arrives, in order and once."""
    received = numbers_of(endpoint, accepted)
    assert len(received) == accepted
    assert received == sorted(set(received))


def check(endpoint: Endpoint, sender: Client) -> None:
    """Check that all messages that a sender has accepted have arrived, in order and once."""
    sender.flush(60)
    balance = sender.ledger()
    assert balance.accepted == balance.acknowledged
    assert not balance.pending
    all_arrive(endpoint, balance.accepted)


def three(number: int) -> list[TaskMessage]:
    """Return three messages."""
    return [TaskMessage(TASK, b"%d" % (number + each)) for each in range(1, 4)]


@pytest.mark.parametrize(
    ("act", "messages"),
    [
        (lambda sender, number: sender.send(TASK, b"%d" % (number + 1)), 1),
        (lambda sender, number: sender.send(three(number)), 3),
        (lambda sender, number: sender.try_send(three(number)), 3),
    ],
    ids=["singles", "batches", "tries"],
)
def test_interrupted_sends(
    endpoint: Endpoint, connect: Connect, on_alarm: OnAlarm, act: Callable[[Any, int], None], messages: int
) -> None:
    """After up to 3,000 random interrupts, the ledger matches the messages; each arrives once, in order."""
    on_alarm(interrupt)
    moments = random.Random(7)
    number = interrupts = 0
    sender = connect()
    deliver(sender, TASK, b"0")
    while interrupts < INTERRUPTS and number < MOST:
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-4))
            for _ in range(SENDS):
                number += messages
                act(sender, number)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            interrupts += 1
    assert interrupts > 100, "too few to say anything"
    check(endpoint, sender)


def test_interrupted_at_each_step(endpoint: Endpoint) -> None:
    """A send that is interrupted at any step is complete or has no effect, and the next send works."""
    returned: list[int] = []
    with Client(endpoint.address, topology=TOPOLOGY) as client:
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
    received = numbers_of(endpoint, balance.accepted)
    assert received == sorted(set(received))
    assert {*returned} <= {*received}


def test_interrupted_flushes(endpoint: Endpoint, connect: Connect, on_alarm: OnAlarm) -> None:
    """An interrupted flush() changes nothing; the next one waits for the same messages."""
    on_alarm(interrupt)
    moments = random.Random(8)
    sender = connect()
    for number in range(500):
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 3e-3))
            sender.send(TASK, b"%d" % number)
            for _ in range(FLUSHES):
                sender.flush(30)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            pass
    check(endpoint, sender)


def test_interrupted_closes(endpoint: Endpoint, connect: Connect, on_alarm: OnAlarm) -> None:
    """Another close() completes an interrupted one; every accepted message has arrived or is reported."""
    on_alarm(interrupt)
    moments = random.Random(9)
    accepted = interrupts = 0
    for number in range(200):
        sender = connect()
        sender.send(TASK, b"%d" % number)
        try:
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, UNTIL_CLOSE))
            for _ in range(FLUSHES):
                sender.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            interrupts += 1
        with suppress(Interrupted):
            sender.close()
        sender.close()
        balance = sender.ledger()
        assert balance.balanced
        assert not balance.pending
        accepted += balance.acknowledged
    assert interrupts > 100, "too few to say anything"
    all_arrive(endpoint, accepted)


def test_a_signal_handler_may_send(endpoint: Endpoint, connect: Connect, on_alarm: OnAlarm) -> None:
    """A handler that sends, and sometimes flushes, while its thread is in send() returns; all arrive."""
    sender = connect()
    handled = last_words = 0
    ended = False

    def send_last_words() -> None:
        nonlocal handled, last_words
        sender.send(TASK, b"1000000000")
        last_words += 1
        assert sender.try_send(TASK, b"1000000000")
        last_words += 1
        if not handled % 10:
            sender.flush(30)
        handled += 1
        if not ended:  # an alarm may have occurred just before the timer was stopped
            signal.setitimer(signal.ITIMER_REAL, 1e-4)

    on_alarm(send_last_words)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    sent = 0
    while handled < 1000 and sent < MOST:
        sender.send(TASK, b"%d" % sent)
        sent += 1
    ended = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    sender.flush(60)
    assert handled > 1
    assert sender.ledger().acknowledged == sent + last_words
    received = numbers_of(endpoint, sent + last_words)
    assert [each for each in received if each < 10**9] == list(range(sent))


def test_a_signal_handler_may_close(endpoint: Endpoint, connect: Connect, on_alarm: OnAlarm) -> None:
    """If a handler closes the sender, a send or flush in progress returns; messages arrive or are counted."""
    moments = random.Random(10)
    accepted = 0
    for number in range(100):
        sender = connect()
        sender.send(TASK, b"%d" % (number * 1_000_000))
        on_alarm(sender.close)
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, UNTIL_CLOSE))
        with suppress(ClosedError):
            for each in count(1):
                sender.send(TASK, b"%d" % (number * 1_000_000 + each))
                if not each % 10:
                    sender.flush(30)
        sender.flush(30)
        balance = sender.ledger()
        assert balance.balanced
        assert balance.dropped["closed"] <= 1  # the message that close() interrupted
        accepted += balance.acknowledged
    all_arrive(endpoint, accepted)


@pytest.mark.parametrize("begun", [False, True])
def test_the_first_send_is_interrupted(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """After an interrupt before or after its connection starts, the next send uses the same connection."""
    loop = messaging_thread()
    begin = loop.start_connection

    def interrupted(connection: Any) -> None:
        monkeypatch.setattr(loop, "start_connection", begin)
        if begun:
            begin(connection)
        raise Interrupted

    monkeypatch.setattr(loop, "start_connection", interrupted)
    with Client(endpoint.address, topology=TOPOLOGY) as client:
        with pytest.raises(Interrupted):
            client.send(TASK, b"first")
        deliver(client, TASK, b"second")
        assert client.ledger().acknowledged == 1
