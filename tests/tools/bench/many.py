"""Tuplewire's own processes with many tasks, or many senders, at a time."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from agent import BenchError, serve
from ours import Load, consume, settled
from workload import (
    DESTINATION_TASK,
    SOURCE_TASK,
    SPREAD_TASKS,
    STOPPED_TASK,
    TOPOLOGY,
    WAIT_SECONDS,
    Meter,
    Usage,
    numbered,
)

from tuplewire import aio
from tuplewire.client import Client
from tuplewire.connection.loop import messaging_loop
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch

_STILL_SECONDS = 1.0
_FIRST_SENDER = 1000
_PENDING = 1_000_000
"""Limit of pending messages of all senders of a program together."""
_SPARE_FILES = 200


def streams_consumer(address: str, *tasks: str) -> None:
    """Role: a program that receives from its local worker; each (source, task) has its own order."""

    def add(meter: Meter, batch: TaskMessageBatch) -> None:
        for group in batch.groups:
            stream = (group.source or 0) << 32 | group.task
            meter.add(len(group), len(group.data), group.payloads, stream)

    consume(address, map(int, tasks), add)


def spread_producer(address: str, stopped: str) -> None:
    """Role: a program that sends to 31 tasks in turn; with `stopped` yes, while another task is full."""
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:
        held = _fill(client) if stopped == "yes" else 0

        def settle() -> LedgerSnapshot:
            deadline = time.monotonic() + WAIT_SECONDS
            while (ledger := client.ledger()).pending > held and time.monotonic() < deadline:
                time.sleep(0.001)
            return dataclasses.replace(ledger, accepted=ledger.accepted - held, pending=ledger.pending - held)

        load = Load(client, settle, SPREAD_TASKS)
        serve({"load": load.load, "settle": load.settle})
        client.close(0)


def _fill(client: Client) -> int:
    """Fill the task that has no consumer; return the number of messages that stay pending."""
    batch = TaskMessageBatch.from_columns(STOPPED_TASK, numbered(0, 1000), sources=SOURCE_TASK)
    since, seen = time.monotonic(), -1
    while time.monotonic() - since < _STILL_SECONDS:
        while client.try_send(batch):
            pass
        if (pending := client.ledger().pending) != seen:
            since, seen = time.monotonic(), pending
        time.sleep(0.01)
    return seen


class Senders:
    """`count` clients, each with a separate connection and session, on one event loop."""

    def __init__(self, address: str, count: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + _SPARE_FILES), most))
        self._clients = [
            aio.Client(
                address,
                topology=TOPOLOGY,
                source=_FIRST_SENDER + number,
                max_pending_messages=_PENDING // count,
            )
            for number in range(count)
        ]
        self._usage = Usage()

    async def load(self, frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, Any]:
        """Send batches from all clients for `seconds` seconds, or at least `messages` numbered messages."""
        self._usage.begin()
        each = None if messages is None else -(-messages // frame // len(self._clients))
        start = time.monotonic_ns()
        end = start + int(seconds * 1e9)
        counts = await asyncio.gather(*(self._send(client, frame, end, each) for client in self._clients))
        if not min(counts):
            raise BenchError(f"{counts.count(0)} of {len(counts)} senders could not send anything")
        return {"start_ns": start, "sent": sum(counts)}

    @staticmethod
    async def _send(client: aio.Client, frame: int, end: int, batches: int | None) -> int:
        payloads = numbered(0, frame)
        sent = 0
        while sent // frame < batches if batches is not None else time.monotonic_ns() < end or not sent:
            if batches is not None:
                payloads = numbered(sent, frame)
            await client.send(
                TaskMessageBatch.from_columns(DESTINATION_TASK, payloads, sources=client.source)
            )
            sent += frame
            await asyncio.sleep(0)  # a send with free credit does not yield to the other clients
        return sent

    async def settle(self) -> dict[str, Any]:
        """Wait until all messages are acknowledged, and return the sum of the ledgers."""
        await asyncio.gather(*(client.flush(WAIT_SECONDS) for client in self._clients))
        return settled(self._usage, *(client.ledger() for client in self._clients))

    async def close(self) -> None:
        """Close every session."""
        await asyncio.gather(*(client.close() for client in self._clients))


def senders(address: str, count: str) -> None:
    """Role: a program with many senders."""
    loop = messaging_loop()
    many = Senders(address, int(count))
    serve({"load": lambda **how: loop.run(many.load(**how)), "settle": lambda: loop.run(many.settle())})
    loop.run(many.close())


ROLES: dict[str, Callable[..., None]] = {
    "streams-consumer": streams_consumer,
    "spread-producer": spread_producer,
    "senders": senders,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
