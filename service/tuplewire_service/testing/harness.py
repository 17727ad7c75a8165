"""The base of the conformance tests: connections to test, a callback that records, and waiting.

Used by tests of transports. Owns the recorded messages. Thread-safe. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tuplewire.errors import UnknownTaskError
from tuplewire.settings.config import SessionSettings
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage
from tuplewire_service.messaging.base import (
    ConnectionStatus,
    IClientConnection,
    IConnectionCallback,
    IContext,
    IServerConnection,
    ReceivedBatch,
)

TOPOLOGY = "conformance"
HOST = "127.0.0.1"
UNKNOWN_TASK = 999
RECEIVE_MESSAGES = 2000
"""The number of messages that a receiver may hold for a task; its sender may hold others."""
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.005, 0.05
_Value = TypeVar("_Value")


class Recorder(IConnectionCallback):
    """Records messages. Refuses UNKNOWN_TASK, and holds messages to `held_tasks` until release()."""

    def __init__(self, held_tasks: Sequence[int] = ()) -> None:
        self._lock = threading.Lock()
        self._held_tasks = frozenset(held_tasks)
        self._held: list[tuple[ReceivedBatch, TaskGroup]] = []
        self._accepted: list[TaskGroup] = []

    def recv(self, batch: ReceivedBatch) -> None:
        with self._lock:
            batch.hold()  # each group is released separately, now or in release()
            for group in batch.groups:
                if group.task == UNKNOWN_TASK:
                    batch.refuse(group, UnknownTaskError(f"task {group.task} is unknown"))
                    continue
                self._accepted.append(group)
                if group.task in self._held_tasks:
                    self._held.append((batch, group))
                else:
                    batch.inbound.release(group.task, group.count, group.size_bytes)

    def release(self) -> None:
        """Release all held messages, and hold no more."""
        with self._lock:
            held, self._held = self._held, []
            self._held_tasks = frozenset()
        for batch, group in held:
            batch.inbound.release(group.task, group.count, group.size_bytes)

    def received(self) -> list[tuple[int | None, int, bytes]]:
        """Return (source, task, payload) of all messages, in order of arrival."""
        with self._lock:
            taken = list(self._accepted)
        return [(group.source, group.task, payload) for group in taken for payload in group.payloads()]

    def messages(self, task: int) -> list[TaskMessage]:
        """Return the messages to one task, with keys and headers."""
        with self._lock:
            return list(TaskMessageBatch.from_groups(group for group in self._accepted if group.task == task))

    def payloads(self, task: int) -> list[bytes]:
        """Return the payloads to one task."""
        return [payload for _, to, payload in self.received() if to == task]


def settled_condition(connection: IClientConnection) -> Callable[[], bool]:
    """Return the condition that no message is pending."""
    return lambda: connection.statistics().ledger.pending == 0


def is_ready(connection: IClientConnection) -> bool:
    """Return True if the connection is ready."""
    return connection.status is ConnectionStatus.READY


def assert_ledger(connection: IClientConnection, accepted: int, **dropped: int) -> None:
    """Wait until no message is pending; check that the ledger balances and has the expected counts."""
    eventually(settled_condition(connection))
    ledger = connection.statistics().ledger
    assert ledger.balanced, str(ledger)
    assert ledger.accepted == accepted, str(ledger)
    assert {reason: count for reason, count in ledger.dropped.items() if count} == dropped, str(ledger)


@contextmanager
def frequent_thread_switches() -> Iterator[None]:
    """Let threads switch every microsecond within the block, to provoke races."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def eventually(condition: Callable[[], _Value], timeout: float = 30.0, what: str = "") -> _Value:
    """Return the first true result of a condition. Raises AssertionError, with `what`, after `timeout` s."""
    began = time.monotonic()
    deadline = began + timeout
    while not (value := condition()):
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}; last seen: {value!r}")
        # A slow condition is called less often, because the tested code needs the processor, too.
        time.sleep(min(max(now - began, _MIN_POLL_SECONDS), _MAX_POLL_SECONDS))
        began = time.monotonic()
    return value


class TransportHarness(ABC):
    """Opens and closes the contexts and connections of a test, for the transport under test."""

    @abstractmethod
    def make_context(self) -> IContext:
        """Return a new context that is not prepared yet."""

    def conf(self, settings: SessionSettings, worker_id: str) -> Mapping[str, Any]:
        """Return the settings of a worker ("": a program), with RECEIVE_MESSAGES; override for other keys."""
        return {
            **settings.conf(),
            "tuplewire.transport.receive_messages": RECEIVE_MESSAGES,
            "tuplewire.transport.worker_id": worker_id,
        }

    @contextmanager
    def context(self, worker_id: str = "", **settings: Any) -> Iterator[IContext]:
        """Yield a prepared context, and close it."""
        context = self.make_context()
        context.prepare(self.conf(SessionSettings.of(**settings), worker_id))
        try:
            yield context
        finally:
            context.term()

    @contextmanager
    def pair(
        self, callback: IConnectionCallback | None, **settings: Any
    ) -> Iterator[tuple[IServerConnection, IClientConnection]]:
        """Yield a bound server and a client of it."""
        with self.context(**settings) as context:
            server = context.bind(TOPOLOGY, 0, callback)
            yield server, context.connect(TOPOLOGY, HOST, server.port)

    @contextmanager
    def recorded(self, *held_tasks: int, **settings: Any) -> Iterator[tuple[Recorder, IClientConnection]]:
        """Yield a Recorder that holds messages to `held_tasks`, and a client that sends to it."""
        recorder = Recorder(held_tasks)
        with self.pair(recorder, **settings) as (_, client):
            yield recorder, client

    def unused_port(self) -> int:
        """Return a port that was free a moment ago."""
        with self.context() as context:
            return context.bind(TOPOLOGY, 0, Recorder()).port
