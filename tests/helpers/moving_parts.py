"""Programs, consumers and workers of tests/property/core/test_moves.py, and the order of their messages."""

from __future__ import annotations

import struct
from asyncio import Task
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from helpers.memory_network import HOST, Network, NetworkContext
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.session.consume import ArrivedBatch
from tuplewire.session.ledger import LedgerSnapshot, SettledMessages
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import WorkerSettings, peer_session

TOPOLOGY = "t"
WORKERS = (0, 1, 2)
TASKS = (1, 2)
PROGRAMS = (0, 1, 2)

SESSION = SessionSettings(
    max_pending_messages=60,
    max_pending_bytes=2_000,
    max_pending_task_messages=40,
    max_message_bytes=60,
    max_frame_bytes=100,
    backoff_max_seconds=0.2,
    prefetch_messages=6,
    prefetch_bytes=120,
)

FIRST_SOURCE = 100

_NUMBER = struct.Struct(">I")

Stream = tuple[int, int]
"""A source and a task."""


def address_of(worker: int) -> str:
    """Return a worker's address."""
    return f"{HOST}:{1000 + worker}"


def numbered(task: int, source: int, first: int, count: int, padding: int) -> TaskGroup:
    """Return messages numbered from `first`, each with `padding` further bytes."""
    payloads = [_NUMBER.pack(number) + bytes(padding) for number in range(first, first + count)]
    return TaskGroup.of(task, payloads, source)


def numbers_in(group: TaskGroup) -> list[int]:
    """Return the messages' numbers."""
    return [_NUMBER.unpack_from(payload)[0] for payload in group.payloads()]


def start_worker(network: Network, number: int, incarnation: int, queue_bytes: int) -> Worker:
    """Start a worker. Call it inside the worker's process."""
    worker_id = f"w{number}"
    settings = WorkerSettings(
        worker_id=worker_id, topology=TOPOLOGY, receive_queue_bytes=queue_bytes, session=SESSION
    )
    transport = TransportSettings(
        worker_id=worker_id, incarnation=incarnation, receive_bytes=queue_bytes, session=peer_session(SESSION)
    )
    worker = Worker(settings, NetworkContext(network, transport), incarnation)
    network.loop.create_task(worker.start(1000 + number))
    return worker


class Lives:
    """The permitted order of a stream: for each life of its first worker, the order of the numbers."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.unmarked: set[int] = set()
        self._begin = [0]
        self._next = [0]
        self._free = 0

    def new_life(self, first: int) -> None:
        """Record a restart of the first worker: from this number on, messages may overtake earlier ones."""
        self._begin.append(first)
        self._next.append(first)

    def die(self, offered: int) -> None:
        """Record a killed worker: messages in flight may be received out of order."""
        self._free = offered
        self.new_life(offered)

    def see(self, number: int, *, marked: bool) -> None:
        """Record a received message. Raises AssertionError if it must not be received now."""
        if not marked:
            assert number not in self.unmarked, f"{number} came twice without a mark"
            self.unmarked.add(number)
        if number in self.seen:
            return
        self.seen.add(number)
        if number < self._free:
            return
        life = max(each for each, first in enumerate(self._begin) if first <= number)
        while self._next[life] in self.seen - {number}:
            self._next[life] += 1
        assert number == self._next[life], f"{number} came before {self._next[life]}"


class Program:
    """A program that sends from its own source to all tasks, through one worker."""

    def __init__(self, number: int, network: Network, mode: AckMode, worker: int | None = None) -> None:
        """Start to send. worker: the entry worker; None means the worker with the program's number."""
        self.source = FIRST_SOURCE + number
        self.worker = number if worker is None else worker
        self.mode = mode
        self.offered = dict.fromkeys(TASKS, 0)
        self.settled = dict.fromkeys(TASKS, 0)
        self.done: dict[int, set[int]] = {task: set() for task in TASKS}
        """Messages that consumers have acknowledged."""
        session = replace(SESSION, ack_mode=mode)
        identity = Identity(TOPOLOGY, f"p{number}", 1)
        events = SendEvents(on_settled=self._settled)
        address = address_of(self.worker)
        open_stream = network.dial(address)
        self.sender = SendingEnd(address, identity, session, network.thread, open_stream, events=events)
        self.sender.resume()

    def _settled(self, settled: Sequence[SettledMessages]) -> None:
        for each in settled:
            assert each.drop_reason is None, f"{each.messages} messages were dropped: {each.drop_reason}"
            first = self.settled[each.task]
            self.settled[each.task] += each.messages
            if self.mode is AckMode.PROCESSED:
                numbers = set(range(first, first + each.messages))
                assert numbers <= self.done[each.task], "acknowledged too soon"


class Consumer:
    """A process that consumes one task at one worker."""

    def __init__(self, name: str, worker: int, task: int, network: Network) -> None:
        self.name = name
        self.worker = worker
        self.task = task
        self.held: deque[ArrivedBatch] = deque()
        address = address_of(worker)
        open_stream = network.dial(address)
        identity = Identity(TOPOLOGY, name, 1)
        self.receiver = Receiver(address, identity, [task], SESSION, network.loop, open_stream)
        self.receiver.resume()


class Host:
    """The host of one worker, which is started repeatedly."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.worker: Worker | None = None
        self.draining: Task[LedgerSnapshot] | None = None
        self.version = 0
        """The version of the last assignment that it received."""

    @property
    def incarnation(self) -> int:
        """A number that is unique among all starts of all workers."""
        return self.life * len(WORKERS) + self.number

    @property
    def process(self) -> str:
        """The name of the worker's process."""
        return f"w{self.number}.{self.life}"
