"""Processes for a test: a producer and a consumer of numbered messages.

A payload begins with its number, counted from 0 per (source, task). A consumer therefore detects every loss,
duplicate and reordering immediately, and only stores the next number.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from helpers.program import Threads, serve
from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import BufferFullError, UnreachableError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing.fault_proxy import FaultProxy

NUMBER_BYTES = 8
_WAIT_SECONDS = 0.25
_FLUSH_SECONDS = 60.0
_MOST_PROBLEMS = 20

Stream = tuple[int, int]
"""A source task and its target task."""
Routes = Sequence[tuple[str, int]]
"""Workers' addresses, each with the source task of the sender."""


def numbered_group(task: int, source: int, first: int, count: int, size: int = NUMBER_BYTES) -> TaskGroup:
    """Return messages of `size` bytes to a task, numbered from `first`."""
    lengths = array("I", [size]) * count
    filler = bytes(size - NUMBER_BYTES)
    data = b"".join(
        [number.to_bytes(NUMBER_BYTES, "little") + filler for number in range(first, first + count)]
    )
    return TaskGroup(task, source, lengths.tobytes(), data)


class Sequences:
    """Checks the received messages of each stream. Groups must be made by numbered_group()."""

    def __init__(self) -> None:
        self.next: dict[Stream, int] = {}
        """The next expected number, which is also the number of received messages."""
        self.problems: list[str] = []
        """Descriptions of lost, duplicated or reordered messages; only the first ones."""

    def take(self, group: TaskGroup) -> None:
        """Check a group's numbers."""
        stream = (-1 if group.source is None else group.source, group.task)
        first, count = self.next.get(stream, 0), len(group)
        size = len(group.data) // count
        numbers = [number for (number,) in struct.iter_unpack(f"<Q{size - NUMBER_BYTES}x", group.data)]
        if numbers != list(range(first, first + count)) and len(self.problems) < _MOST_PROBLEMS:
            came = next(
                pair for pair in zip(numbers, range(first, first + count), strict=True) if pair[0] != pair[1]
            )
            mark = " (marked as redelivered)" if group.redelivered else ""
            self.problems.append(
                f"source {stream[0]} to task {stream[1]}: {came[0]} came, not {came[1]}{mark}"
            )
        self.next[stream] = numbers[-1] + 1

    def take_new(self, group: TaskGroup) -> None:
        """Check a group after a possible failure: messages marked as redelivered may be duplicates."""
        if not group.redelivered:
            self.take(group)
            return
        stream = (-1 if group.source is None else group.source, group.task)
        for index in range(len(group)):
            one = group.slice(index, index + 1)
            if int.from_bytes(one.data[:NUMBER_BYTES], "little") >= self.next.get(stream, 0):
                self.take(one)


@dataclass(frozen=True, slots=True)
class Produced:
    """The progress of a producer."""

    sent: dict[Stream, int]
    """The number of messages accepted by `send`."""
    refused: int
    """The number of messages rejected because the buffer was full."""
    ledgers: dict[int, LedgerSnapshot] = field(default_factory=dict)
    """The ledger of each source's client."""
    connections: dict[int, int] = field(default_factory=dict)
    """The number of connections of each source's client."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """The progress of a consumer."""

    received: dict[Stream, int]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Load:
    """The messages of a producer: how many for each task, in which batches; `waits`: it sends after `go`."""

    tasks: Sequence[int]
    batch: int
    size: int = 100
    pause: float = 0.0
    try_send: bool = False
    waits: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def producer(pipe: Connection, topology: str, routes: Routes, load: Load) -> None:
    """Run a process that sends to all tasks, over each route with a separate thread and client.

    Each answer contains the progress so far. `go` starts it (if the load waits for it) or resumes it, `rest`
    pauses it, and `finish` stops it after all messages are acknowledged.
    """
    tasks = load.tasks
    going = threading.Event()
    if not load.waits:
        going.set()
    threads = Threads()
    clients = {
        source: Client(address, topology=topology, source=source, **load.settings)
        for address, source in routes
    }
    sent = {(source, task): 0 for source in clients for task in tasks}
    refused = dict.fromkeys(clients, 0)

    def taken(client: Client, messages: TaskMessageBatch) -> bool:
        if load.try_send:
            return client.try_send(messages)
        try:
            client.send(messages, timeout=_WAIT_SECONDS)
        except BufferFullError:
            return False
        return True

    def send(source: int) -> None:
        count = 0
        clients[source].send([])  # connects
        while not threads.stop.is_set():
            if not going.wait(_WAIT_SECONDS):
                continue
            messages = TaskMessageBatch.from_groups(
                [numbered_group(task, source, count, load.batch, load.size) for task in tasks]
            )
            while not taken(clients[source], messages):
                refused[source] += len(messages)
                if threads.stop.is_set():
                    return
            count += load.batch
            sent.update(dict.fromkeys(((source, task) for task in tasks), count))
            if load.pause:
                threads.stop.wait(load.pause)

    def progress() -> Produced:
        senders = {source: each._sender for source, each in clients.items()}
        return Produced(
            dict(sent),
            sum(refused.values()),
            {source: each.ledger() for source, each in clients.items()},
            {source: each.counts.connections for source, each in senders.items() if each is not None},
        )

    def go() -> Produced:
        going.set()
        return progress()

    def rest() -> Produced:
        going.clear()
        return progress()

    def finish() -> Produced:
        threads.end()
        for client in clients.values():
            client.flush(_FLUSH_SECONDS)
        return progress()

    for source in clients:
        threads.start(send, source)
    serve(pipe, {"progress": progress, "go": go, "rest": rest, "finish": finish}, threads.errors)
    threads.end()
    for client in clients.values():
        client.close(0)


def consumer(pipe: Connection, topology: str, subscriptions: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Run a process that receives from (address, tasks), a client each; answers `progress` and `finish`."""
    threads = Threads()
    sequences = [Sequences() for _ in subscriptions]

    def receive(address: str, tasks: Sequence[int], seen: Sequences) -> None:
        with (
            Client(address, topology=topology) as client,
            client.recv(tasks, timeout=_WAIT_SECONDS) as batches,
        ):
            while not threads.stop.is_set():
                try:
                    batch = next(batches)
                except (TimeoutError, UnreachableError):
                    continue
                for group in batch.groups:
                    seen.take(group)
            batches.acknowledge()

    def progress() -> Consumed:
        received = {stream: count for seen in sequences for stream, count in list(seen.next.items())}
        return Consumed(received, [problem for seen in sequences for problem in seen.problems])

    def finish() -> Consumed:
        threads.end()
        return progress()

    for (address, tasks), seen in zip(subscriptions, sequences, strict=True):
        threads.start(receive, address, tasks, seen)
    serve(pipe, {"progress": progress, "finish": finish}, threads.errors)
    threads.end()


_STEADY_SECONDS = 2.0


def unsteady_proxy(pipe: Connection, target: str) -> None:
    """Run a proxy that cuts all connections to the target every other second; answers `address`."""
    threads = Threads()

    def cut(proxy: FaultProxy) -> None:
        while not threads.stop.wait(_STEADY_SECONDS):
            proxy.cut()

    with FaultProxy(target) as proxy:
        threads.start(cut, proxy)
        serve(pipe, {"address": lambda: proxy.address}, threads.errors)
        threads.end()
