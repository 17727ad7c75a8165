"""Tuplewire's own processes in the simplest form: one message per call, read one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agent import serve
from ours import consume, settled
from peers import LoopThread
from workload import CHECK_EVERY, DESTINATION_TASK, SOURCE_TASK, TOPOLOGY, WAIT_SECONDS, Frames, Meter, Usage

from tuplewire import aio
from tuplewire.client import Client
from tuplewire.values.batch import TaskMessageBatch


def _bursts(frame: int, seconds: float = 0.0, messages: int | None = None) -> Frames:
    """Return a schedule of payloads that are sent individually, with one read of the clock for each list."""
    return Frames(max(frame, CHECK_EVERY), seconds, messages)


def sends(address: str) -> None:
    """Role: `client.send(task, payload)` in a loop."""
    usage = Usage()
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:

        def load(**how: Any) -> dict[str, Any]:
            usage.begin()
            bursts = _bursts(**how)
            send = client.send
            for payloads in bursts:
                for payload in payloads:
                    send(DESTINATION_TASK, payload)
            return bursts.told()

        def settle() -> dict[str, Any]:
            client.flush(WAIT_SECONDS)
            return settled(usage, client.ledger())

        serve({"load": load, "settle": settle})


def sends_aio(address: str) -> None:
    """Role: `await client.send(task, payload)` in a loop."""
    usage = Usage()
    loop = LoopThread()
    client = aio.Client(address, topology=TOPOLOGY, source=SOURCE_TASK)

    async def send_all(bursts: Frames) -> None:
        send = client.send
        for payloads in bursts:
            for payload in payloads:
                await send(DESTINATION_TASK, payload)

    def load(**how: Any) -> dict[str, Any]:
        usage.begin()
        bursts = _bursts(**how)
        loop.run(send_all(bursts))
        return bursts.told()

    def settle() -> dict[str, Any]:
        loop.run(client.flush(WAIT_SECONDS))
        return settled(usage, client.ledger())

    serve({"load": load, "settle": settle})
    loop.run(client.close())


def consumer(address: str) -> None:
    """Role: reads one message at a time."""

    def add(meter: Meter, batch: TaskMessageBatch) -> None:
        meter.add(len(batch), batch.nbytes, lambda: [message.message for message in batch])

    consume(address, [DESTINATION_TASK], add)


ROLES: dict[str, Callable[..., None]] = {"sends": sends, "sends-aio": sends_aio, "consumer": consumer}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
