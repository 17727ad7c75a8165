"""Full queues of a real worker: senders with the policy `drop_oldest`, and many short-lived senders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import eventually
from helpers.topology import TOPOLOGY, Pair, collect, numbered, numbers, pair_of_workers, queued
from helpers.traffic import deliver

from tuplewire import Client
from tuplewire.errors import BufferFullError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.ledger import LedgerSnapshot

QUEUE = 1000
"""Number of messages that the worker queues for a task without a consumer."""
PENDING = 4000
"""Number of messages that the client keeps pending."""
SENT = 50_000

DROPPING: dict[str, Any] = {"topology": TOPOLOGY, "overflow": "drop_oldest", "max_pending_messages": PENDING}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Run two workers with small queues."""
    with pair_of_workers(f"--receive-queue-messages={QUEUE}") as pair:
        yield pair


def producer_of(address: str, **settings: Any) -> Client:
    """Return a client that drops its oldest messages if it is full."""
    return Client(address, **{**DROPPING, **settings})


def check(arrived: list[int], balance: LedgerSnapshot) -> None:
    """Fail unless the first and the newest messages arrived, and the ledger counts the others as dropped."""
    assert arrived == [*range(QUEUE), *range(SENT - PENDING, SENT)]
    assert balance.balanced
    assert (balance.accepted, balance.acknowledged, balance.pending) == (SENT, len(arrived), 0)
    assert {reason: count for reason, count in balance.dropped.items() if count} == {
        "overflow": SENT - len(arrived)
    }


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_producer_at_full_speed_never_waits(pair: Pair, where: str) -> None:
    """With a stopped consumer, every send is accepted immediately, and a later flush succeeds."""
    task = pair.near_task() if where == "near" else pair.far_task()
    owner: Endpoint = getattr(pair, where)
    with producer_of(pair.near.address) as producer:
        deliver(producer, numbered(task, range(QUEUE)))
        eventually(lambda: queued(owner, task) == QUEUE)
        for start in range(QUEUE, SENT, 100):
            producer.send(numbered(task, range(start, start + 100)), timeout=0)
        left = SENT - producer.ledger().dropped["overflow"]
        assert left == PENDING + QUEUE
        with Client(owner.address, topology=TOPOLOGY) as consumer:
            arrived = numbers(collect(consumer.recv([task], timeout=10), left))
        producer.flush(10)
        check(arrived, producer.ledger())


def test_a_stopped_task_costs_the_others_nothing(pair: Pair) -> None:
    """A stopped task at its limit drops only its own messages; all messages of another task arrive."""
    stopped, flowing = pair.near_task(), pair.near_task()
    with producer_of(
        pair.near.address, max_pending_messages=10 * PENDING, max_pending_task_messages=PENDING
    ) as producer:
        for start in range(0, SENT, 1000):
            producer.send(numbered(flowing, range(start // 20, start // 20 + 50)), timeout=0)
            producer.send(numbered(stopped, range(start, start + 1000)), timeout=0)
        left = SENT - producer.ledger().dropped["overflow"]
        with Client(pair.near.address, topology=TOPOLOGY) as consumer:
            flowed = numbers(collect(consumer.recv([flowing], timeout=10), SENT // 20))
            arrived = numbers(collect(consumer.recv([stopped], timeout=10), left))
        producer.flush(10)
        assert flowed == list(range(SENT // 20))
        assert arrived[-(PENDING - QUEUE) :] == list(range(SENT - (PENDING - QUEUE), SENT))
        assert producer.ledger().balanced
        assert producer.ledger().accepted == SENT + SENT // 20


def test_what_the_worker_may_have_is_waited_for(pair: Pair) -> None:
    """In mode `processed`, messages at the worker count towards the limit and are never dropped."""
    task = pair.near_task()
    with producer_of(pair.near.address, ack_mode="processed", max_pending_messages=QUEUE) as producer:
        producer.send(numbered(task, range(QUEUE)))
        eventually(lambda: queued(pair.near, task) == QUEUE)
        assert not producer.try_send(task, b"1000")
        with pytest.raises(BufferFullError, match=f"no room for 0.1 s: {QUEUE:,} messages"):
            producer.send(task, b"1000", timeout=0.1)
        with Client(pair.near.address, topology=TOPOLOGY) as consumer:
            subscription = consumer.recv([task], timeout=10)
            assert numbers(collect(subscription, QUEUE)) == list(range(QUEUE))
            producer.send(task, b"1000", timeout=10)
            assert numbers(collect(subscription, 1)) == [QUEUE]
        producer.flush(10)
        assert producer.ledger().dropped["overflow"] == 0
