"""The blocking client: sends messages to tasks and receives messages of tasks, through one worker.

Used by programs, PySpark tasks, and tuplewire.spark. Owns one sender (sending_end.py), opened by the first
send, and a receiver (receiver.py) for each subscription, which do their I/O on the messaging loop.
Thread-safe. Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, overload
from weakref import WeakSet

from tuplewire.connection.close_on_exit import close_automatically
from tuplewire.connection.consuming_end import Callbacks, OnFailure, OnGroup
from tuplewire.connection.grpc_channel import WorkerConnections
from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.memory_stream import MEMORY_PREFIX, memory_stream_opener
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.connection.stream import StreamOpener
from tuplewire.environment import check_variables
from tuplewire.errors import ClosedError, FlushTimeoutError
from tuplewire.identity.client_ids import new_client_id
from tuplewire.identity.credentials import Credentials
from tuplewire.request_reply import AnswerMethods, Asker
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import check_text, resolve_address, resolve_topology
from tuplewire.settings.config import SessionKeywords, SessionSettings, check_timeout, expand_settings
from tuplewire.subscription import NotPicklable, Subscription
from tuplewire.tracing import get_tracing
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.group import check_task, check_whole
from tuplewire.values.message import Headers, TaskMessage
from tuplewire.values.task_ids import check_tasks

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing

_clients: WeakSet[BaseClient] = WeakSet()
"""The clients of this process. The child of a fork has no connection, so it resets all of them."""


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)


class BaseClient(NotPicklable):
    """The common part of the blocking and the asyncio client: arguments, sender and receivers."""

    tracing_allowed = True
    """True if the client creates spans for its messages when tracing is on in the process."""

    @expand_settings
    def __init__(
        self,
        address: str | None = None,
        *,
        topology: str | None = None,
        worker_id: str = "",
        client_id: str | None = None,
        incarnation: int | None = None,
        source: int | None = None,
        credentials: Credentials | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        """Create a client, which connects at its first call.

        Args:
            address: The worker's address, host:port or unix:///path. Default: TUPLEWIRE_ADDRESS.
            topology: The worker's topology. Default: TUPLEWIRE_TOPOLOGY, or `default`.
            worker_id: The expected worker; messages wait while another one answers. Default: any worker.
            client_id: A name that is the same after a restart. Default: load.py@host:4711-1f0c9a3b, unique.
            incarnation: From 0 to 2^64-1; must increase with each restart of a `client_id`. A client with a
                higher one replaces older clients. In Spark, use the taskAttemptId. Default: the time.
            source: The sending task, if the client sends for a task.
            credentials: The files of TLS and of a token. Default: variables such as TUPLEWIRE_TLS_CA.
            **settings: The settings of the session.

        Raises:
            ConfigError: A setting is unknown or invalid; the error names it.
        """
        check_variables()
        self.address = resolve_address(address)
        self.topology = resolve_topology(topology)
        check_text(f"client_id {client_id!r}", client_id or "")
        check_text(f"worker_id {worker_id!r}", worker_id)
        self.source = None if source is None else check_task(source)
        self._worker_id = worker_id
        self._client_id = client_id
        self._incarnation = None if incarnation is None else check_whole(incarnation, "incarnation", 2**64)
        self._settings = SessionSettings.of(**settings)
        self._credentials = credentials
        _clients.add(self)
        self._reset()

    def _reset(self) -> None:
        """Reset the state to a client that has not connected in this process."""
        self._untraced_buffer: SendBuffer | None = None
        """The sender's buffer if tracing is off. send() then does not need to check for it."""
        self._lock = threading.RLock()  # a signal handler may send while its thread connects
        self._id = self._client_id or new_client_id()
        self._sender: SendingEnd | None = None
        self._created_sender: SendingEnd | None = None
        """The sender from its creation on. _sender is set once it has started; see _get_buffer()."""
        self._tracing: Tracing | None = None
        self._receivers: WeakSet[Receiver] = WeakSet()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._sender is None else "open"
        return f"<Client {self.address} topology={self.topology} {state}>"

    def _identity(self) -> Identity:
        if self._closed:
            raise ClosedError("the client is closed")
        incarnation = time.time_ns() if self._incarnation is None else self._incarnation
        return Identity(self.topology, self._id, incarnation)

    def _new_sender(self) -> SendingEnd:
        """Return a sender that has not started to connect."""
        self._tracing = self._get_tracing()
        common_args = self.address, self._identity(), self._settings, messaging_thread()
        return SendingEnd(*common_args, self._stream_opener(), self._worker_id)

    def _start_subscription(
        self, tasks: int | Iterable[int], timeout: float | None, *, follow: bool
    ) -> tuple[Receiver, float | None, Tracing | None]:
        """Start receiving messages of tasks; return the arguments of a subscription."""
        timeout, task_ids = check_timeout(timeout), check_tasks(tasks)
        return self._start_receiver(task_ids, None, follow=follow), timeout, self._get_tracing()

    def _start_receiver(self, tasks: Sequence[int], callbacks: Callbacks | None, *, follow: bool) -> Receiver:
        thread = messaging_thread()
        common_args = self.address, self._identity(), tasks, self._settings, thread.loop
        follow = follow and not self.address.startswith(MEMORY_PREFIX)
        connections = WorkerConnections(self._settings, self._credentials) if follow else None
        receiver = Receiver(*common_args, self._stream_opener(), self._worker_id, callbacks, connections)
        thread.start_connection(receiver)
        self._receivers.add(receiver)
        return receiver

    def _get_tracing(self) -> Tracing | None:
        return get_tracing() if self.tracing_allowed else None

    def _stream_opener(self) -> StreamOpener:
        if self.address.startswith(MEMORY_PREFIX):
            return memory_stream_opener(self.topology, int(self.address.removeprefix(MEMORY_PREFIX)))
        return WorkerConnections(self._settings, self._credentials).stream_opener(self.address)

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(
        self, task: int, payload: bytes, /, *, key: bytes | None = None, headers: Headers | None = None
    ) -> bool: ...
    def try_send(
        self,
        messages: Any,
        payload: bytes | None = None,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> bool:
        """Send messages as `send` does, but never wait. tuplewire.aio.Client needs a running event loop.

        Args:
            messages, payload, key, headers: See `send`, also for the errors.

        Returns:
            False if there is not enough free space, and no message was accepted.
        """
        buffer = self._get_buffer()
        if self._tracing is not None and self._tracing.should_sample():
            groups = as_groups(messages, payload, self.source, key, headers)
            traced, span = self._tracing.sending(groups, self.address, buffer.session.max_message_bytes)
            accepted = buffer.offer(traced)
            if accepted:  # a span that does not end is never exported
                span.end()
            return accepted
        if key is None and not headers and buffer.try_send_one(messages, payload, self.source):
            return True
        return buffer.offer(as_groups(messages, payload, self.source, key, headers))

    def _get_buffer(self) -> SendBuffer:
        """Return the buffer of the sender, which is started if necessary. Raise ClosedError after close()."""
        if self._sender is None or self._closed:
            # Create the sender without the lock, because a logging handler may send with this client.
            sender = self._created_sender = self._created_sender or self._new_sender()
            with self._lock:
                if self._closed:
                    raise ClosedError("the client is closed")
                if self._sender is None:
                    messaging_thread().start_connection(sender)
                    close_automatically(self, sender)
                    self._sender = sender  # after an interrupt before this line, the next call reuses it
                    self._untraced_buffer = sender.buffer if self._tracing is None else None
        return self._sender.buffer

    def ledger(self) -> LedgerSnapshot:
        """Return the ledger of all sent messages. It is empty in a forked child that has sent none."""
        return LedgerSnapshot() if self._sender is None else self._sender.buffer.ledger()

    @property
    def possibly_lost(self) -> int:
        """An upper bound on the acknowledged messages that were lost because a worker failed.

        Counted as acknowledged in the ledger. Increases after a reconnect; 0 with ack_mode="processed".
        """
        return 0 if self._sender is None else self._sender.buffer.session.possibly_lost


class Client(BaseClient, AnswerMethods):
    """Sends messages to a worker and receives messages from it. Thread-safe.

    Messages that `send` has accepted are delivered exactly once, in order per (source, task), regardless of
    broken connections, while this process and the workers live. The client connects at its first call. In a
    forked child, the first call connects again, as a new sender. In functions that Spark runs use
    ClientHandle, which can be pickled.

    Close the client, or use it in `with`. If it is garbage-collected or open at exit, it issues a
    ResourceWarning, waits briefly for acknowledgements, closes, and logs the unacknowledged messages.

    Example:
        >>> with tuplewire.Client("127.0.0.1:6700") as client:
        ...     client.send(42, b"payload")  # the end of the block waits for the acknowledgement
    """

    @overload
    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(
        self,
        task: int,
        payload: bytes,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None: ...
    def send(
        self,
        messages: Any,
        payload: bytes | None = None,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a batch, an iterable of TaskMessages, or a task id and a payload.

        Returns once all messages are accepted; after an error, none is. Waits while the buffer is full. With
        overflow="fail", it raises BufferFullError at once. With "drop_oldest", it first drops the oldest
        messages that were never sent.

        Args:
            messages: The messages, or the task id of one message.
            payload: The payload of the message.
            key, headers: See TaskMessage. All limits count them like the payload.
            timeout: The maximum wait in seconds. None: max_block_seconds (default 60).

        Raises:
            BufferFullError: The buffer was full until the timeout.
            MessageTooLargeError: A message exceeds max_message_bytes.
            MessageError: A payload or key is not bytes, or headers are not pairs of a str and bytes.
            ClosedError: The client is closed.
            RefusedError: The worker has refused the session; the text has the reason.

        Example:
            >>> client.send(42, b"one", key=b"a key")
            >>> client.send(TaskMessageBatch.from_columns([42, 43], [b"two", b"three"]))
        """
        buffer = self._untraced_buffer
        if buffer is None:  # the first call, a closed client, or tracing
            buffer = self._get_buffer()
            if self._tracing is not None and self._tracing.should_sample():
                groups = as_groups(messages, payload, self.source, key, headers)
                traced, span = self._tracing.sending(groups, self.address, buffer.session.max_message_bytes)
                with span:
                    buffer.send(traced, timeout=timeout)
                return
        if key is not None or headers or not buffer.try_send_one(messages, payload, self.source):
            buffer.send(as_groups(messages, payload, self.source, key, headers), timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every sent message is acknowledged, or was dropped according to `overflow`.

        Args:
            timeout: The maximum wait in seconds. None: flush_timeout_seconds (30). math.inf: no limit.

        Raises:
            FlushTimeoutError: The timeout has passed. Messages stay pending and may still arrive.
            RefusedMessagesError: The worker has refused messages since the last flush.
            ClosedError: close() has dropped messages, for example in another thread.
            RefusedError: The worker has refused the session; the text has the reason.

        Example:
            >>> client.flush(timeout=10)
        """
        if self._sender is not None:
            self._sender.buffer.flush(self._settings.flush_timeout(timeout))

    def recv(
        self, tasks: int | Iterable[int], *, timeout: float | None = None, follow: bool = True
    ) -> Subscription:
        """Subscribe to tasks of any workers. Iterate over the result to get batches.

        The subscription finds the workers of the tasks, and follows tasks that move, without losing,
        duplicating or reordering messages. Each of these workers must permit `receive` to the client.

        Args:
            tasks: A task id, or several.
            timeout: The maximum wait for each batch in seconds. None: connect_timeout_seconds (30) until the
                workers have accepted the subscription, and then no limit. math.inf: no limit.
            follow: False: subscribe only at the client's worker; TaskNotLocalError names the tasks' owner.

        Raises:
            InvalidTaskError: A task id is invalid, or there are no tasks.
            ClosedError: The client is closed.

        Example:
            >>> with client.recv([42, 43], timeout=10) as inbox:
            ...     print([message.payload for message in inbox.messages(count=3)])
        """
        return Subscription(*self._start_subscription(tasks, timeout, follow=follow))

    def asker(self, reply_to: int) -> Asker:
        """Subscribe to a task that receives answers; return an object that sends requests.

        Args:
            reply_to: The task for the answers. No other program may subscribe to it.

        Raises:
            InvalidTaskError: The task id is invalid.
            ClosedError: The client is closed.

        Example:
            >>> with client.asker(reply_to=7) as asker:
            ...     print(asker.ask(42, b"a question", timeout=10).payload)
        """
        return Asker(self, self._start_receiver, reply_to)

    def subscribe(self, tasks: Sequence[int], on_group: OnGroup, on_failure: OnFailure) -> Callable[[], None]:
        """Subscribe to tasks; return a function that ends the subscription. For executors of topologies.

        Args:
            tasks, on_group, on_failure: See Callbacks. The event loop calls both, so they must not block.
        """
        receiver = self._start_receiver(tasks, Callbacks(on_group, on_failure), follow=False)
        return lambda: messaging_thread().run(receiver.close())

    def close(self, timeout: float | None = None) -> None:
        """Wait for acknowledgements, then close this process's connections. A second call does nothing.

        Args:
            timeout: See flush(). 0: drop unacknowledged messages immediately, without an error.

        Raises:
            FlushTimeoutError: The timeout has passed. The client is closed; the rest is dropped (`closed`).
        """
        wait_seconds = self._settings.flush_timeout(timeout)
        with self._lock:
            self._closed = True
            # An interrupt may have left only _created_sender; see _get_buffer().
            sender = self._sender or self._created_sender
        for receiver in list(self._receivers):
            messaging_thread().run(receiver.close())
        if sender is not None and not sender.buffer.ended:
            sender.close(wait_seconds)
            sender.buffer.raise_if_dropped(wait_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close within flush_timeout_seconds. After an error only close, and raise that error."""
        if kind is None:
            try:
                if self._sender is not None and not self._sender.buffer.ended:  # not after a close()
                    self.flush()
            finally:  # drops messages only if the flush failed
                self.close(0)
        else:
            with contextlib.suppress(FlushTimeoutError):
                self.close(0 if self._sender is None else self._sender.buffer.close_seconds_after(kind))
