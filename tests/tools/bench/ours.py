"""Tuplewire's own processes: the two ends of one hop, a producer and a consumer of the whole path."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, Protocol

from agent import serve
from workload import (
    DESTINATION_TASK,
    PACED_BYTES,
    PACED_TASK,
    SOURCE_TASK,
    TOPOLOGY,
    WAIT_SECONDS,
    Frames,
    Meter,
    Pace,
    Usage,
)

from tuplewire.client import Client
from tuplewire.errors import ClosedError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_service.messaging.base import (
    IClientConnection,
    IConnectionCallback,
    IContext,
    IServerConnection,
    ReceivedBatch,
)
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory


class Sends(Protocol):
    """The common interface of a connection and a client."""

    def send(self, messages: TaskMessageBatch, /) -> None:
        """Accept a batch, waiting for buffer space."""


class Load:
    """Sends batches to its tasks in turn, each built from a list of payloads while the clock runs."""

    def __init__(
        self, sends: Sends, settle: Callable[[], LedgerSnapshot], tasks: Sequence[int] = (DESTINATION_TASK,)
    ) -> None:
        self._sends = sends
        self._settle = settle
        self._tasks = tasks
        self._usage = Usage()

    def load(self, frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, Any]:
        """Send batches of `frame` messages for `seconds` seconds, or at least `messages`, all numbered."""
        self._usage.begin()
        send, build = self._sends.send, TaskMessageBatch.from_columns
        frames = Frames(frame, seconds, messages, len(self._tasks))
        for payloads, task in zip(frames, cycle(self._tasks), strict=False):
            send(build(task, payloads, sources=SOURCE_TASK))
        return frames.told()

    def settle(self) -> dict[str, Any]:
        """Wait until all messages are acknowledged, and return the ledger."""
        return settled(self._usage, self._settle())


def settled(usage: Usage, *ledgers: LedgerSnapshot) -> dict[str, Any]:
    """Return the sum of the ledgers, and the processor time of a trial."""
    return {
        "pending": sum(ledger.pending for ledger in ledgers),
        "dropped": sum(sum(ledger.dropped.values()) for ledger in ledgers),
        "balanced": all(ledger.balanced for ledger in ledgers),
        "cpu_ns": usage.nanoseconds(),
    }


def consume(address: str, tasks: Iterable[int], add: Callable[[Meter, TaskMessageBatch], None]) -> None:
    """Receive from tasks at a local worker; `add` counts a batch."""
    meter = Meter()
    client = Client(address, topology=TOPOLOGY)
    subscription = client.recv(tasks)

    def receive() -> None:
        with contextlib.suppress(ClosedError):
            for batch in subscription:
                add(meter, batch)

    thread = threading.Thread(target=receive)
    thread.start()
    serve({"begin": meter.begin, "finish": meter.finish})
    client.close()
    thread.join()


# --- one hop ----------------------------------------------------------------------------------


class Count(IConnectionCallback):
    """Counts the messages of a server connection."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def recv(self, batch: ReceivedBatch) -> None:
        """Count a batch; its payloads become objects only if the trial reads them."""
        self._meter.add(len(batch), batch.nbytes, lambda: batch.payloads)


def _bound(transport: str, meter: Meter) -> tuple[IContext, IServerConnection]:
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    return context, context.bind(TOPOLOGY, 0, Count(meter))


def _load(connection: IClientConnection) -> Load:
    def settle() -> LedgerSnapshot:
        deadline = time.monotonic() + WAIT_SECONDS
        while (ledger := connection.statistics().ledger).pending and time.monotonic() < deadline:
            time.sleep(0.001)
        return ledger

    return Load(connection, settle)


def hop_server(transport: str) -> None:
    """Role: `bind` with a callback."""
    meter = Meter()
    context, server = _bound(transport, meter)
    serve({"port": lambda: {"port": server.port}, "begin": meter.begin, "finish": meter.finish})
    context.term()


def hop_client(port: str, transport: str) -> None:
    """Role: `connect`, then `send`."""
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    connection = context.connect(TOPOLOGY, "127.0.0.1", int(port))

    def pace(rate: int, seconds: float) -> dict[str, Any]:
        schedule = Pace(rate, seconds)
        for payload in schedule:
            connection.send(TaskMessageBatch.from_columns(PACED_TASK, [payload], sources=SOURCE_TASK))
        return schedule.told()

    load = _load(connection)
    serve({"load": load.load, "settle": load.settle, "pace": pace})
    context.term()


def hop_within(transport: str) -> None:
    """Role: both ends in one process; its processor time is counted once."""
    meter = Meter()
    context, server = _bound(transport, meter)
    load = _load(context.connect(TOPOLOGY, "127.0.0.1", server.port))

    def settle() -> dict[str, Any]:
        return {**load.settle(), "cpu_ns": 0}

    serve({"begin": meter.begin, "finish": meter.finish, "load": load.load, "settle": settle})
    context.term()


# --- the whole path ---------------------------------------------------------------------------


def producer(address: str) -> None:
    """Role: a program that sends through its local worker."""
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:

        def settle() -> LedgerSnapshot:
            client.flush(timeout=WAIT_SECONDS)
            return client.ledger()

        def pace(rate: int, seconds: float, size: int = PACED_BYTES, gather: int = 1) -> dict[str, Any]:
            """Send each message when it is due, or `gather` messages together when the last one is due."""
            schedule = Pace(rate, seconds, size)
            if gather == 1:
                for payload in schedule:
                    client.send(PACED_TASK, payload)
            else:
                due = iter(schedule)
                while payloads := list(islice(due, gather)):
                    client.send(TaskMessageBatch.from_columns([PACED_TASK] * len(payloads), payloads))
            return schedule.told()

        load = Load(client, settle)
        serve({"load": load.load, "settle": load.settle, "pace": pace})


def consumer(address: str) -> None:
    """Role: a program that receives from its local worker."""

    def add(meter: Meter, batch: TaskMessageBatch) -> None:
        meter.add(len(batch), batch.nbytes, partial(getattr, batch, "payloads"))

    consume(address, [DESTINATION_TASK, PACED_TASK], add)


ROLES: dict[str, Callable[..., None]] = {
    "hop-server": hop_server,
    "hop-client": hop_client,
    "hop-within": hop_within,
    "producer": producer,
    "consumer": consumer,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
