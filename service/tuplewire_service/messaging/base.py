"""The messaging plug-in contract: IContext makes connections, IConnection moves batches.

Source: Storm's `org.apache.storm.messaging` (`IContext`, `IConnection`, `IConnectionCallback`). Storm has one
IConnection whose methods throw on the wrong side; here the two sides are two types.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, overload

from tuplewire.connection.loop import in_own_thread
from tuplewire.errors import RefusedError
from tuplewire.session.departure import Departure
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage

if TYPE_CHECKING:  # settings need this module, and no protobuf
    from tuplewire.wire.control_pb2 import SessionStatus

BLOCK, NO_BLOCK = 0, 1
"""The flags of IServerConnection.recv."""


class Intake(enum.IntEnum):
    """Whose messages a server takes, from nobody's to everybody's; each includes those before it."""

    NOBODY = 0
    LEAVING_WORKERS = 1
    """Workers that are about to go: what they hold would be lost with them."""
    WORKERS = 2
    ALL = 3

    @classmethod
    def of(cls, *, worker: bool, draining: bool) -> Intake:
        """Return the least intake that lets a sender in. draining: it is a worker that is about to go."""
        return cls.ALL if not worker else cls.LEAVING_WORKERS if draining else cls.WORKERS


class ConnectionStatus(enum.Enum):
    """Where a connection is in its life. Source: Storm's `ConnectionWithStatus.Status`."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ReceiveCount:
    """What arrived from one source: messages, batches (frames) and payload bytes."""

    source: str
    messages: int
    batches: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """A snapshot of a server connection."""

    received: Sequence[ReceiveCount] = ()
    sessions: int = 0
    """Senders that are connected, or were a moment ago: each has its share of the queues."""
    resumable_sessions: int = 0
    """Senders that have no share any more, and may resume."""
    refused_streams: Mapping[str, int] = field(default_factory=dict)
    """Streams that were refused, or ended with an error, by the error's code."""
    refused_messages: Mapping[str, int] = field(default_factory=dict)
    """Messages that were refused one by one, by the error's code."""
    silent_streams: int = 0
    """Streams that have not said hello yet."""
    smallest_window: int | None = None
    """How many messages each sender may have outstanding to the most crowded task; None: it is not told."""
    restarts: int = 0
    """How often what listens has ended by itself, and was started again."""
    identities: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Sessions and resumable sessions by identity, where anybody is asked who it is."""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A snapshot of a client connection."""

    ledger: LedgerSnapshot
    sent_messages: int = 0
    sent_batches: int = 0
    sent_bytes: int = 0
    reconnects: int = 0
    receiver_assignment_version: int = 0
    """The receiver's, when it was last connected; 0: it had none, or its transport does not tell."""
    perhaps_lost: int = 0
    """Messages that a receiver had acknowledged, and that may have died with it: at most so many."""


class InboundSession(Protocol):
    """Where received messages came from; told when they have left the receiver's hands."""

    @property
    def source(self) -> str:
        """The name by which its messages are counted: a worker's id, or `client` for every program."""

    @property
    def sender_id(self) -> str:
        """The sender's id."""

    @property
    def worker_number(self) -> int:
        """The number that stands for the sender in what is passed on for it; 0: it is a program."""

    @property
    def wants_releases(self) -> bool:
        """Whether somebody waits for each release: a sender in the mode `processed`, or a worker.

        What it sent is kept until its consumer has acknowledged it.
        """

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Say that the next so many messages to the task, in the order of arrival, are done with.

        It gives the sender room, and acknowledges the messages in the mode `processed`.
        """


class ReceivedBatch(TaskMessageBatch):
    """A batch as a callback gets it.

    When the callback returns, its messages count as done with, unless it called hold(): then whoever holds
    them calls `inbound.release` for each group later, in order of arrival per task.
    """

    __slots__ = ("assignment_version", "held", "inbound", "refusals")

    assignment_version: int
    """The assignment by which the sender routed this batch; 0: it does not route."""
    inbound: InboundSession
    held: bool
    refusals: list[tuple[TaskGroup, RefusedError]]

    @classmethod
    def arrived(
        cls, groups: Iterable[TaskGroup], inbound: InboundSession, assignment_version: int = 0
    ) -> ReceivedBatch:
        """Build one; for transports."""
        batch = cls.from_groups(groups)
        batch.inbound, batch.held, batch.refusals = inbound, False, []
        batch.assignment_version = assignment_version
        return batch

    def hold(self) -> None:
        """Take over the duty to release every group that is not refused."""
        self.held = True

    def refuse(self, group: TaskGroup, error: RefusedError) -> None:
        """Send a group of this batch back as refused; its sender is told the error."""
        self.refusals.append((group, error))


class IConnectionCallback(ABC):
    """Gets what a server connection receives. Source: Storm's `IConnectionCallback`."""

    @abstractmethod
    def recv(self, batch: ReceivedBatch) -> None:
        """Take a batch. Must not block; is never called twice at a time for one connection.

        An exception is a defect: the transport logs it, and refuses the batch to its sender.
        """

    @property
    def not_ready(self) -> RefusedError | None:
        """Why no program's session is opened now, and it must try again; None when it may be."""
        return None

    @property
    def assignment_version(self) -> int:
        """The version of the assignment in force, for senders that connect; 0: there is none."""
        return 0

    def worker_is(self, number: int, *, connected: bool) -> None:  # noqa: B027 - not all need know
        """Take note that a worker (its number) is connected, or is not any more, without a goodbye."""

    def workers_left(self, departures: Sequence[Departure]) -> None:  # noqa: B027 - not all need know
        """Take note of workers that have ended in good order, and of what they left behind."""


class IConnection(ABC):
    """What both sides have in common."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port: bound (server) or of the peer (client)."""

    @property
    @abstractmethod
    def status(self) -> ConnectionStatus:
        """Where the connection is in its life."""

    @abstractmethod
    def close(self, timeout: float = 10.0) -> None:
        """End it in good order, waiting at most so many seconds; does nothing the second time.

        A client waits until what it accepted is acknowledged; what is not by then counts as dropped{closed}.
        """

    def abort(self) -> None:
        """End it now; does nothing the second time. By default, close() without any time."""
        self.close(0.0)

    async def close_async(self, timeout: float = 10.0) -> None:
        """Do as close, where the transport's I/O runs. By default close() gets a thread of its own."""
        await in_own_thread(lambda: self.close(timeout))


class IServerConnection(IConnection):
    """The bound side: receives batches, tells senders about load."""

    @property
    @abstractmethod
    def addresses(self) -> Sequence[str]:
        """Every address that is bound, in the transport's own notation."""

    @abstractmethod
    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        """Take nothing more in, but from these: acknowledge what was taken, let the others keep the rest.

        When it returns, nothing more comes from those that are not meant. A call may let more senders in
        again than the one before.
        """

    async def stop_intake_async(self, intake: Intake = Intake.NOBODY) -> None:
        """Do as stop_intake, where the transport's I/O runs; see close_async."""
        await in_own_thread(lambda: self.stop_intake(intake))

    @abstractmethod
    def register_recv(self, callback: IConnectionCallback) -> None:
        """Deliver to the callback from now on, first of all what has waited for it; from bind on, or once.

        What is sent before that waits with its senders, unacknowledged, so that they hear of what the
        callback refuses. Raises ClosedError when recv() or another callback takes the messages.
        """

    @abstractmethod
    def recv(self, flags: int = BLOCK) -> TaskMessage | None:
        """Return the next message (pull mode, without a callback).

        flags: BLOCK waits; NO_BLOCK returns None when there is none yet. Messages come from the first call
        on. Once the connection is closed, and what it had accepted is taken, every call returns the shutdown
        notice, a message to SHUTDOWN_TASK (-1): a receive loop ends there. It never comes from a sender.
        Raises ClosedError when a callback is registered. Source: Storm's `IConnection.recv`, and the notice
        of its receive thread.
        """

    @abstractmethod
    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """Tell every connected sender the load of tasks, 0 (idle) to 1 (full)."""

    @abstractmethod
    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        """Tell every connected sender which tasks hold it back and which no longer do; for display only."""

    def tell_departures(self, departures: Sequence[Departure]) -> None:
        """Tell every connected worker of others that have ended in good order, before the next release."""

    @property
    def exhausted(self) -> Collection[int]:
        """The tasks for which some sender has used its window up, the longest first; where the I/O runs.

        For metrics. Return () if the transport cannot tell.
        """
        return ()

    def sessions(self) -> Sequence[SessionStatus]:
        """Return every sender that is connected or remembered; where the I/O runs.

        Return () if the transport cannot tell.
        """
        return ()

    @abstractmethod
    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the counts."""


class IClientConnection(IConnection):
    """The connecting side: sends batches, knows the peer's load."""

    @property
    @abstractmethod
    def congested(self) -> frozenset[int]:
        """The tasks whose queues the peer says are nearly full, as get_load; for display, credits decide."""

    @overload
    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(self, messages: int, payload: bytes, /, *, timeout: float | None = None) -> None: ...
    @abstractmethod
    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """Accept messages: a batch, an iterable of TaskMessages, or a task id and a payload.

        Waits for room, or fails, or makes room by giving up what no receiver has, as the setting `overflow`
        says. Waits at most `timeout` seconds; None: as configured.
        Returns once they are accepted: from then on they arrive, or are counted as dropped. Either all are
        accepted or none. Raises BufferFullError, MessageTooLargeError, ClosedError.
        """

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(self, messages: int, payload: bytes, /) -> bool: ...
    @abstractmethod
    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """Accept messages where send would not wait; False where it would."""

    @abstractmethod
    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """Return the last reported load of those tasks that the peer has reported lately.

        A report holds for `load_expires_seconds`. A worker reports each second the tasks that
        hold something, and once those that have become idle.
        """

    @abstractmethod
    def statistics(self) -> ClientStatistics:
        """Return a snapshot of the counts and the ledger."""


class IContext(ABC):
    """Makes connections of one transport. Source: Storm's `IContext`."""

    @abstractmethod
    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Take the settings in; called once, before anything else."""

    @abstractmethod
    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> IServerConnection:
        """Listen on a port (0: any free one) for senders of the topology."""

    @abstractmethod
    def connect(self, topology_id: str, host: str, port: int) -> IClientConnection:
        """Return a new connection to a worker, on every call; it connects by itself, again and again."""

    @abstractmethod
    def term(self) -> None:
        """Close everything that this context made; does nothing the second time."""
