"""Programs that send and receive numbered messages in separate threads until they are stopped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from helpers.program import Threads
from helpers.topology import TOPOLOGY, Message, balances, collect, messages_of, numbered, numbers
from tuplewire import Client
from tuplewire.errors import BufferFullError, FlushTimeoutError, UnreachableError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.spark.client_handle import BlockClient
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

client_of = functools.partial(Client, topology=TOPOLOGY)
_SILENCE_SECONDS = 20.0


def deliver(client: Client | BlockClient, *messages: Any, **more: Any) -> None:
    """Send messages as `Client.send` does, and wait until all are acknowledged."""
    client.send(*messages, **more)
    client.flush(60)


def take(worker: Endpoint, task: int, messages: int) -> list[Message]:
    """Receive exactly this number of messages of a task with a client of its own."""
    with client_of(worker.address) as client, client.recv([task], timeout=60) as subscription:
        return collect(subscription, messages)


def reaches(count: Callable[[], int], goal: int, what: str) -> None:
    """Wait without a time limit until a count reaches a goal. Fail if it does not grow for some time."""
    while (before := count()) < goal:
        eventually(
            lambda before=before: count() > before,  # type: ignore[misc]
            _SILENCE_SECONDS,
            f"more {what} than {before}, of {goal}",
        )


class Feeder:
    """Sends numbers to a task from a separate thread, one at a time, until it is stopped."""

    def __init__(self, client: Client, task: int) -> None:
        self.sent = 0
        self._client = client
        self._task = task
        self._threads = Threads()

    def _run(self) -> None:
        while not self._threads.stop.is_set():
            self._client.send(self._task, b"%d" % self.sent)
            self.sent += 1
            self._threads.stop.wait(0.0005)

    def __enter__(self) -> Self:
        self._threads.start(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.end()

    def goes_on(self, messages: int = 100) -> None:
        """Wait until `messages` more are sent."""
        goal = self.sent + messages
        eventually(lambda: self.sent >= goal, 20, f"{goal} messages sent")


class Reader:
    """Reads a subscription in a separate thread until it is stopped. Timeouts are ignored."""

    def __init__(self, subscription: Subscription) -> None:
        self.got: list[Message] = []
        self.redelivered: list[Message] = []
        self._subscription = subscription
        self._threads = Threads()

    def _run(self) -> None:
        while not self._threads.stop.is_set():
            try:
                batch = next(self._subscription)
            except (TimeoutError, UnreachableError):
                continue
            for group in batch.groups:
                if group.redelivered:
                    self.redelivered += [(group.source, payload) for payload in group.payloads()]
            self.got += messages_of(batch)  # last: a thread that waits for it then reads the other attributes

    def __enter__(self) -> Self:
        self._threads.start(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.end()
        self._subscription.acknowledge()

    def has(self, messages: int) -> None:
        """Wait until this number of messages has arrived."""
        reaches(lambda: len(self.got), messages, "messages received")


@contextmanager
def fed(entry: Endpoint, owner: Endpoint, task: int) -> Iterator[tuple[Feeder, Reader]]:
    """Feed a task through one worker and read it at its owner; all must arrive once, and ledgers balance."""
    with (
        client_of(entry.address) as sender,
        client_of(owner.address) as consumer,
        Reader(consumer.recv([task], timeout=0.2)) as reader,
    ):
        with Feeder(sender, task) as feeder:
            yield feeder, reader
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        balances(sender, entry, owner, sent=feeder.sent)


@contextmanager
def blocked(near: str, far: str, task: int) -> Iterator[None]:
    """Block the client `sends` at one address: the client `sleeps` at the other one never acknowledges."""
    with (
        Client(near, client_id="sends") as sender,
        Client(far, client_id="sleeps") as consumer,
        consumer.recv([task], timeout=30) as batches,
    ):
        threads = Threads()

        def send() -> None:
            while not threads.stop.is_set():
                with suppress(BufferFullError):
                    sender.send(task, b"x", timeout=0.1)

        threads.start(send)
        try:
            next(batches)
            yield
        finally:
            threads.end()
            with suppress(FlushTimeoutError):
                sender.close(0.1)


@contextmanager
def senders(
    endpoints: Sequence[Endpoint], tasks: Sequence[int], sources: Sequence[int]
) -> Iterator[list[int]]:
    """Send numbered messages to each task, from one source at each worker, until the block ends."""
    sent = [0] * len(endpoints)
    threads = Threads()

    def send(index: int) -> None:
        with client_of(endpoints[index].address, source=sources[index]) as client:
            while not threads.stop.wait(0.002):
                for task in tasks:
                    client.send(numbered(task, range(sent[index], sent[index] + 20)), timeout=30)
                sent[index] += 20

    for index in range(len(endpoints)):
        threads.start(send, index)
    yield sent
    threads.end()
    assert not threads.errors
