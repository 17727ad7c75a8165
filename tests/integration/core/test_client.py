"""The blocking client with two real workers: the delivery and the errors of send()."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from helpers.errors import comes_to_say
from helpers.topology import TOPOLOGY, Pair, collect, ledger, metric, numbered, numbers, queued
from helpers.traffic import client_of, deliver

from tuplewire import Client, TaskMessage, TaskMessageBatch
from tuplewire.errors import (
    BufferFullError,
    ConfigError,
    FlushTimeoutError,
    MessageTooLargeError,
    RefusedMessagesError,
    UnreachableError,
    WrongTopologyError,
)
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

LONGER_THAN_A_TEST = 10_000.0
"""A wait in seconds, longer than the test's own time limit."""


def test_ledgers_agree_with_what_was_sent_and_received(pair: Pair) -> None:
    """Over two hops, the ledgers of the client and both workers match the test's own counts."""
    task = pair.far_task()
    near, far = ledger(pair.near), ledger(pair.far)
    with client_of(pair.near.address) as sender, client_of(pair.far.address) as consumer:
        sender.send(numbered(task, range(300)))
        collect(consumer.recv([task], timeout=10), 300)
        sender.flush(10)
        assert (sender.ledger().accepted, sender.ledger().acknowledged) == (300, 300)
    for endpoint, before in ((pair.near, near), (pair.far, far)):
        eventually(lambda e=endpoint, b=before: ledger(e).acknowledged == b.acknowledged + 300, 5)  # type: ignore[misc]
        assert ledger(endpoint).accepted == before.accepted + 300


@pytest.mark.parametrize("form", ["task and payload", "messages", "batch", "nothing"])
def test_send_takes_every_form(pair: Pair, form: str) -> None:
    """A task id with a payload, TaskMessages and a batch all arrive; an empty list is allowed."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        match form:
            case "task and payload":
                client.send(task, b"0")
            case "messages":
                client.send(TaskMessage(task, b"%d" % number) for number in range(3))
            case "batch":
                client.send(TaskMessageBatch.from_columns([task] * 3, [b"0", b"1", b"2"]))
            case _:
                client.send([])
        client.flush(10)
        expected = {"task and payload": 1, "nothing": 0}.get(form, 3)
        assert client.ledger().acknowledged == queued(pair.near, task) == expected


def test_empty_and_large_payloads_arrive_unchanged(pair: Pair) -> None:
    """Empty payloads, zero bytes and a payload of the maximum size are unchanged after two hops."""
    task = pair.far_task()
    payloads = [b"", b"\0" * 10, os.urandom(1 << 20), b"", b"end"]
    with client_of(pair.near.address, source=7) as sender, client_of(pair.far.address) as consumer:
        sender.send(TaskMessageBatch.from_columns([task] * 5, payloads))
        got = collect(consumer.recv([task], timeout=20), 5)
    assert got == [(7, payload) for payload in payloads]


def test_message_over_the_limit_fails_alone(pair: Pair) -> None:
    """A payload over the limit is refused with both sizes before it is sent; the next message arrives."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        with pytest.raises(MessageTooLargeError, match=r"1048577 bytes.*limit of 1048576"):
            client.send(task, bytes((1 << 20) + 1))
        deliver(client, task, b"next")
        assert client.ledger().accepted == 1


def test_try_send_answers_at_once(nobody: str) -> None:
    """try_send() accepts messages while there is space, and then returns False without waiting."""
    client = client_of(nobody, max_pending_messages=10, max_block_seconds=LONGER_THAN_A_TEST)
    assert all(client.try_send(0, b"x") for _ in range(10))
    assert not client.try_send(0, b"x")
    client.close(0)
    assert client.ledger().dropped["closed"] == 10


def test_try_send_arrives(pair: Pair) -> None:
    """Messages that try_send() accepts are delivered."""
    task = pair.far_task()
    with client_of(pair.near.address) as client, client_of(pair.far.address) as consumer:
        assert client.try_send(numbered(task, range(100)))
        assert numbers(collect(consumer.recv([task], timeout=10), 100)) == list(range(100))


def test_full_buffer_names_the_worker_and_the_cause(nobody: str) -> None:
    """A send that times out on a full buffer reports the pending messages, the worker and the cause."""
    client = client_of(nobody, max_pending_messages=1)
    client.send(0, b"x")
    comes_to_say(
        lambda: client.send(0, b"y", timeout=0.1),
        BufferFullError,
        f"1 messages .*{nobody} is not connected: .*refused",
    )
    client.close(0)


def test_overflow_fail_raises_at_once(nobody: str) -> None:
    """With overflow="fail", send() raises immediately if the buffer is full."""
    client = client_of(nobody, max_pending_messages=1, overflow="fail")
    client.send(0, b"x")
    with pytest.raises(BufferFullError):
        client.send(0, b"y")
    client.close(0)


def test_unknown_task_is_refused_by_name_and_counted(pair: Pair) -> None:
    """Messages to an unknown task are refused by name at flush() and counted; other messages arrive."""
    task = pair.near_task()
    sample = 'tuplewire_refused_messages_total{code="UNKNOWN_TASK"}'
    before = metric(pair.near, sample)
    with client_of(pair.near.address) as client:
        client.send(TaskMessageBatch.from_columns([task, 999_999, task], [b"0", b"lost", b"1"]))
        with pytest.raises(RefusedMessagesError, match="UNKNOWN_TASK: 1 messages to task 999999"):
            client.flush(10)
        client.flush(10)  # reported only once
        assert client.ledger().balanced
        assert (client.ledger().acknowledged, client.ledger().dropped["unknown_task"]) == (2, 1)
        deliver(client, task, b"2")
        assert queued(pair.near, task) == 3
    assert metric(pair.near, sample) == before + 1


def test_address_and_topology_come_from_the_environment(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """TUPLEWIRE_ADDRESS and TUPLEWIRE_TOPOLOGY are the defaults of the arguments."""
    monkeypatch.setenv("TUPLEWIRE_ADDRESS", pair.near.unix_address)
    monkeypatch.setenv("TUPLEWIRE_TOPOLOGY", TOPOLOGY)
    with Client() as client:
        deliver(client, pair.near_task(), b"x")


def test_no_address_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address, the error names the environment variable."""
    monkeypatch.delenv("TUPLEWIRE_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="TUPLEWIRE_ADDRESS"):
        Client()


def test_wrong_topology_ends_the_session_by_name(pair: Pair) -> None:
    """A sender and a consumer with another topology fail permanently with WrongTopologyError."""
    with FaultProxy(pair.near.address) as proxy:
        proxy.black_hole()  # the refusal must not precede the send
        client = Client(proxy.address, topology="other")
        client.send(0, b"x")
        proxy.resume()
        with pytest.raises(WrongTopologyError, match=r"serves topology 'test'.*'other'"):
            client.flush(10)
        with pytest.raises(WrongTopologyError):
            client.send(0, b"y")
        with pytest.raises(WrongTopologyError):
            next(client.recv([0], timeout=10))
        client.close(0)
    assert client.ledger().balanced
    assert client.ledger().dropped["refused"] == 1


def test_nobody_there_is_named_at_flush(nobody: str) -> None:
    """If the worker is unreachable, flush() reports the address and the cause; messages stay pending."""
    client = client_of(nobody)
    client.send(0, b"x")
    comes_to_say(
        lambda: client.flush(0.5),
        FlushTimeoutError,
        f"1 messages .* after 0.5 s; {nobody} .*refused.*pending",
    )
    assert client.ledger().pending == 1
    with pytest.raises(FlushTimeoutError, match=f"1 messages .* after 0.1 s; {nobody} .*dropped"):
        client.close(0.1)
    client.close()
    assert client.ledger().dropped["closed"] == 1


def test_server_that_is_no_worker_is_named_at_flush() -> None:
    """If a gRPC server is not a Tuplewire worker, flush() and recv() report it."""

    def answer(requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
        for _ in requests:
            yield b"\xff\xff this is not ours"

    handler: Any = grpc.stream_stream_rpc_method_handler(answer)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "tuplewire.v1.Messaging", {"Send": handler, "Recv": handler}
                ),
            )
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        client = client_of(f"127.0.0.1:{port}")
        client.send(0, b"x")
        words = "does not answer as a Tuplewire worker"
        comes_to_say(lambda: client.flush(0.5), FlushTimeoutError, words)
        comes_to_say(lambda: next(client.recv([0], timeout=1)), UnreachableError, words)
        client.close(0)
        server.stop(None).wait()
    assert client.ledger().balanced


def test_missing_socket_file_is_named_at_flush() -> None:
    """A missing Unix socket is reported at flush()."""
    client = client_of("unix:///nowhere/w.sock")
    client.send(0, b"x")
    comes_to_say(lambda: client.flush(0.5), FlushTimeoutError, r"unix:///nowhere/w.sock .*No such file")
    client.close(0)
