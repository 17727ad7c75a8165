"""Control messages between the PySpark tasks of a topology and its submitter.

Used by spark/member.py and spark/running.py. Owns the received messages. Workers deliver messages to a task
id of each PySpark task. Receivers ignore other runs and old generations. Thread-safe.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from tuplewire.client import Client
from tuplewire.errors import (
    FlushTimeoutError,
    MalformedError,
    TuplewireError,
    UnknownTaskError,
    UnreachableError,
    as_tuplewire,
)
from tuplewire.packing.packing import FAULTS, pack_values, read_value
from tuplewire.subscription import Subscription
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_topology.authoring.collector import Emitted

SUBMITTER = -1
"""The rank of the submitter in a ControlMessage."""

_MOST_ROWS = 65_536
_FLUSH_SECONDS = 5.0
_RETRY_SECONDS = 0.1


class ControlKind(StrEnum):
    """The kinds of control message."""

    READY = "ready"
    """To the coordinator: all tasks of the sender are open."""
    REPORT = "report"
    """To the coordinator: wave, ProcessReport, and numbers of emitted, executed and dead-letter tuples."""
    STATE = "state"
    """To the coordinator, from the submitter: True for active spouts; and None, or if it must drain, True, or
    False to discard further output."""
    SWITCH = "switch"
    """From the coordinator: True for active spouts, and False to discard further output."""
    TICK = "tick"
    """From the coordinator: send these bolts their last tick."""
    ASK = "ask"
    """From the coordinator: send a REPORT for this wave."""
    CLOSE = "close"
    """From the coordinator: the topology has finished."""
    ABORT = "abort"
    """From the coordinator: a PySpark task has failed."""
    BEGUN = "begun"
    """To the submitter: a generation has started; its coordinator's mailbox, and the number of tasks."""
    PROGRESS = "progress"
    """To the submitter: the total numbers of emitted, executed and dead-letter tuples."""
    CLOSED = "closed"
    """To the submitter: a PySpark task has closed cleanly."""


TO_COORDINATOR = frozenset({ControlKind.READY, ControlKind.REPORT, ControlKind.STATE})


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A control message. `rank` is the PySpark task that sent it, or SUBMITTER."""

    run: str
    generation: int
    rank: int
    kind: ControlKind
    values: tuple[Any, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the message as a payload."""
        return pack_values([self.run, self.generation, self.rank, str(self.kind), *self.values])

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Parse a payload of to_bytes(). Raises MalformedError for an invalid one."""
        try:
            (run, generation, rank, kind, *values), _ = read_value(payload, 0)
            return cls(run, generation, rank, ControlKind(kind), tuple(values))
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes are not a control message: {error}") from error


class ControlInbox:
    """A queue of control messages and output tuples. Thread-safe. When full, put_runs() waits."""

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._changed = threading.Condition()
        self._messages: list[ControlMessage] = []
        self._runs: list[Emitted] = []
        self._rows = 0
        self._discards = False
        self._failure: TuplewireError | None = None

    def put_message(self, message: ControlMessage) -> None:
        """Add a control message."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def fail(self, error: TuplewireError) -> None:
        """Make take() raise this error: no control message will follow."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def put_runs(self, runs: Sequence[Emitted]) -> None:
        """Add tuples, waiting for space, or drop them after discard()."""
        with self._changed:
            self._changed.wait_for(lambda: self._discards or self._rows < self._most_rows)
            if self._discards:
                return
            self._runs += runs
            # One call may exceed the bound: otherwise a larger batch could never be added.
            self._rows += sum(len(run.tuples) for run in runs)
            self._changed.notify_all()

    def discard(self) -> None:
        """Drop all queued and future tuples, because the output is no longer wanted."""
        with self._changed:
            self._discards = True
            self._runs, self._rows = [], 0
            self._changed.notify_all()

    def take(self, timeout: float) -> tuple[list[ControlMessage], list[Emitted]]:
        """Remove and return everything, after at most `timeout` seconds. Raises the error of fail()."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._messages or self._runs or self._failure), timeout)
            if self._failure is not None:
                raise self._failure
            messages, self._messages = self._messages, []
            runs, self._runs, self._rows = self._runs, [], 0
            self._changed.notify_all()
            return messages, runs


@dataclass(slots=True, eq=False)
class ControlChannel:
    """Sends and receives the control messages of a PySpark task or submitter. A context manager.

    A reader thread calls `received` with each message of this run to the task id `mailbox`, and `failed` once
    no message can arrive. With `waits`, it retries until the worker has an assignment with the task. The exit
    waits up to 5 seconds until sent messages are acknowledged.
    """

    client: Client
    run: str
    mailbox: int
    received: Callable[[ControlMessage], None]
    failed: Callable[[TuplewireError], None]
    waits: bool = field(default=False, kw_only=True)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._main, name="tuplewire-topology-control", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    # A task id that has moved belongs to another run, which must keep its consumer.
                    subscription = self.client.recv([self.mailbox], follow=False)
                    if self._closed.is_set():  # client.close() may have missed the new subscription
                        subscription.close()
                    self._read(subscription)
                except (UnknownTaskError, UnreachableError):  # Spark may start its tasks much later
                    if not self.waits:
                        raise
                    self._closed.wait(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - no message can arrive after any error
            if not self._closed.is_set():
                self.failed(as_tuplewire(error))

    def _read(self, subscription: Subscription) -> None:
        for received in subscription.messages():
            message = ControlMessage.from_bytes(received.message)
            if message.run == self.run:
                self.waits = False  # from now on, an unknown task is an error
                self.received(message)

    def send(self, mailbox: int, message: ControlMessage) -> None:
        """Send a control message to a task id."""
        self.client.send(TaskMessageBatch.from_columns([mailbox], [message.to_bytes()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with contextlib.suppress(FlushTimeoutError):  # the receiver has exited
            self.client.close(_FLUSH_SECONDS)
        self._thread.join()
