"""Forks and threads of a blocking client, which belongs to its process, and its replacement."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.program import in_threads
from helpers.tools import output_of
from helpers.topology import TOPOLOGY, Pair, numbered, numbers
from helpers.traffic import client_of, deliver, take
from pyspark import cloudpickle

from tuplewire import Client, aio
from tuplewire.errors import StaleIncarnationError
from tuplewire.spark.client_handle import ClientHandle, close_clients
from tuplewire_service.testing import eventually


def test_newer_incarnation_fences_the_older(pair: Pair, task: int) -> None:
    """A client with the same id and a newer incarnation takes over; the older client can no longer send."""
    older = client_of(pair.near.address, client_id="spout-1", incarnation=0)
    deliver(older, task, b"0")
    with client_of(pair.near.address, client_id="spout-1", incarnation=1) as newer:
        deliver(newer, task, b"1")
        with pytest.raises(StaleIncarnationError, match="incarnation 1 has taken over"):
            eventually(lambda: older.send(task, b"2"), 10)
        older.close(0)
        assert older.ledger().balanced


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/app/load.py", "--fast"], "load.py"),
        (["/app/tool/__main__.py"], "tool"),
        (["/app/l\udcffd.py"], "l?d.py"),
        ([f"/app/{'x' * 300}"], "x" * 64),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_default_id_is_readable_and_unique(
    argv: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id without `client_id` has the script, the host, the process, and 8 random characters."""
    monkeypatch.setattr(sys, "argv", argv)
    ids = {Client("127.0.0.1:1")._id for _ in range(10)}
    assert len(ids) == 10
    begin = re.escape(f"{name}@{socket.gethostname()}:{os.getpid()}-")
    assert all(re.fullmatch(f"{begin}[0-9a-f]{{8}}", each) for each in ids), ids


_HEAD = """
import json, os, signal, sys, threading
from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import ClosedError, RefusedError
given = json.loads(sys.argv[1])
"""


def _run_script(script: str, support: int | None, **arguments: object) -> dict[str, object]:
    """Run a script in a separate process with its arguments as a dictionary; the script prints JSON."""
    variables = {} if support is None else {"GRPC_ENABLE_FORK_SUPPORT": str(support)}
    return dict(json.loads(output_of(_HEAD + script, json.dumps(arguments), **variables).splitlines()[-1]))


_FORK = """
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
            try:
                next(subscription)
                raise AssertionError("the parent's subscription")
            except ClosedError:
                pass
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
    """The parent loses no messages when it forks while another thread sends; each child can send, too."""
    tasks = [pair.near_task(), pair.near_task()]
    assert _run_script(_FORK, support, address=pair.near.address, tasks=tasks) == {
        "codes": [0, 0, 0],
        "in_order": True,
        "received": 5000,
        "acknowledged": 5000,
        "balanced": True,
    }


_FORK_DURING_CLOSE = """
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


_FORK_DURING_CONNECT = """
over = threading.Event()
def come_and_go():
    while not over.is_set():
        with Client(given["address"], topology="test") as client:
            client.send(given["task"], b"parent")
threads = [threading.Thread(target=come_and_go) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs
        with Client(given["address"], topology="test") as client:
            client.send(given["task"], b"child")
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
for thread in threads:
    thread.join()
print(json.dumps({"codes": codes}))
"""


_FORK_AFTER_REFUSAL = """
refused = Client(given["address"], topology="elsewhere")
try:
    refused.send(given["task"], b"unwanted")
    refused.flush(10)
except RefusedError:
    pass
child = os.fork()
if child == 0:
    with Client(given["address"], topology="test") as client:
        client.send(given["task"], b"child")
    os._exit(0)
print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}))
refused.close()
"""


_FORK_WITH_SERVER = """
from tuplewire_service.messaging.grpc import GrpcContext
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
        client.send(given["task"], b"lost")
    except ClosedError as error:
        code = 0 if "spawn" in str(error) else 2
    finally:
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
client.send(given["task"], b"1")
client.flush(10)
client.close()
context.term()
print(json.dumps({"code": code}))
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # A close() that waits for acknowledgements still receives them after a fork.
        (_FORK_DURING_CLOSE, {"received": 40_000, "acknowledged": 40_000}),
        # Clients that other threads open and close wait while the process forks; every child can send.
        (_FORK_DURING_CONNECT, {"codes": [0] * 20}),
        # A refused client that is still open does not keep gRPC running: the child can send.
        (_FORK_AFTER_REFUSAL, {"code": 0}),
        # A child forked while a gRPC server is bound, which gRPC does not support, gets ClosedError and does
        # not hang. With its fork support on, gRPC itself sometimes crashes such a child.
        (_FORK_WITH_SERVER, {"code": 0}),
    ],
    ids=["during close", "during connect", "after a refusal", "beside a server"],
)
def test_fork(pair: Pair, script: str, expected: dict[str, object]) -> None:
    """Parent and child work after a fork during a close or a connect, after a refusal, or with a server."""
    assert _run_script(script, 0, address=pair.near.address, task=pair.near_task()) == expected


def test_threads_waiting_for_room_all_get_it(pair: Pair) -> None:
    """All threads that wait for space finish, and the limit is never exceeded."""
    task = pair.far_task()
    with client_of(pair.near.address, max_pending_messages=20) as client:
        highest: list[int] = []

        def send(source: int) -> None:
            for number in range(200):
                client.send(numbered(task, [number], source))
                highest.append(client.ledger().pending)

        with in_threads(*(partial(send, source) for source in range(8))):
            got = take(pair.far, task, 1600)
    assert max(highest) <= 20
    assert all(numbers(got, source) == list(range(200)) for source in range(8))


@pytest.mark.parametrize("take", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_they_are_not_pickled_or_copied(workers: Pair, take: Callable[[Any], object]) -> None:
    """Pickling or copying one, which happens on Spark's driver, raises an error that names ClientHandle."""
    address, task = workers.near.address, workers.near_task()
    unconnected = aio.Client(address, topology=TOPOLOGY)
    with Client(address, topology=TOPOLOGY) as client, ClientHandle(address, topology=TOPOLOGY) as in_task:
        subscription = client.recv([task], timeout=20)
        for live in (client, in_task, subscription, unconnected, unconnected.recv([task])):
            name = type(live).__name__
            with pytest.raises(
                TypeError, match=rf"a {name} has a connection .* tuplewire.spark.ClientHandle"
            ):
                take(live)
        with pytest.raises(TypeError, match="ClientHandle"):
            cloudpickle.dumps(lambda row: client.send(task, row))  # type: ignore[no-untyped-call]
        subscription.close()
    close_clients()
