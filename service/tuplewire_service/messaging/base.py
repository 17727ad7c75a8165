"""The transport plug-in interface: IContext creates connections, IConnection transfers batches.

Used by all transports, worker/ and process/. Owns no state. Thread-safe, unless a method states
otherwise. Source: Storm's `org.apache.storm.messaging` (`IContext`, `IConnection`, `IConnectionCallback`);
here, each side of a connection is a separate type. Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from tuplewire.errors import RefusedError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage

if TYPE_CHECKING:  # settings import this module, which must not load protobuf
    from tuplewire.wire.control_pb2 import GetStatusResponse
    from tuplewire.wire.messaging_pb2 import Departure

BLOCK, NO_BLOCK = 0, 1
"""The flags of IServerConnection.recv."""


class AcceptedPeers(enum.IntEnum):
    """The peers from which a server accepts messages, in ascending order; a level includes lower ones."""

    # A drain narrows the intake from the last level to the first; see docs/design/drain.md.
    OWN_PROGRAM = 0
    """Only the program in the worker's process, which is disconnected at the end of a drain."""
    DRAINING_WORKERS = 1
    """Workers that are shutting down. The messages they hold would be lost with them."""
    WORKERS = 2
    ALL = 3


class ConnectionStatus(enum.Enum):
    """The state of a connection. Source: Storm's `ConnectionWithStatus.Status`."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A snapshot of a client connection.

    Attributes:
        sent_messages: Includes messages that were sent again after a reconnect.
        sent_frames: The frames of these messages.
        sent_bytes: The size of these messages, with keys and headers.
    """

    ledger: LedgerSnapshot
    sent_messages: int = 0
    sent_frames: int = 0
    sent_bytes: int = 0
    reconnects: int = 0
    receiver_assignment_version: int = 0
    """The receiver's version at the last connection, or 0 if it had none, or the transport knows none."""
    possibly_lost: int = 0
    """Maximum number of acknowledged messages that may have been lost when a receiver failed."""


class InboundSession(Protocol):
    """The session that messages arrived on. It is notified when the receiver has released them."""

    @property
    def sender_id(self) -> str:
        """The sender's id."""

    @property
    def worker_number(self) -> int:
        """The number that identifies the sender in forwarded messages, or 0 for a program."""

    @property
    def awaits_releases(self) -> bool:
        """True if the sender waits for each release, like a worker, or a sender in the mode `processed`.

        Its messages are retained until their consumer has acknowledged them.
        """

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Release the next `messages` messages of the task, with this total size, in order of arrival.

        This gives the sender credit, and acknowledges the messages in the mode `processed`.
        """


class ReceivedBatch(TaskMessageBatch):
    """A batch that is passed to a callback.

    Its messages are released when the callback returns, unless it called hold(). Their holder then calls
    `inbound.release` for each group later, in order of arrival for each task.
    """

    __slots__ = ("assignment_version", "held", "inbound", "refusals")

    assignment_version: int
    """The assignment that the sender used to route this batch, or 0 if it does not route."""
    inbound: InboundSession
    held: bool
    refusals: list[tuple[TaskGroup, RefusedError]]

    @classmethod
    def for_callback(
        cls, groups: Iterable[TaskGroup], inbound: InboundSession, assignment_version: int = 0
    ) -> ReceivedBatch:
        """Build a batch for a callback, of groups that are not empty. For transports."""
        batch = cls.__new__(cls)._hold(None, tuple(groups))
        batch.inbound, batch.held, batch.refusals = inbound, False, []
        batch.assignment_version = assignment_version
        return batch

    def hold(self) -> None:
        """Take the responsibility to release every group that is not refused."""
        self.held = True

    def refuse(self, group: TaskGroup, error: RefusedError) -> None:
        """Refuse a group of this batch; its sender receives the error."""
        self.refusals.append((group, error))


class IConnectionCallback(ABC):
    """Receives the messages of a server connection. Source: Storm's `IConnectionCallback`."""

    @abstractmethod
    def recv(self, batch: ReceivedBatch) -> None:
        """Accept a batch. Must not block; never called concurrently for one connection.

        An exception is a defect: the transport logs it, and refuses the batch to its sender.
        """

    @property
    def not_ready_error(self) -> RefusedError | None:
        """The reason to refuse sessions of programs, which are then retried, or None to accept them."""
        return None

    @property
    def assignment_version(self) -> int:
        """The current assignment version, for senders that connect, or 0 if there is none."""
        return 0

    def on_worker_connection(self, number: int, *, connected: bool) -> None:  # noqa: B027 - optional
        """Record that the worker with this number connected, or disconnected without notice."""

    def on_workers_departed(self, departures: Sequence[Departure]) -> None:  # noqa: B027 - optional
        """Record the workers that shut down cleanly, and the state that they reported."""


class IConnection(ABC):
    """The interface that both sides share."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The bound port of a server, or the peer's port of a client."""

    @property
    @abstractmethod
    def status(self) -> ConnectionStatus:
        """The current state of the connection."""

    @abstractmethod
    def close(self, timeout: float = 10.0) -> None:
        """Close cleanly within `timeout` seconds. Further calls have no effect.

        A client waits until its accepted messages are acknowledged; the rest counts as dropped{closed}.
        """

    def abort(self) -> None:
        """Close immediately; further calls have no effect. By default, this is close() without a wait."""
        self.close(0.0)


class IServerConnection(IConnection):
    """The bound side: receives batches and reports load to senders."""

    @property
    @abstractmethod
    def addresses(self) -> Sequence[str]:
        """Every address that is bound, in the transport's own notation."""

    @abstractmethod
    def set_accepted_peers(self, intake: AcceptedPeers = AcceptedPeers.OWN_PROGRAM) -> None:
        """Set the peers to accept messages from, and acknowledge accepted ones; other senders keep the rest.

        No message from other peers arrives after it returns. A later call may accept more senders again.
        """

    @abstractmethod
    def register_recv(self, callback: IConnectionCallback) -> None:
        """Deliver messages to the callback from now on, starting with waiting messages.

        Call it at most once, and only if bind() had no callback. Earlier messages wait at their senders
        without acknowledgement, so refusals of the callback reach the senders.

        Raises:
            ClosedError: recv() or another callback receives the messages.
        """

    @abstractmethod
    def recv(self, flags: int = BLOCK) -> TaskMessage | None:
        """Return the next message (pull mode, without a callback).

        The first call starts the delivery. After the connection is closed and its accepted messages are read,
        every call returns the shutdown notice: a message to SHUTDOWN_TASK (-1), which no sender can send. A
        receive loop ends there. Source: Storm's `IConnection.recv`, and the notice of its receive thread.

        Args:
            flags: BLOCK: wait for a message. NO_BLOCK: return None if there is none.

        Raises:
            ClosedError: A callback is registered.
        """

    @abstractmethod
    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """Send the load of tasks, from 0 (idle) to 1 (full), to every connected sender."""

    @abstractmethod
    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        """Send the congested and the relieved tasks to every connected sender; for display only."""

    @abstractmethod
    def statistics(self) -> GetStatusResponse:
        """Return a snapshot of the counts, as a worker's status without other fields."""


class IClientConnection(IConnection):
    """The connecting side: sends batches and receives the peer's load."""

    @property
    @abstractmethod
    def congested(self) -> frozenset[int]:
        """The tasks with nearly full queues, as the peer recently reported. For display; credit decides."""

    @overload
    def send(self, messages: Iterable[TaskMessage], /, *, timeout: float | None = None) -> None: ...
    @overload
    def send(self, messages: int, payload: bytes, /, *, timeout: float | None = None) -> None: ...
    @abstractmethod
    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """Accept messages: a batch, an iterable of TaskMessages, or a task id and a payload.

        If the buffer is full, the setting `overflow` decides: wait, fail, or drop messages that no receiver
        has. After the return, messages arrive or count as dropped. Either all messages are accepted or none.

        Args:
            timeout: The maximum wait in seconds; None: the setting `max_block_seconds`.

        Raises:
            BufferFullError: The buffer was full until the timeout, or is full with overflow="fail".
            MessageTooLargeError: A message exceeds max_message_bytes.
            ClosedError: The connection is closed.
        """

    @overload
    def try_send(self, messages: Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(self, messages: int, payload: bytes, /) -> bool: ...
    @abstractmethod
    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """Accept messages without waiting; return False if send() would wait."""

    @abstractmethod
    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """Return the recently reported loads of these tasks.

        Valid for `load_expiry_seconds`. Every second, a worker reports busy tasks, and newly idle ones.
        """

    @abstractmethod
    def statistics(self) -> ClientStatistics:
        """Return a snapshot of the counts and the ledger."""


class IContext(ABC):
    """Creates connections of one transport. Source: Storm's `IContext`."""

    @abstractmethod
    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Apply the settings. Called once, before any other method. Raises ConfigError for an invalid one."""

    @abstractmethod
    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> IServerConnection:
        """Listen for senders of the topology.

        Args:
            port: The port; 0: any free port.
            callback: Receives the messages; None: a later register_recv() or recv() does.

        Raises:
            BindError: The port is in use.
        """

    @abstractmethod
    def connect(self, topology_id: str, host: str, port: int) -> IClientConnection:
        """Return a new connection to a worker, which connects and reconnects automatically."""

    @abstractmethod
    def term(self) -> None:
        """Close all connections of this context. Further calls have no effect."""
