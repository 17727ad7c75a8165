"""Second copies are marked as redelivered, even if the first is still queued when its entry worker dies."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from helpers.topology import TOPOLOGY, assign, collect, metric, numbered, one_worker, queued
from helpers.traffic import client_of, deliver

from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

TASK = 1
MESSAGES = 100


def kept(subscription: Subscription, count: int) -> tuple[list[int], list[int]]:
    """Take `count` messages; return the numbers of the unmarked and of the marked messages."""
    plain: list[int] = []
    marked: list[int] = []
    while len(plain) + len(marked) < count:
        for group in next(subscription).groups:
            (marked if group.redelivered else plain).extend(map(int, group.payloads()))
    return plain, marked


def kill(endpoint: Endpoint) -> None:
    """Kill a worker without a drain."""
    os.kill(endpoint.process_id, signal.SIGKILL)


def test_copies_that_were_overtaken_are_marked(tmp_path: Path) -> None:
    """If resent copies are consumed first, after a move of the task, the first copies are also marked."""
    with ExitStack() as stack:
        entry = stack.enter_context(one_worker("entry", directory=tmp_path))
        port = int(entry.address.rpartition(":")[2])
        first = stack.enter_context(one_worker("first", directory=tmp_path))
        second = stack.enter_context(one_worker("second", directory=tmp_path))
        everybody = {each: (each.worker_id, each.address) for each in (entry, first, second)}
        before = {everybody[entry]: [50], everybody[first]: [TASK], everybody[second]: [60]}
        after = {everybody[entry]: [50], everybody[first]: [70], everybody[second]: [TASK, 60]}
        assign(everybody, 1, before)
        sender = stack.enter_context(client_of(entry.address, ack_mode="processed"))
        sender.send(numbered(TASK, range(MESSAGES)))
        eventually(lambda: queued(first, TASK) == MESSAGES)
        kill(entry)
        again = stack.enter_context(one_worker("entry", directory=tmp_path, port=port))
        assign((again, second), 2, after)
        consumer = stack.enter_context(Client(second.address, topology=TOPOLOGY))
        subscription = stack.enter_context(consumer.recv([TASK], timeout=60))
        assert kept(subscription, MESSAGES) == ([], list(range(MESSAGES)))
        subscription.acknowledge()
        sender.flush(60)
        assign(first, 2, after)
        assert kept(subscription, MESSAGES) == ([], list(range(MESSAGES)))


def test_what_waits_where_its_entry_worker_died_is_marked(tmp_path: Path) -> None:
    """The owner marks the messages, because a new owner that it does not know may have delivered copies."""
    with ExitStack() as stack:
        entry = stack.enter_context(one_worker("entry", directory=tmp_path))
        owner = stack.enter_context(one_worker("owner", directory=tmp_path))
        tasks = {(entry.worker_id, entry.address): [50], (owner.worker_id, owner.address): [TASK]}
        assign((entry, owner), 1, tasks)
        sender = stack.enter_context(Client(entry.address, topology=TOPOLOGY))
        deliver(sender, numbered(TASK, range(MESSAGES)))
        eventually(lambda: queued(owner, TASK) == MESSAGES)
        kill(entry)
        consumer = stack.enter_context(Client(owner.address, topology=TOPOLOGY))
        eventually(lambda: metric(owner, 'tuplewire_sessions{state="resumable"}') == 1)
        with consumer.recv([TASK], timeout=60) as subscription:
            assert kept(subscription, MESSAGES) == ([], list(range(MESSAGES)))


def test_what_waits_where_its_entry_worker_has_drained_is_not(tmp_path: Path) -> None:
    """A worker that exits cleanly leaves no second copies, so its messages are not marked."""
    with ExitStack() as stack:
        owner = stack.enter_context(one_worker("owner", directory=tmp_path))
        with one_worker("entry", directory=tmp_path) as entry:
            tasks = {(entry.worker_id, entry.address): [50], (owner.worker_id, owner.address): [TASK]}
            assign((entry, owner), 1, tasks)
            with Client(entry.address, topology=TOPOLOGY) as sender:
                deliver(sender, numbered(TASK, range(MESSAGES)))
            eventually(lambda: queued(owner, TASK) == MESSAGES)
        consumer = stack.enter_context(Client(owner.address, topology=TOPOLOGY))
        with consumer.recv([TASK], timeout=60) as subscription:
            assert len(collect(subscription, MESSAGES)) == MESSAGES
