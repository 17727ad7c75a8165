"""A draining worker forwards or counts its messages, and exits in time, also while tasks move."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.moving_workers import TASK, Workers
from helpers.ports import free_port
from helpers.topology import (
    TOPOLOGY,
    assign,
    assignment_file,
    collect,
    drained_ledger,
    has_ended,
    ledger,
    messages_of,
    metric,
    numbered,
    numbers,
    one_worker,
    queued,
    ready,
    status,
    workers_with,
)
from helpers.traffic import Feeder, Reader, client_of, deliver, take
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import FlushTimeoutError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy


def test_drain_under_traffic_loses_nothing(tmp_path: Path) -> None:
    """A worker that drains under traffic forwards all messages that it acknowledged, and exits with 0."""
    with workers_with([0], [1], directory=tmp_path) as workers:
        near, far = workers.endpoints
        with (
            client_of(near.address) as sender,
            client_of(far.address) as consumer,
            Reader(consumer.recv([1], timeout=0.2)) as reader,
        ):
            with Feeder(sender, 1) as feeder:
                feeder.goes_on(500)
                os.kill(near.process_id, signal.SIGTERM)
                eventually(lambda: has_ended(near), 15, "drained")
                feeder.goes_on()
            taken = sender.ledger().acknowledged
            reader.has(taken)
            sender.close(0)
            assert numbers(reader.got) == list(range(taken))
            assert sender.ledger().accepted == taken + sender.ledger().dropped["closed"]
        assert drained_ledger(workers.log_path(0)) == LedgerSnapshot(taken, taken, {}, 0)
        assert workers.stop() == [0, 0]


def test_drain_counts_what_a_peer_never_took(tmp_path: Path) -> None:
    """Messages for a dead peer and for a consumer count as dropped in the log and in the last scrape."""
    with workers_with([1], [2], directory=tmp_path, flags=["--drain-seconds=1"]) as workers:
        near, far = workers.endpoints
        os.kill(far.process_id, signal.SIGKILL)
        with client_of(near.address) as sender:
            sender.send(numbered(2, range(70)))
            deliver(sender, numbered(1, range(30)))
        assert ledger(near).pending == 100
        os.kill(near.process_id, signal.SIGTERM)
        scraped = []
        with contextlib.suppress(OSError):  # until the admin port is closed
            while True:
                scraped.append(metric(near, 'tuplewire_dropped_messages_total{reason="shutdown"}'))
        assert scraped[-1] == 100
        assert drained_ledger(workers.log_path(0)) == LedgerSnapshot(100, 0, {"shutdown": 100}, 0)
        eventually(lambda: has_ended(near), 10, "ended")
        assert workers.stop() == [1, -signal.SIGKILL]


@pytest.mark.parametrize(("consumed", "code", "last"), [(4, 0, "0 messages"), (2, 1, "2 messages")])
def test_the_command_waits_for_the_end_of_a_drain(consumed: int, code: int, last: str) -> None:
    """`drain --wait` names its deadline and tasks without a consumer, and fails if messages are dropped."""
    with workers_with([1], topology="default", drain_seconds=5) as workers:
        (worker,) = workers.endpoints
        with Client(worker.address) as client:
            deliver(client, numbered(1, range(4)))
            with client.recv([1], timeout=20) as subscription:
                assert len(list(subscription.messages(consumed))) == consumed
        if code:  # the deadline of the first drain stays
            run_command("drain", "--address", worker.address)
        ended = run_command("drain", "--address", worker.address, "--wait", "--deadline=60")
        if code:
            waits = rf"waiting for {worker.address} to drain \(at most [0-4]\S* s\)\n2 messages to task 1 "
            assert re.match(f"{waits}without a consumer, the oldest for [0-9.]+ s; undelivered", ended.stderr)
            assert ended.stderr.endswith(" s, unless a membership moves the task\n")
        said = f"{worker.address} has drained, and dropped {last}\n"
        assert (ended.returncode, ended.stdout) == (code, said)
        eventually(lambda: has_ended(worker), 10, "ended")
        assert workers.stop() == [code]


@contextlib.contextmanager
def _nobody(count: int) -> Iterator[dict[tuple[str, str], list[int]]]:
    """Yield workers with one task each, from 1 on, at addresses that are bound but accept no connections."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - every address of 127.0.0.0/8
        listener.listen(1)
        port = listener.getsockname()[1]
        hosts = {task: f"127.1.{task // 250}.{task % 250 + 1}" for task in range(1, count + 1)}
        yield {(f"gone-{task}", f"{host}:{port}"): [task] for task, host in hosts.items()}


@contextlib.contextmanager
def _sending_to_nobody(directory: Path, peers: int, *flags: str) -> Iterator[tuple[WorkerProcesses, Client]]:
    """Run a worker that holds a message for each of `peers` unreachable workers."""
    with _nobody(peers) as gone:
        file = assignment_file(directory, 1, {("w", "127.0.0.1:1"): [0], **gone})
        flags = ("--worker-id=w", f"--assignment-file={file}", *flags)
        with (
            WorkerProcesses(1, TOPOLOGY, directory=directory, flags=flags) as workers,
            client_of(workers.endpoints[0].address) as client,
        ):
            for task in range(1, peers + 1):
                client.send(numbered(task, [task]))
            client.flush(10)
            yield workers, client


@pytest.mark.parametrize(
    ("peers", "assigned", "deadline"), [(60, False, 5), (60, False, 1), (256, True, 1)], ids=str
)
def test_a_drain_ends_within_its_deadline(
    tmp_path: Path, peers: int, *, assigned: bool, deadline: int
) -> None:
    """A drain ends in time and logs its ledger. Without the peers, their messages are of unknown tasks."""
    with _sending_to_nobody(tmp_path, peers, f"--drain-seconds={deadline}") as (workers, _):
        if not assigned:
            assign(workers.endpoints[0], 2, {("w", workers.endpoints[0].address): [0]})
        began = time.monotonic()
        assert workers.stop() == [assigned], workers.log_path(0).read_text()
        assert time.monotonic() - began < deadline + 4  # the watchdog would end it then
        ledger = drained_ledger(workers.log_path(0))
        assert ledger.accepted == sum(ledger.dropped.values()) == peers


def begin_drain(worker: Endpoint) -> None:
    """Start to drain a worker, and wait until it reports that."""
    os.kill(worker.process_id, signal.SIGTERM)
    eventually(lambda: status(worker).state == 3, 20, "draining")


@contextlib.contextmanager
def draining_pair(directory: Path, *flags: str) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Run worker a with task 1 and these flags, and worker b with task 2, which drains for a minute."""
    with (
        one_worker("a", *flags, directory=directory) as a,
        one_worker("b", "--drain-seconds=60", directory=directory) as b,
    ):
        assign((a, b), 1, {a: [1], b: [2]})
        ready(a, b)
        yield a, b


def test_a_first_worker_does_not_go_while_a_task_moves(tmp_path: Path) -> None:
    """A draining entry worker waits for the end of a move, because its successor does not know the move."""
    with ExitStack() as first_life, ExitStack() as rest:
        a, b = (rest.enter_context(one_worker(name, directory=tmp_path)) for name in "ab")
        f = first_life.enter_context(one_worker("f", "--drain-seconds=60", directory=tmp_path))
        before = {("a", a.address): [1], ("b", b.address): [], ("f", f.address): list[int]()}
        after = {("a", a.address): [], ("b", b.address): [1], ("f", f.address): list[int]()}
        assign((a, b, f), 1, before)
        ready(a, b, f)
        sender, at_a, at_b = (rest.enter_context(client_of(each.address)) for each in (f, a, b))
        deliver(sender, numbered(1, range(10)))
        slow = rest.enter_context(at_a.recv([1], timeout=30))
        assert numbers(messages_of(next(slow))) == list(range(10))  # the consumer processes these
        deliver(sender, numbered(1, range(10, 20)))
        assign((f, b, a), 2, after)
        begin_drain(f)
        eventually(
            lambda: metric(f, 'tuplewire_refused_streams_total{code="DRAINING"}') > 0, 20, "nothing taken"
        )
        sender.send(numbered(1, range(20, 30)))
        with pytest.raises(FlushTimeoutError):
            sender.flush(1)
        assert not has_ended(f)
        slow.acknowledge()
        assert numbers(collect(slow, 10)) == list(range(10, 20))  # these were already in flight
        eventually(lambda: has_ended(f), 50, "drained")
        first_life.close()
        port = int(f.address.rpartition(":")[2])
        file = assignment_file(tmp_path, 2, after)
        with (
            one_worker("f", f"--assignment-file={file}", directory=tmp_path, port=port),
            at_b.recv([1], timeout=30) as subscription,
        ):
            assert numbers(collect(subscription, 10)) == list(range(20, 30))
            sender.flush(30)


def test_what_was_passed_on_does_not_hold_a_drain(tmp_path: Path) -> None:
    """A drain ends once its messages are forwarded, even without a consumer; each message arrives once."""
    with ExitStack() as stack:
        workers = Workers(tmp_path, stack, drain_seconds=600)
        workers.put("a")
        sent = 0

        def send(name: str) -> None:
            nonlocal sent
            with client_of(workers.running[name].address, source=9) as client:
                deliver(client, numbered(TASK, range(sent, sent + 10)))
            sent += 10

        for name, following in [("a", "b"), ("b", "c"), ("c", "a")]:
            send(following)  # forwarded to the owner, and returned with the task
            workers.put(following)
            send(following)  # waits until the old owner has forwarded the others, or has exited
            workers.drain(name)
            endpoint = workers.running[following]
            eventually(lambda at=endpoint: queued(at, TASK) == sent, 20)  # type: ignore[misc]
            workers.start(name)
            workers.put(following)
        owner = workers.running["a"]
        with client_of(owner.address) as client, client.recv([TASK], timeout=20) as batches:
            groups = [*next(batches).groups]
            while sum(map(len, groups)) < sent:
                groups += next(batches).groups
            assert [int(each) for group in groups for each in group.payloads()] == list(range(sent))
            assert not any(group.redelivered for group in groups)
            batches.acknowledge()
        for each in workers.running.values():
            with ControlClient(each.address) as control:
                control.drain(5)


@pytest.mark.parametrize(
    ("transport", "consumed", "drain_seconds"), [("zmq", 10, 1), ("grpc", 0, 0.01), ("zmq", 0, 0.01)]
)
def test_a_drained_worker_that_is_still_listed_blocks_nothing(
    tmp_path: Path, transport: str, consumed: int, drain_seconds: float
) -> None:
    """Messages that a drained worker had not accepted go to the new owner; a goodbye needs almost no time."""
    more = f"--drain-seconds={drain_seconds}"
    flags = (f"--transport={transport}", "--receive-queue-messages=64", more)
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(one_worker(name, *flags, directory=tmp_path)) for name in "abc")
        assign((a, b, c), 1, {a: [], b: [1], c: []})
        ready(a, b, c)
        stack.enter_context(client_of(a.address)).send(numbered(1, range(2000)))
        eventually(lambda: queued(b, 1) == 64)
        if consumed:
            with client_of(b.address) as reader, reader.recv([1], timeout=20) as batches:
                assert numbers(messages_of(next(batches)))[0] == 0
        os.kill(b.process_id, signal.SIGTERM)
        eventually(lambda: has_ended(b), 20, "drained")
        assign((a, c), 2, {a: [], b: [], c: [1]})
        with client_of(c.address) as reader, reader.recv([1], timeout=20) as batches:
            got: list[int] = []
            while not got or got[-1] < 1999:
                got += numbers(messages_of(next(batches)))
        assert got == list(range(got[0], 2000))
        eventually(lambda: ledger(a).pending == 0)


def test_a_draining_worker_follows_its_assignment_file(tmp_path: Path) -> None:
    """If the assignment file gives a task to another worker, a draining worker hands the task off."""
    with ExitStack() as stack:
        port = free_port()
        address = f"127.0.0.1:{port}"
        b = stack.enter_context(one_worker("b", directory=tmp_path))
        before = {("a", address): [1], ("b", b.address): [2]}
        file = assignment_file(tmp_path, 1, before)
        flags = ("--drain-seconds=60", f"--assignment-file={file}")
        a = stack.enter_context(one_worker("a", *flags, directory=tmp_path, port=port))
        assign(b, 1, before)
        ready(a, b)
        with client_of(a.address) as sender:
            deliver(sender, numbered(1, range(200)))
        begin_drain(a)
        after = {("a", address): [], ("b", b.address): [1, 2]}
        assignment_file(tmp_path, 2, after)
        assign(b, 2, after)
        assert numbers(take(b, 1, 200)) == list(range(200))
        eventually(lambda: has_ended(a), 50, "drained")


def test_the_new_owner_of_a_task_takes_what_it_waits_for(tmp_path: Path) -> None:
    """A draining new owner still accepts the old owner's messages, and puts them before later messages."""
    with draining_pair(tmp_path) as (a, b):
        moved = {a: [], b: [1, 2]}
        with client_of(b.address) as sender, client_of(b.address) as consumer:
            deliver(sender, numbered(1, range(10)))
            assert queued(a, 1) == 10
            assign(b, 2, moved)
            deliver(sender, numbered(1, range(10, 20)))
            with consumer.recv([1], timeout=30) as subscription:
                begin_drain(b)
                assign(a, 2, moved)
                assert numbers(collect(subscription, 20)) == list(range(20))
                eventually(lambda: has_ended(b), 50, "drained")
        eventually(lambda: ledger(a).pending == 0)


def test_two_workers_that_drain_at_once_take_what_the_other_still_has(tmp_path: Path) -> None:
    """Two draining workers with messages for each other's tasks deliver all of them and exit."""
    with ExitStack() as stack:
        a, b = stack.enter_context(draining_pair(tmp_path, "--drain-seconds=60"))
        clients = {each: stack.enter_context(client_of(each.address)) for each in (a, b)}
        os.kill(b.process_id, signal.SIGSTOP)
        deliver(clients[a], numbered(2, range(1000)))
        os.kill(b.process_id, signal.SIGCONT)
        deliver(clients[b], numbered(1, range(1000)))
        readers = [
            stack.enter_context(Reader(clients[each].recv([task], timeout=0.2)))
            for each, task in ((a, 1), (b, 2))
        ]
        for each in (a, b):
            os.kill(each.process_id, signal.SIGTERM)
        for reader in readers:
            reader.has(1000)
            assert numbers(reader.got) == list(range(1000))
        for each in (a, b):
            eventually(lambda each=each: has_ended(each), 50, "drained")  # type: ignore[misc]


def test_a_task_that_moves_to_a_draining_worker_arrives(tmp_path: Path) -> None:
    """If a task moves to a draining worker, the messages that this worker had sent for it return to it."""
    with draining_pair(tmp_path) as (a, b):
        with client_of(a.address) as near, client_of(b.address) as sender, client_of(b.address) as consumer:
            near.send(numbered(2, range(10)))  # keeps a's stream to b open during the drain
            near.flush(30)
            eventually(lambda: queued(b, 2) == 10)
            deliver(sender, numbered(1, range(10)))
            os.kill(b.process_id, signal.SIGTERM)
            log = tmp_path / "a-0" / "worker-0.log"
            eventually(lambda: "peer.draining" in log.read_text(), 5, "b takes nothing new")
            assign((a, b), 2, {a: [], b: [1, 2]})
            with consumer.recv([1], timeout=30) as subscription:
                assert numbers(collect(subscription, 10)) == list(range(10))
            with consumer.recv([2], timeout=30) as subscription:
                assert numbers(collect(subscription, 10)) == list(range(10))
                eventually(lambda: has_ended(b), 50, "drained")
        eventually(lambda: ledger(a).pending == 0)


def test_a_draining_worker_may_leave_the_assignment(tmp_path: Path) -> None:
    """The next assignment may leave a draining worker out. Its messages move, and it logs no mismatch."""
    with draining_pair(tmp_path) as (a, b), client_of(b.address) as sender:
        deliver(sender, numbered(2, [1]))
        begin_drain(b)
        assign((a, b), 2, {a: [1, 2]})
        eventually(lambda: queued(a, 2) == 1, 20)
        assert "id_mismatch" not in (tmp_path / "b-0" / "worker-0.log").read_text()


def test_what_a_draining_worker_waits_for_may_come_around_by_itself(tmp_path: Path) -> None:
    """A draining worker accepts its own messages back, even from a worker that it would otherwise refuse."""
    with ExitStack() as stack:
        a, c = (stack.enter_context(one_worker(name, directory=tmp_path)) for name in "ac")
        b = stack.enter_context(one_worker("b", "--drain-seconds=60", directory=tmp_path))

        def place(version: int, owner: Endpoint, *told: Endpoint) -> None:
            tasks = {(each.worker_id, each.address): [1] if each is owner else [] for each in (a, b, c)}
            assign(told, version, tasks)

        place(1, a, a, b, c)
        ready(a, b, c)
        stack.enter_context(client_of(b.address, ack_mode="processed")).send(numbered(1, range(10)))
        eventually(lambda: queued(a, 1) == 10)
        begin_drain(b)
        stack.enter_context(client_of(b.address)).send([])  # connects
        log = tmp_path / "b-0" / "worker-0.log"
        eventually(lambda: "stream.refused" in log.read_text(), 20, "b takes nothing new")
        place(3, b, c)
        place(2, c, a)
        eventually(lambda: ledger(c).accepted == 10, 20, "c has them")
        place(4, a, a, b, c)
        with stack.enter_context(client_of(a.address)).recv([1], timeout=20) as subscription:
            assert numbers(collect(subscription, 10)) == list(range(10))
            eventually(lambda: has_ended(b), 50, "drained")


def test_what_a_draining_worker_takes_at_its_end_is_not_dropped(tmp_path: Path) -> None:
    """If two workers drain, the messages that one does not accept before its exit go to its successor."""
    with ExitStack() as first_life, ExitStack() as stack:
        a = stack.enter_context(one_worker("a", "--drain-seconds=60", directory=tmp_path))
        small = ("--drain-seconds=60", "--receive-queue-messages=64")
        b = first_life.enter_context(one_worker("b", *small, directory=tmp_path))
        proxy = stack.enter_context(FaultProxy(b.address))
        tasks = {("a", a.address): [1], ("b", proxy.address): [2]}
        assign((a, b), 1, tasks)
        ready(a, b)
        deliver(stack.enter_context(client_of(a.address)), numbered(2, range(5000)))
        eventually(lambda: queued(b, 2) == 64)
        begin_drain(a)
        log = tmp_path / "a-0" / "worker-0.log"
        before = log.read_text().count("connection.ready")
        proxy.cut()
        eventually(lambda: log.read_text().count("connection.ready") > before, 10, "a comes again")
        begin_drain(b)
        reader = stack.enter_context(client_of(b.address))
        with Reader(reader.recv([2], timeout=0.2)) as first:
            eventually(lambda: has_ended(b), 50, "drained")
        first_life.close()
        port = int(b.address.rpartition(":")[2])
        file = assignment_file(tmp_path, 1, tasks)
        left = 5000 - len(first.got)
        with (
            one_worker("b", *small, f"--assignment-file={file}", directory=tmp_path, port=port),
            reader.recv([2], timeout=30) as rest,
        ):
            assert numbers(first.got + collect(rest, left)) == list(range(5000))
            eventually(lambda: has_ended(a), 15, "drained")
