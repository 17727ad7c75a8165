"""Assignments that change under traffic: workers join and leave, and tasks move with their queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.topology import (
    assign,
    balances,
    collect,
    ledger,
    numbered,
    numbers,
    one_worker,
    queued,
    status,
    through,
    two_workers,
)
from helpers.traffic import Feeder, Reader, client_of, deliver

from tuplewire.errors import RefusedMessagesError
from tuplewire_service.testing import eventually


def test_new_worker_and_task_join_under_traffic(tmp_path: Path, transport: str) -> None:
    """An assignment with a new worker opens a connection to it; other traffic continues."""
    with (
        two_workers(tmp_path, transport) as (a, b, proxy),
        one_worker("c", f"--transport={transport}", directory=tmp_path) as c,
        client_of(a.address) as sender,
        client_of(b.address) as consumer,
        client_of(c.address) as newcomer,
        Reader(consumer.recv([1], timeout=0.2)) as reader,
    ):
        with Feeder(sender, 1) as feeder:
            feeder.goes_on()
            everyone = {a: [0, 5], through(proxy, b): [1], c: [2]}
            assign((a, b, c), 2, everyone)
            eventually(lambda: [peer.connected for peer in status(a).peers] == [True, True], 10)
            with client_of(a.address) as other:
                other.send(numbered(2, range(10)))
                deliver(other, numbered(5, range(10)))
            assert numbers(collect(newcomer.recv([2], timeout=10), 10)) == list(range(10))
            assert queued(a, 5) == 10
            feeder.goes_on()
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        assert [peer.reconnects for peer in status(a).peers] == [0, 0]
        assert all(ledger(each).balanced for each in (a, b, c))


def test_removed_worker_is_disconnected_under_traffic(tmp_path: Path, transport: str) -> None:
    """If an assignment removes a worker, its empty connection is closed, and its task is refused."""
    with (
        two_workers(tmp_path, transport) as (a, b, proxy),
        client_of(a.address) as sender,
        client_of(b.address) as consumer,
        Reader(consumer.recv([1], timeout=0.2)) as reader,
    ):
        with Feeder(sender, 1) as feeder:
            feeder.goes_on(300)
        sender.flush(10)
        with Feeder(sender, 0) as local:
            assign(a, 2, {a: [0]})
            eventually(lambda: proxy.connections == 0, 10, "connection closed")
            assert list(status(a).peers) == []
            local.goes_on()
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        sender.send(1, b"nobody's")
        with pytest.raises(RefusedMessagesError, match="task 1 is not in assignment version 2"):
            sender.flush(10)
        assert queued(a, 0) == local.sent
        assert ledger(a).accepted == feeder.sent + local.sent
        assert ledger(a).balanced


def test_task_that_moves_takes_its_queue_along(tmp_path: Path, transport: str) -> None:
    """When a task moves to another worker, its queued messages are forwarded there in order."""
    with two_workers(tmp_path, transport) as (a, b, proxy), client_of(a.address) as sender:
        deliver(sender, numbered(0, range(1000)))
        assign((b, a), 2, {a: [], through(proxy, b): [0, 1]})
        sender.send(numbered(0, range(1000, 1100)))
        with client_of(b.address) as consumer:
            assert numbers(collect(consumer.recv([0], timeout=10), 1100)) == list(range(1100))
        balances(sender, a, sent=1100)
