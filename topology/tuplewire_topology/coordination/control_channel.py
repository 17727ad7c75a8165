"""Control messages between the PySpark tasks of a topology and its submitter.

Used by member.py and topology.py of spark/; clusters use the same orders without messages. Owns the received
messages. Workers deliver messages to a task id of each PySpark task. Receivers ignore other runs and old
generations. Thread-safe. Design: docs/design/topologies.md.
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
    to_tuplewire_error,
)
from tuplewire.packing.packing import READ_ERRORS, pack_values, read_value
from tuplewire.subscription import Subscription
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_topology.authoring.collector import EmittedTuples

SUBMITTER = -1
"""The rank of the submitter in a ControlMessage."""

_MAX_TUPLES = 65_536
_FLUSH_SECONDS = 5.0
_RETRY_SECONDS = 0.1


class ControlKind(StrEnum):
    """The kinds of control message."""

    READY = "ready"
    """To the coordinator: all tasks of the sender are open."""
    REPORT = "report"
    """To the coordinator: wave, ProcessReport, and numbers of emitted, executed and dead-letter tuples."""
    STATE = "state"
    """To the coordinator, from the submitter: (active, keep_output): None if not stopped, False to
    drain and discard the output."""
    SET_STATE = "set_active"
    """From the coordinator: (active, keep_output). The first is for the spouts."""
    FINAL_TICK = "final_tick"
    """From the coordinator: send these bolts their last tick."""
    GET_REPORT = "get_report"
    """From the coordinator: send a REPORT for this wave."""
    CLOSE = "close"
    """From the coordinator: the topology has finished."""
    ABORT = "abort"
    """From the coordinator: a PySpark task has failed."""
    STARTED = "started"
    """To the submitter: a generation has started; its coordinator's control task, and its member count."""
    PROGRESS = "progress"
    """To the submitter: the total numbers of emitted, executed and dead-letter tuples."""
    CLOSED = "closed"
    """To the submitter: a PySpark task has closed cleanly."""


COORDINATOR_KINDS = frozenset({ControlKind.READY, ControlKind.REPORT, ControlKind.STATE})


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A control message. `rank` is the PySpark task that sent it, or SUBMITTER."""

    run_id: str
    generation: int
    rank: int
    kind: ControlKind
    values: tuple[Any, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the message as a payload."""
        return pack_values([self.run_id, self.generation, self.rank, str(self.kind), *self.values])

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Parse a payload of to_bytes(). Raises MalformedError for an invalid one."""
        try:
            (run_id, generation, rank, kind, *values), _ = read_value(payload, 0)
            return cls(run_id, generation, rank, ControlKind(kind), tuple(values))
        except (*READ_ERRORS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes are not a control message: {error}") from error


class ControlInbox:
    """A queue of control messages and output tuples. Thread-safe. When full, put_tuples() waits."""

    def __init__(self, max_tuples: int = _MAX_TUPLES) -> None:
        self._max_tuples = max_tuples
        self._condition = threading.Condition()
        self._messages: list[ControlMessage] = []
        self._emitted: list[EmittedTuples] = []
        self._tuple_count = 0
        self._is_discarding = False
        self._failure: TuplewireError | None = None

    def put_message(self, message: ControlMessage) -> None:
        """Add a control message."""
        with self._condition:
            self._messages.append(message)
            self._condition.notify_all()

    def fail(self, error: TuplewireError) -> None:
        """Make take_all() raise this error: no control message will follow."""
        with self._condition:
            self._failure = error
            self._condition.notify_all()

    def put_tuples(self, emitted: Sequence[EmittedTuples]) -> None:
        """Add tuples, waiting for space, or drop them after discard()."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_discarding or self._tuple_count < self._max_tuples)
            if self._is_discarding:
                return
            self._emitted += emitted
            # One call may exceed the bound: otherwise a larger batch could never be added.
            self._tuple_count += sum(len(batch.tuples) for batch in emitted)
            self._condition.notify_all()

    def discard(self) -> None:
        """Drop all queued and future tuples, because the output is no longer wanted."""
        with self._condition:
            self._is_discarding = True
            self._emitted, self._tuple_count = [], 0
            self._condition.notify_all()

    def take_all(self, timeout: float) -> tuple[list[ControlMessage], list[EmittedTuples]]:
        """Remove and return everything, after at most `timeout` seconds. Raises the error of fail()."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._messages or self._emitted or self._failure), timeout)
            if self._failure is not None:
                raise self._failure
            messages, self._messages = self._messages, []
            emitted, self._emitted, self._tuple_count = self._emitted, [], 0
            self._condition.notify_all()
            return messages, emitted


@dataclass(slots=True, eq=False)
class ControlChannel:
    """Sends and receives the control messages of a PySpark task or submitter. A context manager.

    A reader thread calls `on_message` with each message of this run to `control_task`, and `on_failure` once
    no message can arrive. With `waits_for_task`, it retries until the first message of the run arrives.
    The exit waits up to 5 seconds until sent messages are acknowledged.
    """

    client: Client
    run_id: str
    control_task: int
    on_message: Callable[[ControlMessage], None]
    on_failure: Callable[[TuplewireError], None]
    waits_for_task: bool = field(default=False, kw_only=True)
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
                    subscription = self.client.recv([self.control_task], follow=False)
                    if self._closed.is_set():  # client.close() may have missed the new subscription
                        subscription.close()
                    self._read(subscription)
                except (UnknownTaskError, UnreachableError):  # Spark may start its tasks much later
                    if not self.waits_for_task:
                        raise
                    self._closed.wait(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - no message can arrive after any error
            if not self._closed.is_set():
                self.on_failure(to_tuplewire_error(error))

    def _read(self, subscription: Subscription) -> None:
        for received in subscription.messages():
            message = ControlMessage.from_bytes(received.message)
            if message.run_id == self.run_id:
                self.waits_for_task = False  # from now on, an unknown task is an error
                self.on_message(message)

    def send(self, control_task: int, message: ControlMessage) -> None:
        """Send a control message to a task id."""
        self.client.send(TaskMessageBatch.from_columns([control_task], [message.to_bytes()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with contextlib.suppress(FlushTimeoutError):  # the receiver has exited
            self.client.close(_FLUSH_SECONDS)
        self._thread.join()
