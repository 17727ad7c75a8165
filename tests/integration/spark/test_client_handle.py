"""ClientHandle in Spark functions, including tasks that end without flushing their messages."""

from __future__ import annotations

import pickle
import sys
import threading

import pytest
from helpers.program import in_threads
from helpers.spark_calls import begin_attempt, end_attempt
from helpers.tools import output_of, ran
from helpers.topology import TOPOLOGY, Pair, acknowledged, collect, numbered, numbers, queued
from helpers.traffic import deliver, take

from tuplewire.errors import ClosedError, ConfigError, FlushTimeoutError, RefusedMessagesError
from tuplewire.spark.client_handle import ClientHandle, UnflushedMessagesError


@pytest.fixture
def handle(workers: Pair) -> ClientHandle:
    """Return a handle of the worker that has the task."""
    return ClientHandle(workers.near.address, topology=TOPOLOGY)


def test_leaving_waits_and_the_connection_stays(workers: Pair, task: int) -> None:
    """Leaving a block flushes its messages; the next block uses the same session."""
    handle = pickle.loads(pickle.dumps(ClientHandle(workers.near.address, topology=TOPOLOGY)))  # noqa: S301
    for count in (10, 20):
        with handle as client:
            client.send(numbered(task, range(9)))
            client.send(task, b"9")
        assert queued(workers.near, task) == count
    with handle as client, client.recv([task], timeout=20) as batches:
        assert numbers(collect(batches, 20)) == [*range(10), *range(10)]
    assert acknowledged(workers.near, task) == 20


def test_after_an_error_the_next_block_starts_clean(workers: Pair, handle: ClientHandle, task: int) -> None:
    """A refused message fails only its own block."""
    with pytest.raises(RefusedMessagesError), handle as client:
        client.send(numbered(99_999, range(1)))
    with handle as client:
        client.send(numbered(task, range(5)))
    assert queued(workers.near, task) == 5
    take(workers.near, task, 5)


def test_a_block_that_was_never_left(handle: ClientHandle, task: int) -> None:
    """A task that ends without flushing its messages fails, and its client can no longer be used."""
    begin_attempt(attempt=7)
    client = handle.__enter__()
    client.send(numbered(task, range(1)))
    with pytest.raises(UnflushedMessagesError, match="task attempt 7 has sent messages"):
        end_attempt()
    with pytest.raises(ClosedError, match="block of this client has been left"):
        client.send(numbered(task, range(1)))
    begin_attempt(attempt=8)
    with handle as client:
        client.send(numbered(task, range(1)))
    end_attempt()


def test_a_flush_of_ones_own_is_not_forgotten(handle: ClientHandle, task: int) -> None:
    """A task may end without leaving the block if it has flushed all its messages."""
    begin_attempt(attempt=7)
    client = handle.__enter__()
    deliver(client, numbered(task, range(1)))
    end_attempt()


def test_a_driver_that_forgets(handle: ClientHandle, task: int) -> None:
    """Outside of Spark tasks, the next block raises the error for unflushed messages once."""
    client = handle.__enter__()
    client.send(numbered(task, range(1)))
    del client
    with pytest.raises(UnflushedMessagesError, match="a function has sent messages"):
        handle.__enter__()
    with handle as client:
        client.send(numbered(task, range(1)))


FORGETS = """
import sys
from tuplewire import TaskMessageBatch
from tuplewire.spark import ClientHandle

client = ClientHandle(sys.argv[1], topology="test").__enter__()
client.send(TaskMessageBatch.from_columns(int(sys.argv[2]), [b"1"]))
"""


def test_a_driver_that_forgets_and_ends(workers: Pair) -> None:
    """A program reports unflushed messages on standard error when it exits."""
    program = [sys.executable, "-c", FORGETS, workers.near.address, str(workers.near_task())]
    ended = ran(*program, check=True)
    assert ended.stderr.startswith("tuplewire: a function has sent messages and ended without leaving"), ended


def test_blocks_of_two_threads(workers: Pair, handle: ClientHandle, task: int) -> None:
    """Two threads may use one handle: leaving the block of one thread does not end the block of the other."""
    entered = threading.Event()

    def first() -> None:
        with handle as client:
            client.send(numbered(task, range(1)))
            assert entered.wait(60)

    with in_threads(first) as (other,), handle as client:
        entered.set()
        other.result(60)
        client.send(numbered(task, range(1)))
    assert queued(workers.near, task) == 2


def test_an_error_in_one_block_leaves_the_other(workers: Pair, handle: ClientHandle, task: int) -> None:
    """An error in the function of one query does not close the connection of another query."""
    with handle as client:
        client.send(numbered(task, range(1)))
        with pytest.raises(ValueError, match="a defect"), handle:
            raise ValueError("a defect")
        client.send(numbered(task, range(1)))
    assert queued(workers.near, task) == 2


@pytest.mark.parametrize("errors", [(RefusedMessagesError,) * 2, (FlushTimeoutError, ClosedError)])
def test_a_failed_flush_fails_other_blocks(workers: Pair, errors: tuple[type[Exception], ...]) -> None:
    """A flush reports the refusals of all blocks, and an error drops all messages: all blocks fail."""
    address, timeout = ("127.0.0.1:1", 0.1) if ClosedError in errors else (workers.near.address, 20)
    handle = ClientHandle(address, topology=TOPOLOGY, timeout=timeout)
    client = handle.__enter__()
    client.send(numbered(99_999, range(1)))
    with pytest.raises(errors[0]), handle:
        pass
    with pytest.raises(errors[1], match=r"another block|1 message .* dropped"):
        handle.__exit__(None)


def test_missing_worker_and_wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable worker fails the block; a wrong setting fails the creation of the handle."""
    with (
        pytest.raises(FlushTimeoutError, match=r"127\.0\.0\.1:1 is not connected"),
        ClientHandle("127.0.0.1:1", timeout=0.3) as client,
    ):
        client.send(numbered(0, range(1)))
    with pytest.raises(ConfigError, match="unknown setting 'max_pending'"):
        ClientHandle("127.0.0.1:1", max_pending=1)  # type: ignore[call-arg]
    monkeypatch.delenv("TUPLEWIRE_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="TUPLEWIRE_ADDRESS"):
        ClientHandle().__enter__()


FORKS = """
import os, sys
from tuplewire import TaskMessageBatch
from tuplewire.spark import ClientHandle

handle = ClientHandle(sys.argv[1], topology="test")

def send(payload):
    with handle as client:
        client.send(TaskMessageBatch.from_columns(int(sys.argv[2]), [payload]))

send(b"1")
if child := os.fork():
    ended = os.waitpid(child, 0)[1]
    send(b"3")
    sys.exit(ended)
send(b"2")
os._exit(0)
"""


def test_forked_process_has_a_connection_of_its_own(workers: Pair, task: int) -> None:
    """A handle that was used before a fork works in both processes."""
    output_of(FORKS, workers.near.address, str(task))
    assert numbers(take(workers.near, task, 3)) == [1, 2, 3]
