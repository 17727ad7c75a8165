"""Workers that drain while a task moves, or while a peer drains, do not lose or reorder messages."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from helpers.topology import (
    assign,
    assignment_file,
    collect,
    has_ended,
    ledger,
    numbered,
    numbers,
    one_worker,
    queued,
    ready,
    status,
)
from helpers.traffic import Reader, client_of, deliver

from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy


def begin_drain(worker: Endpoint) -> None:
    """Start to drain a worker, and wait until it reports that."""
    os.kill(worker.process_id, signal.SIGTERM)
    eventually(lambda: status(worker).state == 3, 20, "draining")


def test_the_new_owner_of_a_task_takes_what_it_waits_for(tmp_path: Path) -> None:
    """A draining new owner still accepts the old owner's messages, and puts them before later messages."""
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", "--drain-seconds=60", directory=tmp_path) as b,
    ):
        assign((a, b), 1, {("a", a.address): [1], ("b", b.address): [2]})
        ready(a, b)
        moved = {("a", a.address): [], ("b", b.address): [1, 2]}
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
        a, b = (
            stack.enter_context(one_worker(name, "--drain-seconds=60", directory=tmp_path)) for name in "ab"
        )
        assign((a, b), 1, {("a", a.address): [1], ("b", b.address): [2]})
        ready(a, b)
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
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", "--drain-seconds=60", directory=tmp_path) as b,
    ):
        assign((a, b), 1, {("a", a.address): [1], ("b", b.address): [2]})
        ready(a, b)
        with client_of(a.address) as near, client_of(b.address) as sender, client_of(b.address) as consumer:
            near.send(numbered(2, range(10)))  # keeps a's stream to b open during the drain
            near.flush(30)
            eventually(lambda: queued(b, 2) == 10)
            deliver(sender, numbered(1, range(10)))
            os.kill(b.process_id, signal.SIGTERM)
            log = tmp_path / "a-0" / "worker-0.log"
            eventually(lambda: "peer.draining" in log.read_text(), 5, "b takes nothing new")
            assign((a, b), 2, {("a", a.address): [], ("b", b.address): [1, 2]})
            with consumer.recv([1], timeout=30) as subscription:
                assert numbers(collect(subscription, 10)) == list(range(10))
            with consumer.recv([2], timeout=30) as subscription:
                assert numbers(collect(subscription, 10)) == list(range(10))
                eventually(lambda: has_ended(b), 50, "drained")
        eventually(lambda: ledger(a).pending == 0)


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
        sender = stack.enter_context(client_of(b.address, ack_mode="processed"))
        sender.send(numbered(1, range(10)))
        eventually(lambda: queued(a, 1) == 10)
        begin_drain(b)
        stack.enter_context(client_of(b.address)).send([])  # connects
        log = tmp_path / "b-0" / "worker-0.log"
        eventually(lambda: "stream.refused" in log.read_text(), 20, "b takes nothing new")
        place(3, b, c)
        place(2, c, a)
        eventually(lambda: ledger(c).accepted == 10, 20, "c has them")
        place(4, a, a, b, c)
        consumer = stack.enter_context(client_of(a.address))
        with consumer.recv([1], timeout=20) as subscription:
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
        sender = stack.enter_context(client_of(a.address))
        deliver(sender, numbered(2, range(5000)))
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
