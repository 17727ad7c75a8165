"""The parts of the session's property test: batches, a link, a worker and a consumer, as plain state."""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import dataclass, field

from tuplewire.session.consume import ArrivedBatch, ConsumeSession
from tuplewire.session.credit import SessionCredit
from tuplewire.session.receive import ReceiveSession
from tuplewire.session.shares import Amount, QueueShares
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker.delivery import DeliveryLog

TASKS = (1, 2, 3)
SOURCES = (None, 7, 8)
WINDOWS = [Amount(1, 60), Amount(3, 40), Amount(8, 200), Amount(30, 2_000)]
LARGEST_WINDOW = WINDOWS[-1]
SETTINGS = SessionSettings(
    max_pending_messages=40,
    max_pending_bytes=800,
    max_pending_task_messages=20,
    max_message_bytes=60,
    max_frame_bytes=150,
)
PREFETCH_MESSAGES = 6
PREFETCH_BYTES = 90

HEAD = struct.Struct(">bBIB")

Pair = tuple[int | None, int]
Message = tuple[int | None, int, int]
"""Source, task, and the number within both, from 0."""


def group_of(messages: list[Message], padding: int, *, headed: bool) -> TaskGroup:
    """Return a group with payloads of several sizes that name its messages; `headed`: half have headers."""
    payloads, headers = [], []
    for source, task, number in messages:
        with_headers = headed and number % 2
        name = HEAD.pack(-1 if source is None else source, task, number, with_headers)
        headers.append(name if with_headers else b"")
        most = SETTINGS.max_message_bytes - len(name) - len(headers[-1])
        payloads.append(name + bytes(padding * number % (most + 1)))
    source, task, _ = messages[0]
    return TaskGroup.from_checked(task, source, payloads, headers)


def messages_in(group: TaskGroup) -> list[Message]:
    """Return the messages that a group's payloads name. Checks that source, task and headers match."""
    messages = []
    headers = group.encoded_headers() or [b""] * len(group)
    for payload, entry in zip(group.payloads(), headers, strict=True):
        source, task, number, with_headers = HEAD.unpack_from(payload)
        assert (group.source, group.task) == (None if source < 0 else source, task)
        assert entry == (payload[: HEAD.size] if with_headers else b"")
        messages.append((group.source, task, number))
    return messages


@dataclass(slots=True, eq=False)
class Batch:
    """The messages of one offer, by task; also their inbound session. Settled messages are removed."""

    number: int
    open: dict[int, list[Message]]
    sizes: dict[Message, int]


@dataclass(slots=True)
class Link:
    """A stream in both directions, with the written data that has not arrived yet."""

    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    connected: bool = False

    def cut(self) -> None:
        """Lose the data in flight."""
        self.up.clear()
        self.down.clear()
        self.connected = False


class Worker:
    """The receiver's process. Its state is lost when it is killed."""

    def __init__(self, incarnation: int, window: Amount, *, processed: bool) -> None:
        self.incarnation = incarnation
        self.shares = QueueShares(window, Amount(1, 1))
        self.left: dict[int, Amount] = {}
        self.tasks_without_credit: Counter[int] = Counter()
        credit = SessionCredit(
            self.shares,
            max_message_bytes=SETTINGS.max_message_bytes,
            grants_every_release=processed,
            blocked_sessions=self.tasks_without_credit,
        )
        self.session = ReceiveSession(1, credit)
        self.logs = {task: DeliveryLog() for task in TASKS}
        self.consumer_id = 0
        self.cursors: dict[int, tuple[int, int]] = dict.fromkeys(TASKS, (0, 0))
        self.next_number: dict[Pair, int] = {}
        self.refused: set[Message] = set()


class Consumer:
    """The consumer's process. Its unacknowledged messages are redelivered if it is killed."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.session = ConsumeSession(TASKS, PREFETCH_MESSAGES, PREFETCH_BYTES)
        self.held: deque[ArrivedBatch] = deque()
        self.last_seen: dict[Pair, int] = {}
