"""Tuplewire's own processes in the simplest form: one message per call, read one at a time."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from agent import serve
from peers import LoopThread
from workload import (
    CHECK_EVERY,
    DESTINATION_TASK,
    SOURCE_TASK,
    TOPOLOGY,
    WAIT_SECONDS,
    Meter,
    Usage,
    numbered,
)

from tuplewire import aio
from tuplewire.client import Client
from tuplewire.errors import ClosedError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch


class Singles:
    """A schedule of single payloads for `seconds` seconds, or at least `messages`, all numbered."""

    def __init__(self, frame: int, seconds: float = 0.0, messages: int | None = None) -> None:
        self._burst = max(frame, CHECK_EVERY)
        self._messages = messages
        self._nanoseconds = int(seconds * 1e9)
        self.start_ns = self.sent = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield payloads, one burst between two reads of the clock."""
        payloads = numbered(0, self._burst)
        self.start_ns = time.monotonic_ns()
        end = self.start_ns + self._nanoseconds
        while self.sent < self._messages if self._messages is not None else time.monotonic_ns() < end:
            if self._messages is not None:
                payloads = numbered(self.sent, self._burst)
            yield payloads
            self.sent += self._burst


def _settled(ledger: LedgerSnapshot, usage: Usage) -> dict[str, Any]:
    return {
        "pending": ledger.pending,
        "dropped": sum(ledger.dropped.values()),
        "balanced": ledger.balanced,
        "cpu_ns": usage.nanoseconds(),
    }


def sends(address: str) -> None:
    """Role: `client.send(task, payload)` in a loop."""
    usage = Usage()
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:

        def load(**how: Any) -> dict[str, Any]:
            usage.begin()
            singles = Singles(**how)
            send = client.send
            for payloads in singles:
                for payload in payloads:
                    send(DESTINATION_TASK, payload)
            return {"start_ns": singles.start_ns, "sent": singles.sent}

        def settle() -> dict[str, Any]:
            client.flush(WAIT_SECONDS)
            return _settled(client.ledger(), usage)

        serve({"load": load, "settle": settle})


def sends_aio(address: str) -> None:
    """Role: `await client.send(task, payload)` in a loop."""
    usage = Usage()
    loop = LoopThread()
    client = aio.Client(address, topology=TOPOLOGY, source=SOURCE_TASK)

    async def send_all(singles: Singles) -> None:
        send = client.send
        for payloads in singles:
            for payload in payloads:
                await send(DESTINATION_TASK, payload)

    def load(**how: Any) -> dict[str, Any]:
        usage.begin()
        singles = Singles(**how)
        loop.run(send_all(singles))
        return {"start_ns": singles.start_ns, "sent": singles.sent}

    def settle() -> dict[str, Any]:
        loop.run(client.flush(WAIT_SECONDS))
        return _settled(client.ledger(), usage)

    serve({"load": load, "settle": settle})
    loop.run(client.close())


def _one_by_one(batch: TaskMessageBatch) -> list[bytes]:
    return [message.message for message in batch]


def consumer(address: str) -> None:
    """Role: reads one message at a time."""
    meter = Meter()
    client = Client(address, topology=TOPOLOGY)
    subscription = client.recv([DESTINATION_TASK])

    def consume() -> None:
        with contextlib.suppress(ClosedError):
            for batch in subscription:
                meter.add(len(batch), batch.nbytes, partial(_one_by_one, batch))

    thread = threading.Thread(target=consume)
    thread.start()
    serve({"begin": meter.begin, "finish": meter.finish})
    client.close()
    thread.join()


ROLES: dict[str, Callable[..., None]] = {"sends": sends, "sends-aio": sends_aio, "consumer": consumer}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
