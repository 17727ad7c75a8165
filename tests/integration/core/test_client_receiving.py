"""The client as a consumer of tasks of its worker and of other workers."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import pytest
from helpers.program import in_threads
from helpers.secured import Authority, files_of, tls_flags
from helpers.topology import (
    TOPOLOGY,
    Message,
    Pair,
    acknowledged,
    assign,
    collect,
    numbered,
    numbers,
    one_worker,
    workers_with,
)
from helpers.traffic import client_of, deliver

from tuplewire import aio
from tuplewire.errors import SupersededError, UnknownTaskError
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy


def test_two_consumers_with_one_identity(pair: Pair, task: int) -> None:
    """The second consumer takes over despite the same id and incarnation; repeated messages are marked."""
    same = functools.partial(client_of, client_id="twin", incarnation=1)
    seen: set[bytes] = set()
    with FaultProxy(pair.near.address) as proxy, same(proxy.address) as one, same(pair.near.address) as two:
        one.send(numbered(task, range(300)))
        first = one.recv([task], timeout=20)
        for group in next(first).groups:
            seen.update(group.payloads())
        proxy.black_hole()  # it misses the notice that it is superseded, and reconnects
        with two.recv([task], timeout=20) as second, client_of(pair.near.address) as sender:
            sender.send(numbered(task, range(300, 600)))
            for number in range(600):
                for group in next(second).groups:
                    assert group.redelivered or seen.isdisjoint(group.payloads())
                    seen.update(group.payloads())
                if not number:
                    proxy.cut()
                    proxy.resume()
                if len(seen) == 600:
                    break
            eventually(lambda: _superseded(first), 20)


@pytest.mark.slow
def test_an_older_subscriber_is_always_told(pair: Pair) -> None:
    """Even an older subscriber that acknowledges at the moment of the takeover gets SupersededError."""
    with client_of(pair.near.address) as older, client_of(pair.near.address) as newer:
        for _ in range(100):
            task = pair.near_task()
            older.send(numbered(task, range(20)))
            with older.recv([task], timeout=10) as first:
                next(first)
                with newer.recv([task], timeout=10) as second:
                    collect(second, 20 - acknowledged(pair.near, task))
                    eventually(lambda first=first: _superseded(first), 10)  # type: ignore[misc]


def _superseded(subscription: Subscription) -> bool:
    """Return True if the next batch raises SupersededError; messages that had arrived may come first."""
    try:
        next(subscription)
    except SupersededError:
        return True
    return False


def test_closing_tells_what_is_acknowledged_over_another_stream(pair: Pair, task: int) -> None:
    """If a broken connection loses an acknowledgement, close() sends it over another connection."""
    with FaultProxy(pair.near.address) as proxy, client_of(proxy.address) as client:
        deliver(client, numbered(task, range(10)))
        subscription = client.recv([task], timeout=10)
        assert len(next(subscription)) == 10
        proxy.black_hole()
        subscription.acknowledge()
        with in_threads(subscription.close):
            eventually(lambda: repr(subscription).endswith("closed>"))
            proxy.cut()
            proxy.resume()
    assert acknowledged(pair.near, task) == 10


def test_closing_a_client_waits_for_subscriptions_nobody_holds(pair: Pair, task: int) -> None:
    """close() of a client delivers the acknowledgements of subscriptions that the program has dropped."""
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(10)))
    with FaultProxy(pair.near.address) as proxy, client_of(proxy.address) as client:
        proxy.delay(0.3)
        collect(client.recv(task, timeout=10), 10)
        client.close()
        assert acknowledged(pair.near, task) == 10


def test_dropped_subscription_frees_its_task(pair: Pair, task: int) -> None:
    """A dropped subscription releases its task, although its loop ended early."""
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(3)))
        for _ in client.recv([task], timeout=10):
            break
        assert numbers(collect(client.recv([task], timeout=10), 3)) == [0, 1, 2]


MOVING = 1
_SECONDS = 60.0


def test_tasks_of_two_workers(pair: Pair) -> None:
    """One subscription has tasks of both workers; each gets its own acknowledgements and rejections."""
    near, far = pair.near_task(), pair.far_task()
    with client_of(pair.near.address) as client:
        deliver(client, numbered(near, range(50)))
        deliver(client, numbered(far, range(50)))
        with client.recv([near, far], timeout=_SECONDS) as subscription:
            found: list[Message] = []
            bad = {near, far}
            while len(found) < 102:
                batch = next(subscription)
                for index, message in enumerate(batch):
                    if message.message == b"7" and message.task in bad:
                        subscription.reject(index)
                        bad.remove(message.task)
                found += [(message.task, message.message) for message in batch]
            subscription.acknowledge()
        eventually(lambda: acknowledged(pair.far, far) == 51)  # with the second copy of 7
        for task in (near, far):
            rest = [number for number in numbers(found, task) if number != 7]
            assert rest == [number for number in range(50) if number != 7]
            assert numbers(found, task).count(7) == 2


async def test_the_asyncio_client_receives_from_anywhere(pair: Pair) -> None:
    """aio.Client finds the owners too."""
    tasks = [pair.near_task(), pair.far_task()]
    async with aio.Client(pair.near.address, topology=TOPOLOGY) as client:
        for task in tasks:
            await client.send(numbered(task, range(10)))
        async with client.recv(tasks, timeout=_SECONDS) as subscription:
            found = [(each.task, each.message) async for each in subscription.messages(20)]
    assert [numbers(found, task) for task in tasks] == [list(range(10))] * 2


def test_an_unknown_task_is_an_error(pair: Pair) -> None:
    """A task that no worker owns is an error, not a wait."""
    with (
        client_of(pair.near.address) as client,
        client.recv([pair.near_task(), 5000], timeout=_SECONDS) as subscription,
        pytest.raises(UnknownTaskError, match="task 5000 is not in assignment version"),
    ):
        next(subscription)


def test_the_owner_dies(tmp_path: Path) -> None:
    """After the task is assigned to another worker, the subscription receives everything there."""
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", directory=tmp_path) as b,
        one_worker("c", directory=tmp_path) as c,
    ):
        assign((a, b, c), 1, {a: [], b: [MOVING], c: []})
        with (
            client_of(a.address, ack_mode="processed") as sender,
            client_of(a.address) as client,
            client.recv([MOVING], timeout=_SECONDS) as subscription,
        ):
            sender.send(numbered(MOVING, range(10)))
            assert numbers(collect(subscription, 10)) == list(range(10))
            sender.flush(_SECONDS)
            os.kill(b.process_id, signal.SIGKILL)
            sender.send(numbered(MOVING, range(10, 20)))
            assign((a, c), 2, {a: [], c: [MOVING]})
            assert numbers(collect(subscription, 10)) == list(range(10, 20))


def test_over_tls_with_the_clients_credentials(tmp_path: Path) -> None:
    """The streams to other workers, and the requests of the assignment, use the client's certificate."""
    authority = Authority()
    files = authority.issue("worker.example").write(tmp_path / "worker")
    program = files_of(authority.issue("etl.example"), tmp_path / "program", "worker.example")
    flags = [*tls_flags(files), "--tls-client-names=*.example", "--drain-seconds=1"]
    with (
        workers_with([1], [2], flags=flags, directory=tmp_path, credentials=program) as processes,
        client_of(processes.endpoints[0].address, credentials=program) as client,
    ):
        for task in (1, 2):
            deliver(client, numbered(task, range(10), source=task))
        with client.recv([1, 2], timeout=_SECONDS) as subscription:
            found = collect(subscription, 20)
            assert [numbers(found, task) for task in (1, 2)] == [list(range(10))] * 2
            processes.assign({0: [1, 2]}, _SECONDS)
            client.send(numbered(2, range(10, 20), source=2))
            assert numbers(collect(subscription, 10), 2) == list(range(10, 20))
