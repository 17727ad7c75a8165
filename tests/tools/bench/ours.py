"""Tuplewire's processes at both ends of a hop and of the path; each function is a role, see agent.py."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any

from agent import BenchError, Verb, serve
from peers import LoopThread
from workload import (
    CHECK_EVERY,
    DESTINATION_TASK,
    PACED_TASK,
    SOURCE_TASK,
    SPREAD_TASKS,
    STOPPED_TASK,
    TOPOLOGY,
    WAIT_SECONDS,
    Meter,
    asks,
    loads,
    numbered,
    paces,
)

from tuplewire import aio
from tuplewire.client import Client
from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import ClosedError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_service.messaging.base import IClientConnection, IConnectionCallback, IContext, ReceivedBatch
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory

_STILL_SECONDS = 1.0
_FIRST_SENDER = 1000
_PENDING = 1_000_000
"""Limit of pending messages of all senders of a program together."""
_SPARE_FILES = 200


def _batches(send: Callable[[TaskMessageBatch], object], tasks: Sequence[int] = (DESTINATION_TASK,)) -> Verb:
    """Return the verb that sends batches to tasks in turn, each built from a list while the clock runs."""

    def send_all(lists: Iterable[list[bytes]]) -> None:
        build = TaskMessageBatch.from_columns
        for payloads, task in zip(lists, cycle(tasks), strict=False):
            send(build(task, payloads, sources=SOURCE_TASK))

    return loads(send_all, tasks=len(tasks))


def _settled(*ledgers: LedgerSnapshot) -> dict[str, Any]:
    """Return the sum of the ledgers."""
    return {
        "pending": sum(ledger.pending for ledger in ledgers),
        "dropped": sum(sum(ledger.dropped.values()) for ledger in ledgers),
        "balanced": all(ledger.balanced for ledger in ledgers),
    }


def _settle(ledger: Callable[[], LedgerSnapshot], held: int = 0) -> dict[str, Any]:
    """Wait until only the held messages are pending; return the ledger without them."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := ledger()).pending > held and time.monotonic() < deadline:
        time.sleep(0.001)
    return _settled(dataclasses.replace(found, accepted=found.accepted - held, pending=found.pending - held))


def _flushed(client: Client) -> Verb:
    """Return the verb that waits until all messages are acknowledged."""

    def settle() -> dict[str, Any]:
        client.flush(WAIT_SECONDS)
        return _settled(client.ledger())

    return settle


class _Count(IConnectionCallback):
    """Counts the messages of a server connection."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def recv(self, batch: ReceivedBatch) -> None:
        """Count a batch; its payloads become objects only if the trial reads them."""
        self._meter.add(len(batch), batch.nbytes, lambda: batch.payloads)


@contextlib.contextmanager
def _context(transport: str) -> Iterator[IContext]:
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    yield context
    context.term()


def _connected(connection: IClientConnection) -> dict[str, Verb]:
    def pace(payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            connection.send(TaskMessageBatch.from_columns(PACED_TASK, [payload], sources=SOURCE_TASK))

    return {
        "load": _batches(connection.send),
        "settle": lambda: _settle(lambda: connection.statistics().ledger),
        "pace": paces(pace),
    }


def hop_server(transport: str) -> None:
    """`bind` with a callback."""
    meter = Meter()
    with _context(transport) as context:
        server = context.bind(TOPOLOGY, 0, _Count(meter))
        serve({"port": lambda: {"port": server.port}, **meter.verbs})


def hop_client(port: int, transport: str) -> None:
    """`connect`, then `send`."""
    with _context(transport) as context:
        serve(_connected(context.connect(TOPOLOGY, "127.0.0.1", port)))


def hop_within(transport: str) -> None:
    """Both ends in one process."""
    meter = Meter()
    with _context(transport) as context:
        server = context.bind(TOPOLOGY, 0, _Count(meter))
        serve({**meter.verbs, **_connected(context.connect(TOPOLOGY, "127.0.0.1", server.port))})


def producer(address: str, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Send lists through the local worker, or single messages when they are due."""
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK, **settings) as client:

        def pace(payloads: Iterator[bytes], gather: int = 1) -> None:
            """Send each message when it is due, or `gather` messages together when the last one is due."""
            if gather == 1:
                for payload in payloads:
                    client.send(PACED_TASK, payload)
            else:
                while some := list(islice(payloads, gather)):
                    client.send(TaskMessageBatch.from_columns([PACED_TASK] * len(some), some))

        serve({"load": _batches(client.send), "settle": _flushed(client), "pace": paces(pace)})


def sends(address: str) -> None:
    """Send single messages in a loop."""
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:

        def send_all(lists: Iterable[list[bytes]]) -> None:
            send = client.send
            for payloads in lists:
                for payload in payloads:
                    send(DESTINATION_TASK, payload)

        serve({"load": loads(send_all, CHECK_EVERY), "settle": _flushed(client)})


def sends_aio(address: str) -> None:
    """Send single messages in a loop, with `await`."""
    loop = LoopThread()
    client = aio.Client(address, topology=TOPOLOGY, source=SOURCE_TASK)

    async def send_all(lists: Iterable[list[bytes]]) -> None:
        send = client.send
        for payloads in lists:
            for payload in payloads:
                await send(DESTINATION_TASK, payload)

    def settle() -> dict[str, Any]:
        loop.run(client.flush(WAIT_SECONDS))
        return _settled(client.ledger())

    serve({"load": loads(lambda lists: loop.run(send_all(lists)), CHECK_EVERY), "settle": settle})
    loop.run(client.close())


def spread_producer(address: str, stopped: bool) -> None:  # noqa: FBT001 - the role's argument
    """Send to 31 tasks in turn; with `stopped`, while another task is full."""
    with Client(address, topology=TOPOLOGY, source=SOURCE_TASK) as client:
        held = _fill(client) if stopped else 0
        load = _batches(client.send, SPREAD_TASKS)
        serve({"load": load, "settle": lambda: _settle(client.ledger, held)})
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


def senders(address: str, count: int) -> None:
    """Send from `count` clients, each with a separate connection and session, on one event loop."""
    loop = messaging_thread()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + _SPARE_FILES), most))
    clients = [
        aio.Client(
            address, topology=TOPOLOGY, source=_FIRST_SENDER + number, max_pending_messages=_PENDING // count
        )
        for number in range(count)
    ]

    async def send(client: aio.Client, frame: int, end: int, batches: int | None) -> int:
        payloads = numbered(0, frame)
        sent = 0
        while sent // frame < batches if batches is not None else time.monotonic_ns() < end or not sent:
            if batches is not None:
                payloads = numbered(sent, frame)
            batch = TaskMessageBatch.from_columns(DESTINATION_TASK, payloads, sources=client.source)
            await client.send(batch)
            sent += frame
            await asyncio.sleep(0)  # a send with free credit does not yield to the other clients
        return sent

    async def load(frame: int, seconds: float = 0.0, messages: int | None = None) -> dict[str, int]:
        each = None if messages is None else -(-messages // frame // count)
        start = time.monotonic_ns()
        end = start + int(seconds * 1e9)
        counts = await asyncio.gather(*(send(client, frame, end, each) for client in clients))
        if not min(counts):
            raise BenchError(f"{counts.count(0)} of {count} senders could not send anything")
        return {"start_ns": start, "sent": sum(counts)}

    async def settle() -> dict[str, Any]:
        await asyncio.gather(*(client.flush(WAIT_SECONDS) for client in clients))
        return _settled(*(client.ledger() for client in clients))

    async def close() -> None:
        await asyncio.gather(*(client.close() for client in clients))

    serve({"load": lambda **how: loop.run(load(**how)), "settle": lambda: loop.run(settle())})
    loop.run(close())


def _receive(address: str, tasks: Iterable[int], add: Callable[[Meter, TaskMessageBatch], None]) -> None:
    """Receive from tasks at a local worker; `add` counts a batch."""
    meter = Meter()
    client = Client(address, topology=TOPOLOGY)
    subscription = client.recv(tasks)

    def receive() -> None:
        with contextlib.suppress(ClosedError):
            for batch in subscription:
                add(meter, batch)

    with _in_thread(receive):
        serve(meter.verbs)
        client.close()


@contextlib.contextmanager
def _in_thread(function: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=function)
    thread.start()
    yield
    thread.join()


def consumer(address: str) -> None:
    """Receive batches."""
    tasks = [DESTINATION_TASK, PACED_TASK]
    _receive(address, tasks, lambda meter, batch: meter.add(len(batch), batch.nbytes, lambda: batch.payloads))


def single_consumer(address: str) -> None:
    """Read one message at a time."""

    def add(meter: Meter, batch: TaskMessageBatch) -> None:
        meter.add(len(batch), batch.nbytes, lambda: [message.message for message in batch])

    _receive(address, [DESTINATION_TASK], add)


def streams_consumer(address: str, tasks: Iterable[int]) -> None:
    """Receive groups; each (source, task) has its own order."""

    def add(meter: Meter, batch: TaskMessageBatch) -> None:
        for group in batch.groups:
            stream = (group.source or 0) << 32 | group.task
            meter.add(len(group), len(group.data), group.payloads, stream)

    _receive(address, tasks, add)


def requester(address: str) -> None:
    """Asker.ask in a loop."""
    with Client(address, topology=TOPOLOGY) as client, client.asker(SOURCE_TASK) as asker:
        serve({"ask": asks(lambda payload: asker.ask(DESTINATION_TASK, payload).payload)})


def answerer(address: str) -> None:
    """Answer each request with its payload."""
    client = Client(address, topology=TOPOLOGY)
    inbox = client.recv([DESTINATION_TASK])

    def answer() -> None:
        with contextlib.suppress(ClosedError):
            for message in inbox.messages():
                client.answer(message, message.payload)

    with _in_thread(answer):
        serve({})
        client.close()
