"""Interrupts and signal handlers in the middle of a call to a local sender: counts stay right, it goes on."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
from helpers.alarms import Interrupted, OnAlarm, interrupt

from tuplewire import TaskMessage
from tuplewire.errors import ClosedError
from tuplewire_service.messaging.base import IConnectionCallback, ReceivedBatch
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.testing import eventually

# An interrupt may come in a weak reference's callback, where Python cannot raise it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TOPOLOGY = "t"
TASK = 1
INTERRUPTS = 3000
MOST = 300_000
SENDS = 100
FLUSHES = 1000
CLOSES = 500


class Numbers(IConnectionCallback):
    """Keeps the numbers that come; has a few steps of its own in which an interrupt could come."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def recv(self, batch: ReceivedBatch) -> None:
        """Keep them, one by one."""
        for payload in batch.payloads:
            self.received.append(int(payload))

    def check(self, accepted: int) -> None:
        """Wait for so many, and see that they came in order, and once."""
        eventually(lambda: len(self.received) >= accepted, 30)
        assert len(self.received) == accepted
        assert self.received == sorted(set(self.received))


@contextmanager
def pair() -> Iterator[tuple[Numbers, Callable[[], Any]]]:
    """Give a server's callback, and what connects to it."""
    context, numbers = LocalContext(), Numbers()
    server = context.bind(TOPOLOGY, 0, numbers)
    try:
        yield numbers, lambda: context.connect(TOPOLOGY, "", server.port)
    finally:
        context.term()


def singles(sender: Any, number: int) -> int:
    """Send one message; return the last number."""
    sender.send(TASK, b"%d" % (number + 1))
    return number + 1


def batches(sender: Any, number: int) -> int:
    """Send three."""
    sender.send([TaskMessage(TASK, b"%d" % (number + each)) for each in range(1, 4)])
    return number + 3


def tries(sender: Any, number: int) -> int:
    """Try to."""
    sender.try_send([TaskMessage(TASK, b"%d" % (number + each)) for each in range(1, 4)])
    return number + 3


@pytest.mark.parametrize("act", [singles, batches, tries])
def test_interrupted_sends(on_alarm: OnAlarm, act: Callable[[Any, int], int]) -> None:
    """After up to 3,000 interrupts at random the ledger is that of what arrived, in order and once."""
    on_alarm(interrupt)
    moments = random.Random(7)
    number = interrupts = 0
    with pair() as (numbers, connect):
        sender = connect()
        sender.send(TASK, b"0")
        sender.end.buffer.flush(30)
        while interrupts < INTERRUPTS and number < MOST:
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-4))
                for _ in range(SENDS):
                    number += 3  # more than is used, where the call does not return
                    act(sender, number)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
        assert interrupts > 100, "too few to say anything"
        sender.end.buffer.flush(60)
        balance = sender.statistics().ledger
        assert balance.accepted == balance.acknowledged
        numbers.check(balance.accepted)


def test_interrupted_flushes(on_alarm: OnAlarm) -> None:
    """A flush that is interrupted changes nothing; the next one waits for the same messages."""
    on_alarm(interrupt)
    moments = random.Random(8)
    with pair() as (numbers, connect):
        sender = connect()
        for number in range(1000):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 1e-3))
                sender.send(TASK, b"%d" % number)
                for _ in range(FLUSHES):
                    sender.end.buffer.flush(30)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                pass
        sender.end.buffer.flush(60)
        balance = sender.statistics().ledger
        assert balance.accepted == balance.acknowledged
        numbers.check(balance.accepted)


def test_interrupted_closes(on_alarm: OnAlarm) -> None:
    """A close that is interrupted is ended by another one; every accepted message has arrived, or is told."""
    on_alarm(interrupt)
    moments = random.Random(9)
    accepted = interrupts = 0
    with pair() as (numbers, connect):
        for number in range(CLOSES):
            sender = connect()
            sender.send(TASK, b"%d" % number)
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 4e-4))
                for _ in range(FLUSHES):
                    sender.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
            with suppress(Interrupted):
                sender.close()
            sender.close()
            balance = sender.statistics().ledger
            assert balance.balanced
            assert not balance.pending
            accepted += balance.acknowledged
        assert interrupts > 100, "too few to say anything"
        numbers.check(accepted)


def test_a_signal_handler_may_send_and_flush(on_alarm: OnAlarm) -> None:
    """A handler that sends while its thread is in `send` comes back, and both messages arrive."""
    last_words: list[int] = []
    with pair() as (numbers, connect):
        sender = connect()
        ended = False

        def send_last_words() -> None:
            sender.send(TASK, b"1000000000")
            assert sender.try_send(TASK, b"1000000000")
            if not len(last_words) % 10:
                sender.end.buffer.flush(30)
            last_words.append(1)
            if not ended:  # an alarm may have come just before the timer was stopped
                signal.setitimer(signal.ITIMER_REAL, 1e-4)

        on_alarm(send_last_words)
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        sent = 0
        while len(last_words) < 1000 and sent < 200_000:
            sender.send(TASK, b"%d" % sent)
            sent += 1
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        sender.end.buffer.flush(60)
        assert len(last_words) > 1
        assert sender.statistics().ledger.acknowledged == sent + 2 * len(last_words)
        eventually(lambda: len(numbers.received) == sent + 2 * len(last_words), 30)
        assert [each for each in numbers.received if each < 10**9] == list(range(sent))


def test_a_signal_handler_may_close(on_alarm: OnAlarm) -> None:
    """While its thread sends or flushes: the call comes back, and what is accepted arrives or is counted."""
    moments = random.Random(10)
    accepted = 0
    with pair() as (numbers, connect):
        for number in range(CLOSES):
            sender = connect()
            on_alarm(sender.close)
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 4e-4))
            with suppress(ClosedError):
                for each in count():
                    sender.send(TASK, b"%d" % (number * 1_000_000 + each))
                    if not each % 10:
                        sender.end.buffer.flush(30)
            sender.end.buffer.flush(30)
            balance = sender.statistics().ledger
            assert balance.balanced
            assert balance.dropped["closed"] <= 1  # the one in which it was closed
            accepted += balance.acknowledged
        numbers.check(accepted)
