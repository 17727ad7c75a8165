"""Requests and their answers, through two real workers."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple
from unittest.mock import AsyncMock, Mock

import pytest
from helpers.ports import free_port
from helpers.program import in_threads
from helpers.topology import Pair
from helpers.traffic import client_of, deliver

from tuplewire import Client, TaskMessage, request_reply
from tuplewire.connection.grpc_channel import WorkerConnections
from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.task_states import TaskStates
from tuplewire.errors import (
    AnswerError,
    ClosedError,
    MessageError,
    NoAnswerError,
    NoConsumerError,
    RefusedMessagesError,
    SupersededError,
    WrongTopologyError,
)
from tuplewire.request_reply import Asker
from tuplewire.settings.addresses import Peer
from tuplewire.settings.config import SessionSettings
from tuplewire.spark.client_handle import ClientHandle, close_clients
from tuplewire_service.testing import eventually

_SECONDS = 60.0


class Ends(NamedTuple):
    """A requester at one worker, the client that answers at the other one, and the task of each."""

    requester: Client
    asker: Asker
    reply_to: int
    answerer: Client
    task: int

    def requests(self, count: int) -> Iterator[TaskMessage]:
        """Receive requests. Each one is acknowledged when the next one is requested."""
        with self.answerer.recv([self.task], timeout=_SECONDS) as inbox:
            yield from inbox.messages(count=count)

    def echo(self, count: int) -> None:
        """Answer requests with their payloads."""
        for message in self.requests(count):
            self.answerer.answer(message, message.payload)


@pytest.fixture
def ends(pair: Pair) -> Iterator[Ends]:
    """Return the two ends."""
    reply_to = pair.near_task()
    with (
        client_of(pair.near.address) as client,
        client_of(pair.far.address) as answerer,
        client.asker(reply_to) as asker,
    ):
        yield Ends(client, asker, reply_to, answerer, pair.far_task())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll early, and miss a consumer early."""
    monkeypatch.setattr(request_reply, "_FIRST_POLL_SECONDS", 0.1)
    monkeypatch.setattr(request_reply, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(request_reply, "NO_CONSUMER_SECONDS", 0.5)


def test_a_thousand_answers_out_of_order(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are returned in the order of the requests, and nothing is polled if they are fast."""
    polled: list[object] = []
    monkeypatch.setattr(Asker, "_poll", lambda _, call: polled.append(call))
    monkeypatch.setattr(request_reply, "_FIRST_POLL_SECONDS", _SECONDS)

    def answer() -> None:
        requests = list(ends.requests(1000))
        random.Random(1).shuffle(requests)
        for message in requests:
            ends.answerer.answer(message, b"answer " + message.payload)

    with in_threads(answer):
        answers = ends.asker.ask_all(
            ((ends.task, b"%d" % number) for number in range(1000)), timeout=_SECONDS
        )
    assert [each.payload for each in answers] == [b"answer %d" % number for number in range(1000)]
    assert {each.task for each in answers} == {ends.reply_to}
    assert ends.asker.ask_all([]) == []
    assert (ends.asker.dropped_messages, polled) == (0, [])


@pytest.mark.usefixtures("impatient")
def test_an_answerer_that_stops(ends: Ends) -> None:
    """Without a consumer of the task, the call ends early, and the error has the facts."""

    def stop() -> None:
        next(ends.requests(1))  # the end of the generator closes the subscription

    with in_threads(stop), pytest.raises(NoConsumerError, match=r"no consumer .* 1 unread at") as raised:
        ends.asker.ask(ends.task, b"x", timeout=_SECONDS)
    assert (raised.value.task, raised.value.queued_messages) == (ends.task, 1)
    assert isinstance(raised.value, TimeoutError)


@pytest.mark.usefixtures("impatient")
def test_a_task_without_a_worker(ends: Ends) -> None:
    """A task that no worker owns has no consumer."""
    with pytest.raises(NoConsumerError, match="no worker owns it") as raised:
        ends.asker.ask(5000, b"x", timeout=_SECONDS)
    assert raised.value.worker_id == ""
    with pytest.raises(RefusedMessagesError, match="5000"):
        ends.requester.flush(_SECONDS)


@pytest.mark.usefixtures("impatient")
def test_no_answer(ends: Ends, pair: Pair) -> None:
    """The error names the task, its worker, the unread messages and the age of the oldest one."""
    with (
        ends.answerer.recv([ends.task], timeout=_SECONDS),
        pytest.raises(NoAnswerError, match=", nor to 1 of 1 other requests, within") as raised,
    ):
        ends.asker.ask_all([(ends.task, b"1"), (ends.task, b"2")], timeout=1.5)
    error = raised.value
    assert (error.task, error.worker_id, error.queued_messages) == (ends.task, pair.far.worker_id, 2)
    assert error.oldest_seconds is not None
    assert error.oldest_seconds > 0


def test_a_late_answer(ends: Ends) -> None:
    """An answer after the timeout is dropped and counted; so is a second answer to a request."""
    with pytest.raises(NoAnswerError) as raised:
        ends.asker.ask(ends.task, b"late", timeout=0.1)
    assert raised.value.worker_id is None
    ends.echo(1)
    eventually(lambda: ends.asker.dropped_messages == 1, _SECONDS)

    def twice() -> None:
        for message in ends.requests(1):
            ends.answerer.answer(message, b"first")
            ends.answerer.answer(message, b"second")

    with in_threads(twice):
        assert ends.asker.ask(ends.task, b"x").payload == b"first"
    deliver(ends.answerer, ends.reply_to, b"not an answer")
    deliver(ends.answerer, [TaskMessage.from_checked(ends.reply_to, b"malformed headers", b"\xff")])
    eventually(lambda: ends.asker.dropped_messages == 4, _SECONDS)


def test_an_answer_at_the_timeout(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer, or an error, that arrives between the end of the wait and NoAnswerError is not lost."""
    monkeypatch.setattr(
        Asker, "_wait_for_answers", lambda _, call, __: eventually(lambda: call.error or not call.unanswered)
    )
    with in_threads(partial(ends.echo, 1)):
        assert ends.asker.ask(ends.task, b"x").payload == b"x"

    def refuse() -> None:
        for message in ends.requests(1):
            ends.answerer.answer_error(message, "busy")

    with in_threads(refuse), pytest.raises(AnswerError, match="busy"):
        ends.asker.ask(ends.task, b"x")


@pytest.mark.parametrize("timeout", [math.inf, sys.float_info.max])
def test_a_timeout_without_a_deadline(ends: Ends, timeout: float) -> None:
    """A timeout beyond any date is no limit: the request has no deadline."""
    with in_threads(partial(ends.echo, 1)):
        assert ends.asker.ask(ends.task, b"x", timeout=timeout).payload == b"x"


def test_a_request_is_not_an_answer(ends: Ends) -> None:
    """A request to the task of an asker is dropped there, although it has an id of this asker."""
    with pytest.raises(NoAnswerError):
        ends.asker.ask(ends.reply_to, b"x", timeout=0.5)
    eventually(lambda: ends.asker.dropped_messages == 1, _SECONDS)


def test_an_expired_request(ends: Ends) -> None:
    """The consumer recognizes expired requests, and messages without a request."""
    with pytest.raises(NoAnswerError):
        ends.asker.ask(ends.task, b"expired", timeout=0.1)
    deliver(ends.answerer, ends.task, b"not a request")

    def answer() -> None:
        for message in ends.requests(3):
            kinds.append((message.payload, message.is_request, message.expired))
            if message.is_request and not message.expired:
                ends.answerer.answer(message, b"answer")

    kinds: list[tuple[bytes, bool, bool]] = []
    with in_threads(answer):
        assert ends.asker.ask(ends.task, b"new").payload == b"answer"
    assert sorted(kinds) == [
        (b"expired", True, True),
        (b"new", True, False),
        (b"not a request", False, False),
    ]
    assert ends.asker.dropped_messages == 0


def test_an_error_as_the_answer(ends: Ends) -> None:
    """The requester gets the text, also of a call with several requests."""

    def refuse() -> None:
        for message in ends.requests(2):
            if message.payload == b"bad":
                ends.answerer.answer_error(message, "division by zero")

    with in_threads(refuse), pytest.raises(AnswerError, match="division by zero") as raised:
        ends.asker.ask_all([(ends.task, b"slow"), (ends.task, b"bad")], timeout=_SECONDS)
    assert (raised.value.task, raised.value.text) == (ends.task, "division by zero")
    with pytest.raises(MessageError, match="not a request"):
        ends.answerer.answer(TaskMessage(1, b""), b"")


def test_another_program_takes_the_task_over(ends: Ends, pair: Pair) -> None:
    """If another program subscribes to the task of the answers, waiting and later calls fail."""
    eventually(lambda: ends.asker._receiver.connected, _SECONDS)
    with client_of(pair.near.address) as other, other.recv([ends.reply_to], timeout=_SECONDS):
        for _ in range(2):
            with pytest.raises(SupersededError):
                ends.asker.ask(ends.task, b"x", timeout=_SECONDS)


def test_close_ends_a_waiting_call(ends: Ends) -> None:
    """A call that waits ends when the asker is closed, and no call begins after that."""
    timer = threading.Timer(0.2, ends.asker.close)
    timer.start()
    for _ in range(2):
        with pytest.raises(ClosedError, match="asker is closed"):
            ends.asker.ask(ends.task, b"x", timeout=_SECONDS)
    timer.join()
    assert ends.asker._calls == {}
    assert ends.requester.ledger().accepted == 1


def test_a_request_on_the_messaging_loop(ends: Ends) -> None:
    """A callback cannot wait for an answer: the call fails before it sends the request."""
    with pytest.raises(RuntimeError, match=r"on the messaging loop: .* in another thread"):
        messaging_thread().call(lambda: ends.asker.ask(ends.task, b"x", timeout=5.0), _SECONDS)
    assert ends.requester.ledger().accepted == 0


def test_the_client_of_a_spark_function(ends: Ends, pair: Pair) -> None:
    """The client of a ClientHandle sends and answers requests, too."""
    reply_to = pair.near_task()
    with ClientHandle(pair.near.address, topology="test") as client, client.asker(reply_to) as asker:

        def answer() -> None:
            for message in ends.requests(1):
                client.answer(message, b"answer")

        with in_threads(answer):
            assert asker.ask(ends.task, b"x").payload == b"answer"
    close_clients()


def test_polls_of_a_worker_share_a_channel(pair: Pair) -> None:
    """A subscription opens one channel to a worker for all its polls, and a new one after an error."""
    workers, address = WorkerConnections(SessionSettings(), None), pair.far.address

    async def poll_twice() -> None:
        await workers.status(address, [1])
        channel = workers._poll_channels[address]
        await workers.poll(address, "test", [pair.far_task()])
        assert workers._poll_channels == {address: channel}
        with pytest.raises(WrongTopologyError):
            await workers.poll(address, "another", [1])
        assert workers._poll_channels == {}
        workers.close_polls(final=True)
        with pytest.raises(ClosedError):  # a poll in progress leaves no channel behind
            await workers.status(address, [1])

    messaging_thread().run(poll_twice())


def test_an_unreachable_worker_hides_no_other_state(pair: Pair) -> None:
    """A poll returns the states of the tasks at all workers that answer, and the problem of the others."""
    known, unknown, nobody = pair.far_task(), pair.near_task(), 5000
    places = {Peer("b", pair.far.address): [known], Peer("gone", f"127.0.0.1:{free_port()}"): [unknown]}
    receiver = Mock(
        connections=WorkerConnections(SessionSettings(), None), workers_of=AsyncMock(return_value=places)
    )
    states = TaskStates()
    messaging_thread().run(states.poll(receiver, [known, unknown, nobody]))
    assert str(states[known]) == "no consumer for 0 s, 0 unread at b"
    assert (states[unknown].worker_id, states[unknown].queued_messages) == ("gone", None)
    assert "no connection" in str(states[unknown])
    assert states[unknown].no_consumer_since == math.inf
    assert (states[nobody].worker_id, str(states[nobody])) == ("", "no worker owns it")
    receiver.invalidate_owners.assert_called_once()
    states[known] = states[known]._replace(has_consumer=True)
    messaging_thread().run(states.poll(receiver, [known]))
    assert str(states[known]) == "its consumer has just left, 0 unread at b"
