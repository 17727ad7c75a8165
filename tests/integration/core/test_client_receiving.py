"""The blocking client as a consumer, with two real workers."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.topology import Pair, acknowledged, collect, numbered, numbers
from helpers.traffic import client_of, deliver

from tuplewire.errors import SupersededError
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy


def test_two_consumers_with_one_identity(pair: Pair) -> None:
    """The second consumer takes over despite the same id and incarnation; repeated messages are marked."""
    task = pair.near_task()
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
                batch = next(second)
                for group in batch.groups:
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


def test_closing_tells_what_is_acknowledged_over_another_stream(pair: Pair) -> None:
    """If a broken connection loses an acknowledgement, close() sends it over another connection."""
    task = pair.near_task()
    with FaultProxy(pair.near.address) as proxy, client_of(proxy.address) as client:
        deliver(client, numbered(task, range(10)))
        subscription = client.recv([task], timeout=10)
        assert len(next(subscription)) == 10
        proxy.black_hole()
        subscription.acknowledge()
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(subscription.close)
            eventually(lambda: repr(subscription).endswith("closed>"))
            proxy.cut()
            proxy.resume()
            closing.result(10)
    assert acknowledged(pair.near, task) == 10


def test_closing_a_client_waits_for_subscriptions_nobody_holds(pair: Pair) -> None:
    """close() of a client delivers the acknowledgements of subscriptions that the program has dropped."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(10)))
    with FaultProxy(pair.near.address) as proxy, client_of(proxy.address) as client:
        proxy.delay(0.3)
        collect(client.recv(task, timeout=10), 10)
        client.close()
        assert acknowledged(pair.near, task) == 10


def test_dropped_subscription_frees_its_task(pair: Pair) -> None:
    """A dropped subscription releases its task, although its loop ended early."""
    task = pair.near_task()
    with client_of(pair.near.address) as client:
        client.send(numbered(task, range(3)))
        for _ in client.recv([task], timeout=10):
            break
        assert numbers(collect(client.recv([task], timeout=10), 3)) == [0, 1, 2]
