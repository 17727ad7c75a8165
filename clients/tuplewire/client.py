"""The blocking client, for PySpark tasks and other threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any, Self, Unpack, overload
from weakref import WeakSet

from tuplewire.connection.goodbye import owe_goodbye
from tuplewire.connection.grpc_channel import dial_grpc, dialler_for
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.resumable import Identity
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.connection.stream import Dial
from tuplewire.errors import ClosedError, FlushTimeoutError
from tuplewire.identity.credentials import Credentials
from tuplewire.observer import Observer
from tuplewire.session.ledger import DropReason, LedgerSnapshot
from tuplewire.settings.addresses import resolve_address, resolve_topology
from tuplewire.settings.config import SessionKeywords, SessionSettings, checked_timeout, naming_settings
from tuplewire.subscription import Live, Subscription
from tuplewire.tracing import observer
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.message import Headers, TaskMessage
from tuplewire.values.task_ids import check_tasks
from tuplewire.variables import check_variables

_process = object()
"""Stands for this process: another one after a fork. To ask the system for each message would take longer."""


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)


class BaseClient(Live):
    """What the blocking and the asyncio client share: their arguments, and what they open."""

    traced = True
    """Whether it makes spans of what it sends and receives, where the process makes any."""

    @naming_settings
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
        """Describe a client; nothing is connected yet.

        Args:
            address: The worker's, host:port or unix:///path. Default: TUPLEWIRE_ADDRESS.
            topology: The worker's topology. Default: TUPLEWIRE_TOPOLOGY, or `default`.
            worker_id: The worker that you mean, where you know it, as from an assignment. While another one
                answers at the address, messages wait. Default: whoever answers.
            client_id: Your name across restarts. Default: a new one for each client.
            incarnation: Grows with each restart under one `client_id`; a newer one shuts the older out. In
                Spark, use the taskAttemptId. Default: the time.
            source: The task that sends, if this client is one.
            credentials: The files of TLS and of a token. Default: TUPLEWIRE_TLS_CA and the like, read where
                the client connects.
            settings: The fields of tuplewire.settings.config.SessionSettings.

        Raises:
            ConfigError: A setting is unknown or wrong; the message names it.
        """
        check_variables()
        self.address = resolve_address(address)
        self.topology = resolve_topology(topology)
        self.source = source
        self._worker_id = worker_id
        self._client_id = client_id
        self._incarnation = incarnation
        self._settings = SessionSettings.of(**settings)
        self._credentials = credentials
        self._forget()

    def _forget(self) -> None:
        """Be a client that has not connected yet, in this process."""
        self._process = _process
        self._unobserved: SendBuffer | None = None
        """The sender's buffer if tracing is off: send() need not look for an observer then."""
        self._lock = threading.RLock()  # a signal handler may send while its thread connects
        self._id = self._client_id or str(uuid.uuid4())
        self._sender: SendingEnd | None = None
        self._made: SendingEnd | None = None
        self._observer: Observer | None = None
        self._receivers: WeakSet[Receiver] = WeakSet()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._sender is None else "open"
        return f"<Client {self.address} topology={self.topology} {state}>"

    def _identity(self) -> Identity:
        if self._closed:
            raise ClosedError("the client is closed")
        return Identity(self.topology, self._id, self._incarnation or time.time_ns())

    def _new_sender(self) -> SendingEnd:
        """Return a sender that has not begun to connect."""
        self._observer = self._observing()
        return SendingEnd(
            self.address, self._identity(), self._settings, messaging_loop(), self._dial(), self._worker_id
        )

    def _receive(
        self, tasks: int | Iterable[int], timeout: float | None
    ) -> tuple[Receiver, float | None, Observer | None]:
        """Start to receive from tasks; return the arguments of a subscription."""
        if self._process is not _process:
            self._forget()
        timeout, named, thread = checked_timeout(timeout), check_tasks(tasks), messaging_loop()
        receiver = Receiver(
            self.address, self._identity(), named, self._settings, thread.loop, self._dial(), self._worker_id
        )
        thread.begin(receiver)
        self._receivers.add(receiver)
        return receiver, timeout, self._observing()

    def _observing(self) -> Observer | None:
        return observer() if self.traced else None

    def _dial(self) -> Dial:
        return dial_grpc(self.address, self._settings, dialler_for(self._credentials))

    @staticmethod
    def _tell_given_up(sender: SendingEnd, patience: float) -> None:
        """Raise FlushTimeoutError where a close has given messages up that it has waited for."""
        messages = sender.buffer.ledger().dropped.get(DropReason.CLOSED, 0)
        if messages and patience:
            raise FlushTimeoutError(
                f"{messages} messages were not acknowledged after {patience:g} s{sender.trouble()}; they are "
                "given up, and may still arrive"
            )

    def _patience_after(self, error: type[BaseException]) -> float:
        """Return how long the end of a block waits after an error.

        It does not wait for a worker out of reach once more, after a flush has done so in vain.
        """
        waited = issubclass(error, FlushTimeoutError) and self._sender is not None and self._sender.trouble()
        return 0.0 if waited else self._settings.patience_after_error

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(
        self, messages: int, payload: bytes, /, *, key: bytes | None = None, headers: Headers | None = None
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
        """Hand over as `send` does, but never wait; return False if `send` would wait.

        tuplewire.aio.Client needs a running loop for it.
        """
        buffer = self._connected()
        if self._observer is not None and self._observer.samples():
            groups = as_groups(messages, payload, self.source, key, headers)
            sending = self._observer.sending(groups, self.address, buffer.window.max_message_bytes)
            accepted = buffer.offer(sending.groups)
            if accepted:  # otherwise nothing was done; what does not end is never seen
                sending.end(None)
            return accepted
        if key is None and not headers and buffer.send_one(messages, payload, self.source):
            return True
        return buffer.offer(as_groups(messages, payload, self.source, key, headers))

    def _connected(self) -> SendBuffer:
        """Return the buffer of the sender, which has begun to connect; ClosedError after close()."""
        if self._process is not _process:
            self._forget()
        if self._sender is None or self._closed:
            # Without the lock: a logging handler may send with this client.
            made = self._made = self._made or self._new_sender()
            with self._lock:
                if self._closed:
                    raise ClosedError("the client is closed")
                if self._sender is None:
                    messaging_loop().begin(made)
                    owe_goodbye(self, made)
                    self._sender = made  # after an interrupt before it, the same one is begun again
                    self._unobserved = made.buffer if self._observer is None else None
        return self._sender.buffer

    def ledger(self) -> LedgerSnapshot:
        """Return what became of every sent message; a forked child has sent none yet."""
        if self._sender is None or self._process is not _process:
            return LedgerSnapshot()
        return self._sender.buffer.ledger()

    @property
    def perhaps_lost(self) -> int:
        """How many acknowledged messages may have died with a worker: at most so many.

        They count among the acknowledged. It rises, with a line in the log, once a worker answers again that
        has died; never with ack_mode="processed".
        """
        return 0 if self._sender is None else self._sender.receipts.perhaps_lost


class Client(BaseClient):
    """Sends to and receives from a worker.

    Once `send` has returned, its messages arrive exactly once, in order per (source, task), through any
    number of broken connections, as long as this process and the workers live.

    The client connects at its first call. It is thread-safe. In a forked child it is a new sender that
    connects at its own first call. It does not pickle; for Spark's functions there is ClientHandle.

    Close it, or use it in `with`. One that is dropped, or left at the interpreter's exit, gives a
    ResourceWarning, says goodbye for a short while, and logs how many messages were not acknowledged.
    """

    @overload
    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(
        self,
        messages: int,
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
        """Hand over a batch, an iterable of TaskMessages, or a task id and a payload.

        Returns once all of it is accepted; after an error, nothing of it is. Waits for room if there is none.
        With overflow="fail" it does not wait. With overflow="drop_oldest" it first gives up the oldest
        messages that were never sent, which the ledger counts, and waits only if that is not enough.

        Args:
            messages: What to send, or the task id of one message.
            payload: The payload of that message.
            key, headers: What goes with that message; see TaskMessage. They count in all limits as the
                payload does.
            timeout: The longest wait for room, in seconds. None: max_block_seconds.

        Raises:
            BufferFullError: There was no room in time.
            MessageTooLargeError: A message is over max_message_bytes.
            MessageError: A payload or key is not bytes, or headers are not pairs of a str and bytes.
            ClosedError: The client is closed.
            RefusedError: The session has ended for this reason.
        """
        buffer = self._unobserved
        if buffer is None or self._process is not _process:
            buffer = self._connected()
            if self._observer is not None and self._observer.samples():
                groups = as_groups(messages, payload, self.source, key, headers)
                with self._observer.sending(groups, self.address, buffer.window.max_message_bytes) as sent:
                    buffer.send(sent, timeout=timeout)
                return
        if key is not None or headers or not buffer.send_one(messages, payload, self.source):
            buffer.send(as_groups(messages, payload, self.source, key, headers), timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every sent message is acknowledged, or was given up as `overflow` says.

        Args:
            timeout: The longest wait, in seconds. None: flush_seconds, which is 30; math.inf: for ever.

        Raises:
            FlushTimeoutError: The timeout passed first. Messages stay pending, and may still arrive.
            RefusedMessagesError: The worker has refused messages since the last flush.
            RefusedError: The session has ended for this reason.
        """
        if self._sender is not None and self._process is _process:
            self._sender.buffer.flush(self._settings.flush_patience(timeout))

    def recv(self, tasks: int | Iterable[int], *, timeout: float | None = None) -> Subscription:
        """Subscribe to tasks of the worker; iterate over the result to get batches.

        timeout: the longest wait for each batch, in seconds. None: for ever, once the worker has let us in;
        until then connect_seconds, which are 30. math.inf: for ever in any case. Raises InvalidTaskError for
        what is no task, and where there is none.
        """
        return Subscription(*self._receive(tasks, timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait for acknowledgements, then end.

        A second call does nothing. A forked child closes nothing of its parent's.

        Args:
            timeout: The longest wait, in seconds. None: flush_seconds, which is 30; math.inf: for ever; 0:
                give up at once what is not acknowledged, without an error.

        Raises:
            FlushTimeoutError: The timeout passed first. The client is closed all the same; messages without
                an acknowledgement count as dropped{closed}.
        """
        if self._process is not _process:
            self._forget()
        patience = self._settings.flush_patience(timeout)
        with self._lock:
            self._closed = True
            sender = self._sender or self._made
        for receiver in list(self._receivers):
            messaging_loop().run(receiver.close())
        if sender is not None and not sender.buffer.ended:
            sender.close(patience)
            self._tell_given_up(sender, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close, in at most flush_seconds; after an error only close: it is what is to be seen."""
        if kind is None:
            with contextlib.ExitStack() as stack:
                stack.callback(self.close, 0)
                self.flush()
        else:
            with contextlib.suppress(FlushTimeoutError):
                self.close(self._patience_after(kind))
