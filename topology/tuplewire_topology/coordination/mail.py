"""What the PySpark tasks of a topology, and the program that submitted it, tell each other.

A mail travels as a message of the workers that carry the tuples, to a task id of its own for each PySpark
task. It is of one run and one generation, and whoever gets one of another throws it away.
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
    as_tuplewire,
)
from tuplewire.packing.packing import FAULTS, pack_values, read_value
from tuplewire.subscription import Subscription
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_topology.authoring.collector import Emitted

SUBMITTER = -1
"""The rank, in a mail, of the program that submitted the topology."""

_MOST_ROWS = 65_536
_FLUSH_SECONDS = 5.0
_RETRY_SECONDS = 0.1


class MailKind(StrEnum):
    """What a mail is about."""

    READY = "ready"
    """To the coordinator: every task here is open."""
    REPORT = "report"
    """To the coordinator: a wave, a ProcessReport, and what was emitted, executed and buried so far."""
    STOP = "stop"
    """To the coordinator, from the submitter: drain; and whether the output is still wanted."""
    SWITCH = "switch"
    """To the coordinator, from the submitter: whether the spouts are asked for tuples."""
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    TICK = "tick"
    """From the coordinator: give these bolts their last tick."""
    ASK = "ask"
    """From the coordinator: report, with this wave."""
    CLOSE = "close"
    """From the coordinator: the topology is over."""
    ABORT = "abort"
    """From the coordinator: another PySpark task has failed."""
    BEGUN = "begun"
    """To the submitter: a generation begins; where its coordinator is."""
    PROGRESS = "progress"
    """To the submitter: what was emitted, executed and buried so far."""
    CLOSED = "closed"
    """To the submitter: a PySpark task has ended in good order."""


TO_COORDINATOR = frozenset({MailKind.READY, MailKind.REPORT, MailKind.STOP, MailKind.SWITCH})


@dataclass(frozen=True, slots=True)
class Mail:
    """One of them. rank: of the PySpark task that wrote it."""

    run: str
    generation: int
    rank: int
    kind: MailKind
    values: tuple[Any, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as a payload."""
        return pack_values([self.run, self.generation, self.rank, str(self.kind), *self.values])

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Read what to_bytes() wrote; MalformedError for what is no mail."""
        try:
            (run, generation, rank, kind, *values), _ = read_value(payload, 0)
            return cls(run, generation, rank, MailKind(kind), tuple(values))
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes are no mail of a topology: {error}") from error


class Mailbox:
    """Mail, and runs of tuples to put out; thread-safe.

    A bolt that hands out more than is taken waits, so that a slow reader of the output slows the topology.
    """

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._changed = threading.Condition()
        self._mail: list[Mail] = []
        self._runs: list[Emitted] = []
        self._rows = 0
        self._discards = False
        self._failure: TuplewireError | None = None

    def put_mail(self, mail: Mail) -> None:
        """Add a mail."""
        with self._changed:
            self._mail.append(mail)
            self._changed.notify_all()

    def fail(self, error: TuplewireError) -> None:
        """Say that there will be no more mail, and why."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def put_runs(self, runs: Sequence[Emitted]) -> None:
        """Add tuples, waiting for room."""
        with self._changed:
            self._changed.wait_for(lambda: self._discards or self._rows < self._most_rows)
            if self._discards:
                return
            self._runs += runs
            self._rows += sum(len(run.tuples) for run in runs)
            self._changed.notify_all()

    def discard(self) -> None:
        """Throw away all tuples, these and what comes: nobody wants them any more."""
        with self._changed:
            self._discards = True
            self._runs, self._rows = [], 0
            self._changed.notify_all()

    def take(self, timeout: float) -> tuple[list[Mail], list[Emitted]]:
        """Return everything, waiting until there is something, at most so many seconds.

        Raises the error for which there will be no more mail.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._mail or self._runs or self._failure), timeout)
            if self._failure is not None:
                raise self._failure
            mail, self._mail = self._mail, []
            runs, self._runs, self._rows = self._runs, [], 0
            self._changed.notify_all()
            return mail, runs


@dataclass(slots=True, eq=False)
class Post:
    """The mailbox of a PySpark task, or of a submitter; ends with the block, once what it sent is accepted.

    mailbox: its task id. received: called in the thread that reads, with each mail of this run. failed:
    called there with the error after which there is no more mail. waits: whether the worker may not have the
    task yet, as the assignment is still to come.
    """

    client: Client
    run: str
    mailbox: int
    received: Callable[[Mail], None]
    failed: Callable[[TuplewireError], None]
    waits: bool = field(default=False, kw_only=True)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._main, name="tuplewire mail", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    subscription = self.client.recv([self.mailbox])
                    if self._closed.is_set():  # and may have been before there was anything to close
                        subscription.close()
                    self._read(subscription)
                except UnknownTaskError:
                    if not self.waits:
                        raise
                    self._closed.wait(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - nothing arrives any more, whatever it was
            if not self._closed.is_set():
                self.failed(as_tuplewire(error))

    def _read(self, subscription: Subscription) -> None:
        for batch in subscription:
            subscription.acknowledge()
            for group in batch.groups:
                for payload in group.payloads():
                    mail = Mail.from_bytes(payload)
                    if mail.run == self.run:
                        self.waits = False
                        self.received(mail)

    def send(self, mailbox: int, mail: Mail) -> None:
        """Send a mail to a mailbox."""
        self.client.send(TaskMessageBatch.from_columns([mailbox], [mail.to_bytes()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with contextlib.suppress(FlushTimeoutError):  # whoever should get it has ended
            self.client.close(_FLUSH_SECONDS)
        self._thread.join()
