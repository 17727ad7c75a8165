"""The blocking client with two real workers: what it promises, and how it says no."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from helpers.spawned import send_and_receive
from helpers.topology import (
    TOPOLOGY,
    Pair,
    acknowledged,
    collect,
    ledger,
    messages_of,
    metric,
    numbered,
    numbers,
    pair_of_workers,
    queued,
)

from tuplewire import Client, TaskMessage, TaskMessageBatch
from tuplewire.client import Subscription
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    ConfigError,
    FlushTimeoutError,
    MessageTooLargeError,
    NotLocalError,
    RefusedMessagesError,
    StaleIncarnationError,
    SupersededError,
    UnreachableError,
    WrongTopologyError,
)
from tuplewire_service.testing import eventually
from tuplewire_service.testing.proxy import FaultProxy

client_of = functools.partial(Client, topology=TOPOLOGY)


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    """Run two workers for all tests of this file."""
    with pair_of_workers() as pair:
        yield pair


@pytest.fixture
def pair(workers: Pair) -> Iterator[Pair]:
    """Give a test the two workers, and see that their ledgers add up after it."""
    yield workers
    workers.check_balance()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Reserve an address where nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_messages_for_a_remote_task_arrive_in_order_per_source(pair: Pair) -> None:
    """What two sources send to a task of the other worker arrives there, each in its order."""
    task = pair.far_task()
    with client_of(pair.near.address) as sender, client_of(pair.far.address) as consumer:
        for start in range(0, 2000, 50):
            for source in (1, 2):
                sender.send(numbered(task, range(start, start + 50), source))
        sender.flush(10)
        got = collect(consumer.recv([task], timeout=10), 4000)
    assert numbers(got, 1) == numbers(got, 2) == list(range(2000))


def test_flush_means_the_worker_has_it(pair: Pair) -> None:
    """After flush nothing is pending, and the worker's queue holds every message."""
    task = pair.near_task()
    with client_of(pair.near.address) as sender:
        sender.send(numbered(task, range(500)))
        sender.flush(10)
        assert (sender.ledger().acknowledged, sender.ledger().pending) == (500, 0)
        assert queued(pair.near, task) == 500


def test_ledgers_agree_with_what_was_sent_and_received(pair: Pair) -> None:
    """Over two hops, client and both workers count what the test itself counts."""
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
    """A task id with a payload, an iterable of TaskMessages and a batch all arrive; an empty one is fine."""
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
    """No bytes, zero bytes, and exactly the limit go through two hops as they are."""
    task = pair.far_task()
    payloads = [b"", b"\0" * 10, os.urandom(1 << 20), b"", b"end"]
    with client_of(pair.near.address, source=7) as sender, client_of(pair.far.address) as consumer:
        sender.send(TaskMessageBatch.from_columns([task] * 5, payloads))
        got = collect(consumer.recv([task], timeout=20), 5)
    assert got == [(None, payload) for payload in payloads] or got == [(7, payload) for payload in payloads]


def test_message_over_the_limit_fails_alone(pair: Pair) -> None:
    """An oversize payload is refused with both sizes, before anything is sent; the rest goes on."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        with pytest.raises(MessageTooLargeError, match=r"1048577 bytes.*limit of 1048576"):
            client.send(task, bytes((1 << 20) + 1))
        client.send(task, b"next")
        client.flush(10)
        assert client.ledger().accepted == 1


def test_try_send_answers_at_once(nobody: str) -> None:
    """try_send takes what there is room for, and says no without waiting when there is none."""
    client = client_of(nobody, max_pending_messages=10)
    assert all(client.try_send(0, b"x") for _ in range(10))
    started = time.monotonic()
    assert not client.try_send(0, b"x")
    assert time.monotonic() - started < 0.5
    client.close(0)
    assert client.ledger().dropped["closed"] == 10


def test_try_send_arrives(pair: Pair) -> None:
    """What try_send took is delivered like anything else."""
    task = pair.far_task()
    with client_of(pair.near.address) as client, client_of(pair.far.address) as consumer:
        assert client.try_send(numbered(task, range(100)))
        assert numbers(collect(consumer.recv([task], timeout=10), 100)) == list(range(100))


def test_full_buffer_names_the_worker_and_the_cause(nobody: str) -> None:
    """A send that finds no room within its timeout says how much is pending, where, and why."""
    client = client_of(nobody, max_pending_messages=1)
    client.send(0, b"x")
    with pytest.raises(FlushTimeoutError):
        client.flush(0.5)
    with pytest.raises(BufferFullError, match=f"1 messages .*{nobody} is not connected: .*refused"):
        client.send(0, b"y", timeout=0.1)
    client.close(0)


def test_overflow_fail_raises_at_once(nobody: str) -> None:
    """With overflow="fail" a send without room raises instead of waiting."""
    client = client_of(nobody, max_pending_messages=1, overflow="fail")
    client.send(0, b"x")
    with pytest.raises(BufferFullError):
        client.send(0, b"y")
    client.close(0)


def test_unknown_task_is_refused_by_name_and_counted(pair: Pair) -> None:
    """Messages to a task that nobody holds come back named at flush; the others arrive; the worker lives."""
    task = pair.near_task()
    sample = 'tuplewire_refused_total{code="UNKNOWN_TASK"}'
    before = metric(pair.near, sample)
    with client_of(pair.near.address) as client:
        client.send(TaskMessageBatch.from_columns([task, 999_999, task], [b"0", b"lost", b"1"]))
        with pytest.raises(RefusedMessagesError, match="UNKNOWN_TASK: 1 messages to task 999999"):
            client.flush(10)
        client.flush(10)  # told once
        assert client.ledger().balanced
        assert (client.ledger().acknowledged, client.ledger().dropped["unknown_task"]) == (2, 1)
        client.send(task, b"2")
        client.flush(10)
        assert queued(pair.near, task) == 3
    assert metric(pair.near, sample) == before + 1


def test_unix_socket(pair: Pair) -> None:
    """A Unix socket does for sending and for receiving what TCP does."""
    task = pair.far_task()
    with client_of(pair.near.unix_address) as sender, client_of(pair.far.unix_address) as consumer:
        sender.send(numbered(task, range(100)))
        assert numbers(collect(consumer.recv([task], timeout=10), 100)) == list(range(100))


def test_address_and_topology_come_from_the_environment(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """TUPLEWIRE_ADDRESS and TUPLEWIRE_TOPOLOGY stand in for the arguments."""
    monkeypatch.setenv("TUPLEWIRE_ADDRESS", pair.near.unix_address)
    monkeypatch.setenv("TUPLEWIRE_TOPOLOGY", TOPOLOGY)
    with Client() as client:
        client.send(pair.near_task(), b"x")
        client.flush(10)


def test_no_address_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address the error names the variable."""
    monkeypatch.delenv("TUPLEWIRE_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="TUPLEWIRE_ADDRESS"):
        Client()


def test_wrong_topology_ends_the_session_by_name(pair: Pair) -> None:
    """Sender and consumer of another topology are told so, at once and for good."""
    client = Client(pair.near.address, topology="other")
    client.send(0, b"x")
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
    """A flush that cannot reach the worker names the address and the cause; what is pending stays so."""
    client = client_of(nobody)
    client.send(0, b"x")
    with pytest.raises(FlushTimeoutError, match=f"1 messages .* after 0.5 s; {nobody} .*refused.*pending"):
        client.flush(0.5)
    assert client.ledger().pending == 1
    client.close(0.1)
    assert client.ledger().dropped["closed"] == 1


def test_server_that_is_no_worker_is_named_at_flush() -> None:
    """A gRPC server that answers with something else is named, by flush and by recv alike."""

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
        with pytest.raises(FlushTimeoutError, match="does not answer as a Tuplewire worker"):
            client.flush(1)
        with pytest.raises(UnreachableError, match="does not answer as a Tuplewire worker"):
            next(client.recv([0], timeout=1))
        client.close(0)
        server.stop(None).wait()
    assert client.ledger().balanced


def test_missing_socket_file_is_named_at_flush() -> None:
    """The same for a Unix socket that is not there."""
    client = client_of("unix:///nowhere/w.sock")
    client.send(0, b"x")
    with pytest.raises(FlushTimeoutError, match=r"unix:///nowhere/w.sock .*No such file"):
        client.flush(1)
    client.close(0)


def test_recv_times_out_when_nothing_comes(pair: Pair) -> None:
    """An idle task gives TimeoutError, and the subscription goes on to work."""
    task = pair.near_task()
    with client_of(pair.near.address) as client, client.recv([task], timeout=0.3) as subscription:
        with pytest.raises(TimeoutError, match="nothing arrived"):
            next(subscription)
        client.send(task, b"0")
        client.flush(10)
        assert numbers(collect(subscription, 1)) == [0]


def test_recv_says_when_the_worker_is_out_of_reach(nobody: str) -> None:
    """A subscription that never reached its worker raises UnreachableError, with the cause."""
    client = client_of(nobody)
    with pytest.raises(UnreachableError, match=f"{nobody} for 0.5 s.*refused"):
        next(client.recv([0], timeout=0.5))
    client.close()


def test_recv_of_a_task_elsewhere_names_the_owner(pair: Pair) -> None:
    """Subscribing at the wrong worker is refused, and the error says where the task is."""
    with client_of(pair.near.address) as client, pytest.raises(NotLocalError, match=pair.far.address):
        next(client.recv([pair.far_task()], timeout=10))


def test_newer_subscriber_takes_the_task_over(pair: Pair) -> None:
    """The older gets SupersededError; the newer gets what was not acknowledged, in order and marked."""
    task = pair.near_task()
    with client_of(pair.near.address) as older, client_of(pair.near.address) as newer:
        older.send(numbered(task, range(10)))
        first = older.recv([task], timeout=10)
        assert numbers(collect(first, 10)) == list(range(10))
        eventually(lambda: acknowledged(pair.near, task) == 10)
        older.send(numbered(task, range(10, 30), source=4))
        assert len(next(first)) == 20
        older.send(numbered(task, range(30, 40)))
        older.flush(10)
        with newer.recv([task], timeout=10) as second:
            taken = next(second)
            first_group = taken.groups[0]
            assert (first_group.source, len(first_group), first_group.redelivered) == (4, 20, True)
            got = messages_of(taken)
            if len(got) < 30:
                got += collect(second, 30 - len(got))
            assert [int(payload) for _, payload in got] == list(range(10, 40))
            eventually(lambda: _superseded(first), 10)


@pytest.mark.slow
def test_an_older_subscriber_is_always_told(pair: Pair) -> None:
    """Though it acknowledges at that very moment: else it would come again, and take the task back."""
    with client_of(pair.near.address) as older, client_of(pair.near.address) as newer:
        for _ in range(100):
            task = pair.near_task()
            older.send(numbered(task, range(20)))
            with older.recv([task], timeout=10) as first:
                next(first)
                with newer.recv([task], timeout=10) as second:
                    collect(second, 20 - acknowledged(pair.near, task))
                    eventually(lambda first=first: _superseded(first), 10)  # type: ignore[misc]


def test_older_subscriber_does_not_come_back(pair: Pair) -> None:
    """One whose stream had broken when the newer came is told so in its turn, and takes nothing back."""
    task = pair.near_task()
    with (
        FaultProxy(pair.near.address) as proxy,
        client_of(proxy.address) as older,
        client_of(pair.near.address) as newer,
    ):
        first = older.recv([task], timeout=20)
        newer.send(numbered(task, range(10)))
        assert numbers(collect(first, 10)) == list(range(10))
        eventually(lambda: acknowledged(pair.near, task) == 10)
        proxy.black_hole()
        with newer.recv([task], timeout=20) as second:
            newer.send(numbered(task, range(10, 20)))
            assert numbers(collect(second, 10)) == list(range(10, 20))
            proxy.cut()
            proxy.resume()
            with pytest.raises(SupersededError, match=f"has taken task {task} over"):
                next(first)
            newer.send(numbered(task, range(20, 30)))
            assert numbers(collect(second, 10)) == list(range(20, 30))


def _superseded(subscription: Subscription) -> bool:
    """Ask a subscription for more; what had arrived before it was told may still come."""
    try:
        next(subscription)
    except SupersededError:
        return True
    return False


def test_closing_leaves_the_rest_to_the_next_subscriber(pair: Pair) -> None:
    """What a closed subscription had not acknowledged comes to the next one; what it had does not."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(5)))
        with client.recv([task], timeout=10) as first:
            collect(first, 5)
            client.send(numbered(task, range(5, 9)))
            next(first)
        with client.recv([task], timeout=10) as second:
            assert numbers(collect(second, 4)) == [5, 6, 7, 8]


def test_dropped_subscription_frees_its_task(pair: Pair) -> None:
    """A loop that breaks off and forgets its subscription does not keep the task from others."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(3)))
        for _ in client.recv([task], timeout=10):
            break
        assert numbers(collect(client.recv([task], timeout=10), 3)) == [0, 1, 2]


def test_newer_incarnation_fences_the_older(pair: Pair) -> None:
    """A second client with the same id and a newer incarnation takes over; the older sends no more."""
    task = pair.near_task()
    older = client_of(pair.near.address, client_id="spout-1", incarnation=1)
    older.send(task, b"0")
    older.flush(10)
    with client_of(pair.near.address, client_id="spout-1", incarnation=2) as newer:
        newer.send(task, b"1")
        newer.flush(10)
        with pytest.raises(StaleIncarnationError, match="incarnation 2 has taken over"):
            eventually(lambda: older.send(task, b"2"), 10)
        older.close(0)
        assert older.ledger().balanced


def test_unpickled_client_works_by_itself(pair: Pair) -> None:
    """A copy that went through pickle is a sender and receiver of its own; the original goes on."""
    task = pair.near_task()
    with client_of(pair.near.address, source=3, max_pending_messages=50) as client:
        client.send(task, b"0")
        client.flush(10)
        with pickle.loads(pickle.dumps(client)) as copy:  # noqa: S301 - our own bytes
            assert (copy.address, copy.topology, copy.source) == (client.address, TOPOLOGY, 3)
            copy.send(task, b"1")
            copy.flush(10)
            assert numbers(collect(copy.recv([task], timeout=10), 2), 3) == [0, 1]
        client.send(task, b"2")
        client.flush(10)
        assert client.ledger().acknowledged == 2


def test_client_works_in_a_spawned_process(pair: Pair) -> None:
    """A client that is passed to a spawned process sends and receives there."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(task, b"0")
        client.flush(10)
        process = multiprocessing.get_context("spawn").Process(target=send_and_receive, args=(client, task))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        process.close()


def _run_script(script: str, **arguments: object) -> dict[str, object]:
    """Run a script in a process of its own, with its arguments as a dictionary; it prints JSON."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_ENABLE_FORK")}
    support = arguments.pop("fork_support", None)
    if support is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = str(support)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, json.dumps(arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


_FORK = """
import json, os, sys, threading
from tuplewire import Client, TaskMessageBatch
given = json.loads(sys.argv[1])
client = Client(given["address"], topology="test", source=1)
mine, childs = given["tasks"]
subscription = client.recv([mine], timeout=10)

def send(first, last):
    for number in range(first, last):
        client.send(mine, b"%d" % number)

send(0, 100)
got = [next(subscription)]
sending = threading.Thread(target=send, args=(100, 5000))
sending.start()
codes = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert client.ledger().accepted == 0, "the parent's count"
            client.send(childs, b"child")
            client.flush(10)
            with client.recv([childs], timeout=10) as inbox:
                assert next(inbox)[-1].message == b"child"
            client.close()
            client.close()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sending.join()
client.flush(20)
while sum(map(len, got)) < 5000:
    got.append(next(subscription))
numbers = [int(each.message) for batch in got for each in batch]
ledger = client.ledger()
client.close()
print(json.dumps({
    "codes": codes, "in_order": numbers == list(range(5000)), "received": len(numbers),
    "acknowledged": ledger.acknowledged, "balanced": ledger.balanced,
}))
"""


@pytest.mark.parametrize("support", [None, 0, 1])
def test_fork_with_open_streams(pair: Pair, support: int | None) -> None:
    """The parent goes on without loss while another thread sends; each child works by itself."""
    tasks = [pair.near_task(), pair.near_task()]
    found = _run_script(_FORK, address=pair.near.address, tasks=tasks, fork_support=support)
    assert found == {
        "codes": [0, 0, 0],
        "in_order": True,
        "received": 5000,
        "acknowledged": 5000,
        "balanced": True,
    }


_FORK_DURING_CLOSE = """
import json, os, sys, threading
from tuplewire import Client, TaskMessageBatch
given = json.loads(sys.argv[1])
client = Client(given["address"], topology="test")
batch = TaskMessageBatch.from_columns([given["task"]] * 1000, [b"x"] * 1000)
for _ in range(40):
    client.send(batch, timeout=5)  # more than the worker's queue holds
closing = threading.Thread(target=client.close, args=(20,))
closing.start()
while "closed" not in repr(client):
    pass
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
consumer = Client(given["address"], topology="test")
got = 0
for batch in consumer.recv([given["task"]], timeout=10):
    got += len(batch)
    if got == 40000:
        break
closing.join()
consumer.close()
print(json.dumps({"received": got, "acknowledged": client.ledger().acknowledged}))
"""


def test_fork_while_another_thread_closes(pair: Pair) -> None:
    """A close() that waits for acknowledgements goes on to get them after a fork."""
    found = _run_script(_FORK_DURING_CLOSE, address=pair.near.address, task=pair.near_task(), fork_support=0)
    assert found == {"received": 40_000, "acknowledged": 40_000}


_FORK_WITH_SERVER = """
import json, os, sys, time
from tuplewire import Client
from tuplewire.errors import ClosedError
from tuplewire_service.messaging.grpc import GrpcContext
given = json.loads(sys.argv[1])
context = GrpcContext()
context.prepare({})
server = context.bind("test", 0)
client = Client(given["address"], topology="test")
client.send(given["task"], b"0")
client.flush(10)
child = os.fork()
if child == 0:
    code = 1
    try:
        started = time.monotonic()
        client.send(given["task"], b"lost")
    except ClosedError as error:
        code = 0 if "spawn" in str(error) and time.monotonic() - started < 2 else 2
    finally:
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
client.send(given["task"], b"1")
client.flush(10)
client.close()
context.term()
print(json.dumps({"code": code}))
"""


def test_child_of_a_process_with_a_server_is_told(pair: Pair) -> None:
    """A child forked beside a bound server, which gRPC does not survive, gets ClosedError and no hang."""
    # With its fork support on, gRPC itself now and then crashes a child that is forked beside a server.
    found = _run_script(_FORK_WITH_SERVER, address=pair.near.address, task=pair.near_task(), fork_support=0)
    assert found == {"code": 0}


def test_close_is_idempotent_and_final(pair: Pair) -> None:
    """A second close does nothing; after it send and recv raise ClosedError; the balance can be read."""
    client = client_of(pair.near.address)
    subscription = client.recv([pair.near_task()], timeout=10)
    client.send(pair.near_task(), b"x")
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.send(0, b"x")
    with pytest.raises(ClosedError):
        client.try_send(0, b"x")
    with pytest.raises(ClosedError):
        client.recv([0])
    with pytest.raises(ClosedError):
        next(subscription)
    assert (client.ledger().accepted, client.ledger().acknowledged) == (1, 1)


def test_unused_client_closes() -> None:
    """A client that never sent anything needs no worker."""
    with client_of("127.0.0.1:1") as client:
        assert client.ledger().accepted == 0
    with pytest.raises(ClosedError):
        client.send(0, b"x")


def test_context_manager_flushes(pair: Pair) -> None:
    """Leaving the block means that everything has arrived."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(1000)))
    assert queued(pair.near, task) == 1000


def test_context_manager_shows_the_error_of_its_block(pair: Pair) -> None:
    """An exception within the block is what comes out, not one of the flush."""
    client = client_of(pair.near.address)
    with pytest.raises(ZeroDivisionError), client:
        client.send(999_999, b"%d" % (1 // 0))
    with pytest.raises(ClosedError):
        client.send(0, b"x")


def test_threads_share_a_client(pair: Pair) -> None:
    """Eight threads send at once through one client; each one's order holds over two hops."""
    task = pair.far_task()
    with client_of(pair.near.address) as client, client_of(pair.far.address) as consumer:

        def send(source: int) -> None:
            for start in range(0, 1000, 10):
                client.send(numbered(task, range(start, start + 10), source))

        threads = [threading.Thread(target=send, args=(source,)) for source in range(8)]
        for thread in threads:
            thread.start()
        got = collect(consumer.recv([task], timeout=20), 8000)
        for thread in threads:
            thread.join()
        client.flush(10)
        assert client.ledger().acknowledged == 8000
    for source in range(8):
        assert numbers(got, source) == list(range(1000))


def test_threads_waiting_for_room_all_get_it(pair: Pair) -> None:
    """Many threads blocked on a small bound all finish, and the bound is never passed."""
    task = pair.far_task()
    with (
        client_of(pair.near.address, max_pending_messages=20) as client,
        client_of(pair.far.address) as consumer,
    ):
        highest: list[int] = []

        def send(source: int) -> None:
            for number in range(200):
                client.send(numbered(task, [number], source))
                highest.append(client.ledger().pending)

        threads = [threading.Thread(target=send, args=(source,)) for source in range(8)]
        for thread in threads:
            thread.start()
        got = collect(consumer.recv([task], timeout=20), 1600)
        for thread in threads:
            thread.join()
    assert max(highest) <= 20
    assert all(numbers(got, source) == list(range(200)) for source in range(8))


def test_closing_wakes_a_blocked_sender(nobody: str) -> None:
    """A thread that waits for room gets ClosedError when another closes the client."""
    client = client_of(nobody, max_pending_messages=1)
    client.send(0, b"x")
    seen: list[BaseException] = []

    def send() -> None:
        try:
            client.send(0, b"y")
        except ClosedError as error:
            seen.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    client.close(0.1)
    thread.join(10)
    assert len(seen) == 1


def test_processed_mode_waits_for_the_consumer(pair: Pair) -> None:
    """With ack_mode="processed" flush returns only once the consumer has acknowledged."""
    task = pair.near_task()
    with (
        client_of(pair.near.address, ack_mode="processed") as sender,
        client_of(pair.near.address) as consumer,
        consumer.recv([task], timeout=10) as subscription,
    ):
        sender.send(numbered(task, range(10)))
        assert len(next(subscription)) == 10
        with pytest.raises(FlushTimeoutError, match="10 messages"):
            sender.flush(0.5)
        subscription.acknowledge()
        sender.flush(10)
