"""The programs at both ends of a chaos run: senders of numbered messages, and receivers that record them.

A sender uses a Client of a worker, or `connect` of a transport; a receiver subscribes at workers, or binds a
transport. Each one is a process that exits cleanly when its standard input is closed. For a transport within
one process, it is an object that can be stopped, killed and closed like a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import struct
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from campaigns.journal import Journal
from campaigns.programs import Program
from helpers.program import Threads
from helpers.topology import TOPOLOGY

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import (
    BufferFullError,
    FlushTimeoutError,
    RefusedMessagesError,
    TaskNotLocalError,
    UnknownTaskError,
    UnreachableError,
)
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire.subscription import Subscription
from tuplewire_service.messaging.base import IConnectionCallback, IContext, InboundSession, ReceivedBatch
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import eventually

SOURCES_APART = 1000
"""Each run of a sender on a transport has another source: its first source, plus this per restart."""
_LAYOUT = struct.Struct("<qqq40x")
"""The message: its source, its task and its number."""
_ROOM_SECONDS = 0.2
_BATCH_MESSAGES = 100
_WINDOW_MESSAGES = 2000
_RELEASE_SECONDS = 0.002
_END_SECONDS = 60.0
_SILENCE_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_WORK_SECONDS = 0.005
"""The time for a batch before it is acknowledged, so that a consumer that is killed usually has a batch."""


def _context(config: dict[str, Any], **session: Any) -> IContext:
    settings = SessionSettings.of(**session)
    return TransportFactory.make_context(
        {
            TRANSPORT_KEY: config["transport"],
            **settings.conf(),
            "tuplewire.transport.receive_messages": _WINDOW_MESSAGES,
        }
    )


def messages(source: int, task: int, first: int, count: int) -> list[bytes]:
    """Return `count` messages, numbered from `first` on."""
    return [_LAYOUT.pack(source, task, number) for number in range(first, first + count)]


def runs(group: TaskGroup) -> Iterator[tuple[int, int]]:
    """Return the numbers of a group as runs (first, count); AssertionError for any incorrect byte."""
    assert len(group.data) == _LAYOUT.size * len(group), f"{group!r} holds payloads of another size"
    assert group.source is not None, f"{group!r} has no source"
    numbers = [number for _, _, number in _LAYOUT.iter_unpack(group.data)]
    assert group.data == b"".join(_LAYOUT.pack(group.source, group.task, number) for number in numbers), (
        f"{group!r} holds messages of another source or task"
    )
    first = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[first], index - first
            first = index


class End(ABC):
    """A sender or a receiver. config: from the run; `name` ends with the number of its restart."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.name: str = config["name"]
        self._journal = Journal(Path(config["journal"]))
        self._threads = Threads()
        self._over = self._threads.stop
        self._going = threading.Event()
        self._going.set()

    def signal(self, number: signal.Signals) -> None:
        """Pause, or continue; for objects within this process, which cannot be stopped by a signal."""
        (self._going.clear if number is signal.SIGSTOP else self._going.set)()

    def kill(self) -> None:
        """Abort immediately; for objects within this process, which cannot be killed."""
        raise NotImplementedError(self.name)

    @abstractmethod
    def finish(self) -> int:
        """Close it cleanly; return its exit status."""

    def _stop(self) -> None:
        self._over.set()
        self._going.set()
        self._threads.end()

    def _record(self, group: TaskGroup, subscription: str) -> None:
        """Write received messages to the journal, before they are acknowledged."""
        for first, number in runs(group):
            self._journal.write(
                "received",
                source=group.source,
                task=group.task,
                first=first,
                count=number,
                subscription=subscription,
                redelivered=group.redelivered,
            )


class Consumer(End):
    """Follows its tasks from worker to worker: one thread per task tries all workers in turn."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._clients = [
            (worker, Client(address, topology=TOPOLOGY)) for worker, address in config["workers"].items()
        ]
        self._subscriptions = count(1)
        for task in config["tasks"]:
            self._threads.start(self._consume, task)

    def _consume(self, task: int) -> None:
        for attempt in count(task):
            if self._over.wait(_RETRY_SECONDS):
                return
            worker, client = self._clients[attempt % len(self._clients)]
            name = f"{self.name} at {worker} #{next(self._subscriptions)}"
            try:
                with client.recv([task], timeout=_SILENCE_SECONDS, follow=False) as subscription:
                    self._journal.write("subscribed", subscription=name)
                    self._read(subscription, name)
            except (TaskNotLocalError, UnknownTaskError, UnreachableError):
                continue

    def _read(self, subscription: Subscription, name: str) -> None:
        while not self._over.is_set():
            try:
                batch = next(subscription)
            except TimeoutError:
                continue
            for group in batch.groups:
                self._record(group, name)
            self._over.wait(_WORK_SECONDS)

    def finish(self) -> int:
        self._stop()
        return 0


class Receiver(End, IConnectionCallback):
    """Binds a transport; releases messages shortly after it receives them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._held: deque[tuple[InboundSession, TaskGroup]] = deque()
        port_file = Path(config["port_file"])
        self._context = _context(config)
        port = int(port_file.read_text()) if port_file.exists() else 0
        self._server = self._context.bind(TOPOLOGY, port, self)
        temporary = port_file.with_suffix(".new")
        temporary.write_text(str(self._server.port))
        temporary.replace(port_file)
        self._threads.start(self._run)

    def recv(self, batch: ReceivedBatch) -> None:
        """Record the messages."""
        batch.hold()
        for group in batch.groups:
            self._record(group, self.name)
            self._held.append((batch.inbound, group))

    def _run(self) -> None:
        while not self._over.wait(_RELEASE_SECONDS):
            self._going.wait()
            self._release()

    def _release(self) -> None:
        while self._held:
            inbound, group = self._held.popleft()
            inbound.release(group.task, len(group), len(group.data))

    def kill(self) -> None:
        self._server.abort()
        self._stop()
        self._release()  # only the exit of a process loses held messages
        self._journal.close()

    def finish(self) -> int:
        """See End. Between processes, messages that are not released are sent again after the restart."""
        self._stop()
        self._context.term()
        self._release()
        self._journal.close()
        return 0


class _Sends(Protocol):
    """A client of a worker or of a transport."""

    def send(self, batch: TaskMessageBatch, /, *, timeout: float) -> object:
        """Send; raises BufferFullError after the timeout."""


class Sending(End):
    """Sends batches of numbered messages to random tasks, and records all of them in the journal."""

    def _begin(
        self, config: dict[str, Any], source: int, mode: AckMode, clients: Mapping[int, _Sends]
    ) -> None:
        """Announce the source, and send. clients: the client of each task."""
        self._source = source
        self._chance = random.Random(f"{config['seed']} {self.name}")
        self._rate: float = config["rate"]
        self._journal.write("source", source=source, mode=mode, worker=config["worker"])
        self._threads.start(self._send_all, clients)

    def _send_all(self, clients: Mapping[int, _Sends]) -> None:
        """Send until the run stops."""
        source, chance = self._source, self._chance
        sent: Counter[int] = Counter()
        while not self._over.is_set():
            self._going.wait()
            task, number = chance.choice(list(clients)), chance.randint(1, _BATCH_MESSAGES)
            group = TaskGroup.of(task, messages(source, task, sent[task], number), source)
            self._journal.write("handed_over", source=source, task=task, count=sent[task] + number)
            if self._sent(clients[task], TaskMessageBatch.from_groups([group])):
                sent[task] += number
                self._journal.write("accepted", source=source, task=task, count=sent[task])
            self._over.wait(2 * chance.random() * number / self._rate)

    def _sent(self, client: _Sends, batch: TaskMessageBatch) -> bool:
        """Send as soon as there is buffer space; False if the run stops first."""
        while not self._over.is_set():
            with contextlib.suppress(BufferFullError):
                client.send(batch, timeout=_ROOM_SECONDS)
                return True
        return False

    @abstractmethod
    def _ledger(self) -> LedgerSnapshot:
        """Return the balance of all its messages."""

    @abstractmethod
    def _close(self) -> int:
        """Close its connections; return the exit status."""

    def finish(self) -> int:
        """See End. Return 1 if a message is pending after a minute, or was rejected by a worker."""
        self._stop()
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self._ledger().pending, _END_SECONDS)
        ledger = self._ledger()
        self._journal.write("settled", source=self._source, ledger=dataclasses.asdict(ledger))
        self._journal.close()
        if ledger.pending:
            print(f"not everything was settled: {ledger}", file=sys.stderr)
        return bool(ledger.pending) | self._close()


class Producer(Sending):
    """Sends to all tasks through one worker."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        source, mode = config["source"], AckMode(config["mode"])
        address = config["workers"][config["worker"]]
        self._client = Client(address, topology=TOPOLOGY, source=source, ack_mode=mode)
        self._begin(config, source, mode, dict.fromkeys(config["tasks"], self._client))

    def _ledger(self) -> LedgerSnapshot:
        return self._client.ledger()

    def _close(self) -> int:
        status = 0
        try:
            self._client.flush(0.0)
        except (FlushTimeoutError, RefusedMessagesError) as error:
            print(error, file=sys.stderr)
            status = 1
        with contextlib.suppress(FlushTimeoutError):
            self._client.close(1.0)
        return status


class Sender(Sending):
    """Connects to every receiver of a transport."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._context = _context(config, ack_mode=AckMode(config["mode"]))
        clients = [
            (self._context.connect(TOPOLOGY, "127.0.0.1", port), tasks) for port, tasks in config["receivers"]
        ]
        self._clients = [client for client, _ in clients]
        # Receivers record messages before they acknowledge them, so no message may be missing in either mode.
        source = config["source"] + SOURCES_APART * int(self.name.rpartition(".")[2])
        by_task = {task: client for client, tasks in clients for task in tasks}
        self._begin(config, source, AckMode.PROCESSED, by_task)

    def kill(self) -> None:
        self._stop()
        for client in self._clients:
            client.abort()
        self._journal.close()

    def _ledger(self) -> LedgerSnapshot:
        return sum((client.statistics().ledger for client in self._clients), LedgerSnapshot())

    def _close(self) -> int:
        self._context.term()
        return 0


ENDS: dict[str, Callable[[dict[str, Any]], End]] = {
    "consumer": Consumer,
    "producer": Producer,
    "receiver": Receiver,
    "sender": Sender,
}


class Within(Program):
    """A sender or receiver within this process, in place of a process."""

    _end: End

    def start(self) -> None:
        self._end = ENDS[self._config["role"]](self.next_config())

    def signal(self, number: signal.Signals) -> None:
        self._end.signal(number)

    def kill(self) -> None:
        self._end.kill()

    def begin_end(self) -> None:
        """Do nothing: end() closes it."""

    def end(self, timeout: float) -> int:
        del timeout  # finish() has its own timeout
        return self._end.finish()

    @property
    def ended(self) -> bool:
        """Always False."""
        return False


def main() -> int:
    """Run the end that the command line specifies. An error in a thread ends the process."""

    def failed(raised: threading.ExceptHookArgs) -> None:
        traceback.print_exception(raised.exc_value)
        os._exit(1)

    threading.excepthook = failed
    config = json.loads(sys.argv[1])
    end = ENDS[config["role"]](config)
    sys.stdin.read()
    return end.finish()


if __name__ == "__main__":
    sys.exit(main())
